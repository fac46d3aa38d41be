"""MPNet (Song et al. 2020) in transformers.

The map of the classifier of texts is our pooler. In fine-tuning, transformers also applies dropout in front of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families import bert, roberta
from bertjax.interop.families.family import OWN_POOLER, Family, Renaming
from bertjax.models.bert import HeadConfig

# Values that transformers' code fixes, whatever config.json says.
_PAD = 1
_BUCKETS = 32
_DISTANCE = 128
_BUCKETS_KEY = "relative_attention_num_buckets"
_ATTENTION = "mpnet.encoder.layer.{}.attention"
_OURS = "bert.encoder.layer.{}.attention"
_NAMES = Renaming(
    "mpnet",
    {
        f"{_ATTENTION}.attn.q": f"{_OURS}.self.query",
        f"{_ATTENTION}.attn.k": f"{_OURS}.self.key",
        f"{_ATTENTION}.attn.v": f"{_OURS}.self.value",
        f"{_ATTENTION}.attn.o": f"{_OURS}.output.dense",
        f"{_ATTENTION}.LayerNorm": f"{_OURS}.output.LayerNorm",
        **roberta.LM_HEAD,
    },
    OWN_POOLER,
)


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    fixed = {"pad_token_id": _PAD, _BUCKETS_KEY: _BUCKETS}
    values = json_files.fields({**fixed, **raw}, {key: (key, int) for key in fixed}, path)
    for key, value in fixed.items():
        if values[key] != value:
            refuse(f"{path}: {key}", values[key], f"{value}, as in transformers")
    return roberta.read_config({**raw, "type_vocab_size": 0}, path)


def write_config(config: HeadConfig) -> dict[str, Any]:
    values = {key: value for key, value in bert.write_config(config).items() if key != "type_vocab_size"}
    return {**values, _BUCKETS_KEY: _BUCKETS}


FAMILY = Family(
    name="mpnet",
    label="MPNet",
    fixed={
        **roberta.FAMILY.fixed,
        "type_vocab_size": 0,
        "relative_positions": "bucketed",
        "relative_buckets": _BUCKETS,
        "relative_distance": _DISTANCE,
    },
    read_config=read_config,
    write_config=write_config,
    prefix="MPNet",
    base="mpnet",
    heads=roberta.FAMILY.heads,
    to_canonical=_NAMES.to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokens=roberta.FAMILY.tokens,
    counts_from_padding=True,
    pad_id=_PAD,
)
