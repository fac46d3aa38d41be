"""GTE (Zhang et al. 2024) in the form of transformers.

In fine-tuning, transformers also applies dropout inside the feed-forward network: our key is `activation_dropout`.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.interop.families import bert, rotary
from bertjax.interop.families.family import QUERY_KEY_VALUE, Family, Names, Renaming, of_layers

# The names of the folders that were published with own code.
_OLDER_LAYER: dict[str, Names] = {
    "attention.qkv_proj": QUERY_KEY_VALUE,
    "attention.o_proj": "attention.output.dense",
    "attn_ln": "attention.output.LayerNorm",
    "mlp.up_gate_proj": ("intermediate.dense", "gate.dense"),
    "mlp.down_proj": "output.dense",
    "mlp_ln": "output.LayerNorm",
}
_NAMES = Renaming(
    "gte",
    {
        **of_layers("gte.encoder.layer", _OLDER_LAYER),
        **of_layers("gte.layers", {**rotary.ATTENTION, **rotary.GATED, **rotary.NORMS}),
        "lm_head.norm": "cls.predictions.transform.LayerNorm",
        **rotary.ROBERTA_HEAD,
    },
)


def to_canonical(
    tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], architecture: str, source: str
) -> dict[str, np.ndarray]:
    tensors = {re.sub(r"^new\.", "gte.", name): array for name, array in tensors.items()}
    return _NAMES.to_canonical(tensors, like, architecture, source)


FAMILY = Family(
    name="gte",
    label="GTE",
    fixed={**bert.FAMILY.fixed, "positions": "rotary", "gated": True, "unbiased": "intermediate", "activation": "gelu"},
    read_config=functools.partial(rotary.read_config, base=160_000.0, is_gelu=True),
    write_config=rotary.write_config,
    prefix="Gte",
    base="gte",
    heads=rotary.HEADS,
    to_canonical=to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokenizer="Unigram",
    tokens={"pad": "pad"},
)
