"""DeBERTa-v2 and v3 (He et al. 2021) in the form of transformers.

Like transformers, the masked language model has no enhanced mask decoder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.file_keys import check_fixed
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
    "pooler_activation": ("pooler_hidden_act", str),
}
_DISTANCES = {
    "span": ("position_buckets", int),
    "reach": ("max_relative_positions", int),
    "has_positions": ("position_biased_input", bool),
}
# Defaults of transformers for keys that files may omit.
_DEFAULTS = {
    "type_vocab_size": 0,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-7,
    "conv_kernel_size": 0,
    "conv_act": "tanh",
    "position_buckets": -1,
    "max_relative_positions": -1,
    "position_biased_input": True,
    "norm_rel_ebd": "none",
    "pooler_hidden_act": "gelu",
    "relative_attention": False,
    "share_att_key": False,
}
# Keys that have only one supported value.
_FIXED = {"relative_attention": True, "share_att_key": True, "conv_groups": 1, "pooler_dropout": 0}
_TERMS = {"both": ["p2c", "c2p"], "content_to_position": ["c2p"], "position_to_content": ["p2c"]}
_NORMS = {"none": False, "layer_norm": True}
_SELF = "deberta.encoder.layer.{}.attention.self"
_OUR_SELF = "bert.encoder.layer.{}.attention.self"
_NAMES = Renaming(
    "deberta",
    {
        "deberta.embeddings.word_embeddings": "bert.embeddings.word_embeddings",
        **{f"{_SELF}.{name}_proj": f"{_OUR_SELF}.{name}" for name in ("query", "key", "value")},
        "pooler.dense": "bert.pooler.dense",
    },
)
# The masked-LM head of folders with legacy=False, and of published v3 folders, whose config.json does not tell.
_NEWER_HEAD = {"lm_predictions.lm_head.bias": "cls.predictions.bias"} | {
    f"lm_predictions.lm_head.{name}.{leaf}": f"cls.predictions.transform.{name}.{leaf}"
    for name in ("dense", "LayerNorm")
    for leaf in ("weight", "bias")
}
_KERNEL = "bert.encoder.conv.conv.weight"


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    raw = {**_DEFAULTS, **raw}
    bert.check_ties(raw, path)
    values = json_files.fields(raw, _FIELDS, path)
    sizes = dict.fromkeys(("embedding_size", "pooler_hidden_size"), values["hidden_size"])
    sizes["attention_head_size"] = values["hidden_size"] // max(values["num_heads"], 1)
    check_fixed(raw, {**_FIXED, **sizes}, path)
    span, reach, has_positions = json_files.fields(raw, _DISTANCES, path).values()
    reach = reach if reach > 0 else values["max_positions"]
    if span >= reach:
        refuse(f"{path}: position_buckets", span, f"a number below the largest distance, {reach}")
    requested = raw.get("pos_att_type") or ()
    names = requested.lower().split("|") if isinstance(requested, str) else requested
    requested = {name.strip() for name in names}
    terms = next((ours for ours, theirs in _TERMS.items() if set(theirs) == requested), "")
    if not terms:
        refuse(f"{path}: pos_att_type", raw.get("pos_att_type"), "c2p, p2c, or p2c|c2p")
    if raw["norm_rel_ebd"] not in _NORMS:
        refuse(f"{path}: norm_rel_ebd", raw["norm_rel_ebd"], " or ".join(_NORMS))
    return {
        **values,
        "positions": "learned" if has_positions else "none",
        "relative_buckets": 2 * (span if span > 0 else reach),
        "relative_distance": reach,
        "relative_terms": terms,
        "relative_norm": _NORMS[raw["norm_rel_ebd"]],
        "activation": json_files.read_activation(raw, "hidden_act", path),
    }


def write_config(config: HeadConfig) -> dict[str, Any]:
    reach = config.relative_distance
    span = config.relative_buckets // 2
    return {
        "hidden_act": json_files.activation_name(config.activation),
        "pooler_hidden_size": config.hidden_size,
        **_FIXED,
        "tie_word_embeddings": True,
        **{key: getattr(config, field) for field, (key, _) in _FIELDS.items()},
        "position_biased_input": config.positions == "learned",
        "position_buckets": span if span < reach else -1,
        "max_relative_positions": reach if reach != config.max_positions else -1,
        "pos_att_type": _TERMS[config.relative_terms],
        "norm_rel_ebd": next(theirs for theirs, ours in _NORMS.items() if ours == config.relative_norm),
    }


def to_canonical(tensors: Tensors, like: Mapping[str, Any], architecture: str, source: str) -> dict[str, np.ndarray]:
    renamed = {_NEWER_HEAD.get(name, name): array for name, array in tensors.items()}
    canonical = _NAMES.to_canonical(renamed, like, architecture, source)
    kernel = canonical.get(_KERNEL)  # axes: output, input, place; ours: output, place and input
    if kernel is not None and kernel.ndim == 3:
        canonical[_KERNEL] = kernel.swapaxes(1, 2).reshape(len(kernel), -1)
    return canonical


def from_canonical(tensors: Tensors, architecture: str) -> dict[str, np.ndarray]:
    tensors = dict(tensors)
    if (kernel := tensors.get(_KERNEL)) is not None:
        tensors[_KERNEL] = np.ascontiguousarray(kernel.reshape(len(kernel), -1, len(kernel)).swapaxes(1, 2))
    return _NAMES.from_canonical(tensors, architecture)


_OPEN = ("positions", "relative_positions", "convolution_size", "pooler_activation")  # not as in BERT
FAMILY = Family(
    name="deberta-v2",
    label="DeBERTa-v2",
    fixed={
        **{key: value for key, value in bert.FAMILY.fixed.items() if key not in _OPEN},
        "relative_positions": "disentangled",
    },
    read_config=read_config,
    write_config=write_config,
    prefix="DebertaV2",
    base="deberta",
    heads={"BertModel": set(), **bert.HEADS},
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    tokens={"pad": "pad"},
    tokenizer="Unigram",
)
