"""mBART (Liu et al. 2020) and mBART-50 (Tang et al. 2020) in the form of transformers: BART with pre-norm."""

import dataclasses

from bertjax.interop.families import bart

FAMILY = dataclasses.replace(
    bart.FAMILY,
    name="mbart",
    label="mBART",
    architecture="MBartForConditionalGeneration",
    fixed={**bart.FAMILY.fixed, "norm": "pre"},
    read_config=bart.reader(is_pre=True, has_embedding_norm=True, is_static=False),
)
