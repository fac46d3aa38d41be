"""PEGASUS (Zhang et al. 2020) in the form of transformers: pre-norm, and sinusoids as positions."""

import dataclasses

from bertjax.interop.families import bart

FAMILY = dataclasses.replace(
    bart.FAMILY,
    name="pegasus",
    label="PEGASUS",
    architecture="PegasusForConditionalGeneration",
    fixed={**bart.ALL, "norm": "pre", "positions": "sinusoidal", "embedding_norm": False},
    read_config=bart.reader(is_pre=True, has_embedding_norm=False, is_static=True),
    num_unused_positions=0,
)
