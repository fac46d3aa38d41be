"""ModernBERT's decoder ("Ettin", Weller et al. 2025) in the form of transformers: a left-to-right language model."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families import modernbert
from bertjax.models.bert import HeadConfig

_ATTENTION = {f"attn.{name[0]}_proj": f"attention.self.{name}" for name in ("query", "key", "value")}
_NAMES = modernbert.TensorNames(_ATTENTION, "lm_head")
# transformers counts a token itself among the half of `local_attention` that it attends to; ModernBERT does not.
_ITSELF = 2
_UNBIASED = {False: "classifiers", True: "none"}  # by `HeadConfig.biases`


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    values = modernbert.read_config({**raw, "classifier_pooling": "cls"}, path)
    if 0 < values["local_attention"] < _ITSELF + 2:
        refuse(f"{path}: local_attention", values["local_attention"], f"at least {_ITSELF + 2}")
    return {
        **values,
        "local_attention": max(values["local_attention"] - _ITSELF, 0),
        "unbiased": _UNBIASED[values["biases"]],
    }


def write_config(config: HeadConfig) -> dict[str, Any]:
    width = config.local_attention and config.local_attention + _ITSELF
    return modernbert.write_config(dataclasses.replace(config, local_attention=width))


def from_canonical(tensors: Mapping[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    """Renames tensors. Raises UserError if only one of the two maps of a classifier has a bias."""
    has_bias = "classifier.bias" in tensors
    head_has = "head.dense.bias" in tensors
    if "classifier.weight" in tensors and has_bias != head_has:
        got = _UNBIASED[has_bias]
        expected = f"{_UNBIASED[head_has]} with model.biases={head_has}"
        refuse("config key model.unbiased", got, expected)
    return _NAMES.from_canonical(tensors, architecture)


FAMILY = dataclasses.replace(
    modernbert.FAMILY,
    name="modernbert-decoder",
    label="ModernBERT decoder",
    fixed={
        **{key: value for key, value in modernbert.FAMILY.fixed.items() if key != "unbiased"},
        "direction": "left_to_right",
        "pooling": "cls",
    },
    read_config=read_config,
    write_config=write_config,
    prefix="ModernBertDecoder",
    heads={
        name: modernbert.FAMILY.heads[name]
        for name in ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")
    },
    classes={"BertForMaskedLM": "ModernBertDecoderForCausalLM"},
    to_canonical=_NAMES.to_canonical,
    from_canonical=from_canonical,
)
