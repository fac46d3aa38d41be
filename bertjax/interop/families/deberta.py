"""DeBERTa-v2 and v3 (He et al. 2021) in the form of transformers.

The masked language model of transformers has no enhanced mask decoder, so ours has none.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families import bert
from bertjax.interop.families.family import Family, Renaming, Tensors
from bertjax.models.bert import HeadConfig

# Fields of HeadConfig, in the form of `json_files.SIZES`.
_FIELDS = {
    **json_files.SIZES,
    "norm_eps": ("layer_norm_eps", float),
    "convolution_size": ("conv_kernel_size", int),
    "convolution_activation": ("conv_act", str),
}
# Defaults of transformers for the keys that files may omit.
_DEFAULTS: dict[str, Any] = {
    "type_vocab_size": 0,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-7,
    "max_relative_positions": -1,
    "position_buckets": -1,
    "position_biased_input": True,
    "norm_rel_ebd": "none",
    "conv_kernel_size": 0,
    "conv_act": "tanh",
}
# Keys with one supported value, and whether files may omit it.
_FIXED = {
    "relative_attention": (True, False),
    "share_att_key": (True, False),
    "conv_groups": (1, True),
    "pooler_dropout": (0, True),
    "tie_word_embeddings": (True, True),
}
_TERMS = {"both": {"c2p", "p2c"}, "content_to_position": {"c2p"}, "position_to_content": {"p2c"}}
_LAYER, _OUR_LAYER = "deberta.encoder.layer.{}", "bert.encoder.layer.{}"
_NAMES = Renaming(
    "deberta",
    {
        "deberta.embeddings.word_embeddings": "bert.embeddings.word_embeddings",
        "deberta.embeddings.position_embeddings": "bert.embeddings.position_embeddings",
        "deberta.embeddings.token_type_embeddings": "bert.embeddings.token_type_embeddings",
        "deberta.embeddings.LayerNorm": "bert.embeddings.LayerNorm",
        "deberta.encoder.rel_embeddings": "bert.relative_embeddings.table",
        "deberta.encoder.LayerNorm": "bert.relative_embeddings.LayerNorm",
        "deberta.encoder.conv.conv": "bert.convolution.dense",
        "deberta.encoder.conv.LayerNorm": "bert.convolution.LayerNorm",
        f"{_LAYER}.attention.self.query_proj": f"{_OUR_LAYER}.attention.self.query",
        f"{_LAYER}.attention.self.key_proj": f"{_OUR_LAYER}.attention.self.key",
        f"{_LAYER}.attention.self.value_proj": f"{_OUR_LAYER}.attention.self.value",
        **{
            f"{_LAYER}.{name}": f"{_OUR_LAYER}.{name}"
            for name in (
                "attention.output.dense",
                "attention.output.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            )
        },
        "pooler.dense": "bert.pooler.dense",
    },
)
# The masked-LM head of files with legacy=False, and of published DeBERTa-v3 files, whose config does not say so.
_NEWER_HEAD = {
    "lm_predictions.lm_head.dense": "cls.predictions.transform.dense",
    "lm_predictions.lm_head.LayerNorm": "cls.predictions.transform.LayerNorm",
    "lm_predictions.lm_head": "cls.predictions",
}
_CONVOLUTION = "bert.convolution.dense.weight"


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """See `Family.read_config`."""
    raw = {**_DEFAULTS, **raw}
    values = json_files.fields(raw, _FIELDS, path)
    same = {key: raw.get("hidden_size") for key in ("embedding_size", "pooler_hidden_size")}
    same["attention_head_size"] = values["hidden_size"] // max(values["num_heads"], 1)
    fixed = {key: value for key, (value, may_lack) in _FIXED.items() if key in raw or not may_lack}
    for key, expected in {**fixed, **{key: value for key, value in same.items() if key in raw}}.items():
        if raw.get(key) != expected:
            refuse(f"{path}: {key}", raw.get(key), str(expected))
    return {
        **values,
        **_read_distances(raw, path),
        "positions": "learned" if raw["position_biased_input"] else "none",
        "activation": json_files.read_activation(raw, "hidden_act", path),
        "pooler_activation": json_files.read_activation({"pooler_hidden_act": "gelu", **raw}, "pooler_hidden_act", path),
    }
