"""mT5 (Xue et al. 2021) in the form of transformers: T5 1.1 with another vocabulary."""

import dataclasses

from bertjax.interop.families import t5

FAMILY = dataclasses.replace(t5.FAMILY, name="mt5", label="mT5", architecture="MT5ForConditionalGeneration")
