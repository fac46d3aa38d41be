"""ELECTRA (Clark et al. 2020) in the form of transformers: generators, discriminators, and models fine-tuned from them.

In fine-tuning, dropout applies to the input of the classifier; transformers' ELECTRA also drops that of its map.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families import bert
from bertjax.interop.families.family import Family
from bertjax.models.bert import BertConfig

# Fields of BertConfig, in the form of `json_files.SIZES`.
_FIELDS = {**json_files.SIZES, "norm_eps": ("layer_norm_eps", float)}
# Keys that files may omit, and their only supported values. The summary is the pooled [CLS] of multiple choice.
_FIXED: dict[str, Any] = {
    "hidden_act": "gelu",  # transformers' heads always have an exact GELU
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "tie_word_embeddings": True,
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
}
# transformers' default values of sizes that are not in all files.
_DEFAULTS = {"embedding_size": 128, "layer_norm_eps": 1e-12, "initializer_range": 0.02}
# Module of transformers: module of `bert_tensors`. The pooler of texts and that of choices have different names.
_POOLERS = {"BertForSequenceClassification": "classifier.dense", "BertForMultipleChoice": "sequence_summary.summary"}
_MODULES = {
    "bert.embeddings_project": "bert.embeddings.projection",
    "generator_predictions.dense": "cls.predictions.transform.dense",
    "generator_predictions.LayerNorm": "cls.predictions.transform.LayerNorm",
    "generator_lm_head": "cls.predictions",
    **dict.fromkeys(_POOLERS.values(), "bert.pooler.dense"),
    "classifier.out_proj": "classifier",
}


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """See `Family.read_config`."""
    raw = {**_DEFAULTS, **_FIXED, **raw}
    values = json_files.fields(raw, {**_FIELDS, "embedding_size": ("embedding_size", int)}, path)
    for key, expected in _FIXED.items():
        if raw[key] != expected:
            refuse(f"{path}: {key}", raw[key], repr(expected))
    size = values["embedding_size"]
    return {**values, "embedding_size": 0 if size == values["hidden_size"] else size}


def write_config(config: BertConfig) -> dict[str, Any]:
    """See `Family.write_config`."""
    fields = {key: getattr(config, field) for field, (key, _) in _FIELDS.items()}
    return {**_FIXED, **fields, "embedding_size": config.word_size}


def to_canonical(tensors: Mapping[str, np.ndarray], *about: object) -> dict[str, np.ndarray]:
    """See `Family.to_canonical`. Unknown names do not change."""
    del about
    result = {}
    for original, array in tensors.items():
        name = re.sub(r"^electra\.|^(?=(embeddings|embeddings_project|encoder)\.)", "bert.", original)
        module, _, leaf = name.rpartition(".")
        result[f"{_MODULES.get(module, module)}.{leaf}"] = array
    return result


def from_canonical(tensors: Mapping[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    """See `Family.from_canonical`. The classifier of texts has a name of its own."""
    theirs = {ours: module for module, ours in _MODULES.items()}
    theirs["bert.pooler.dense"] = _POOLERS.get(architecture, "")
    if architecture != "BertForSequenceClassification":
        del theirs["classifier"]
    result = {}
    for name, array in tensors.items():
        module, _, leaf = name.rpartition(".")
        result[re.sub(r"^bert\.", "electra.", f"{theirs.get(module, module)}.{leaf}")] = array
    return result


_HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering")
FAMILY = Family(
    name="electra",
    label="ELECTRA",
    fixed={
        **{key: value for key, value in bert.FAMILY.fixed.items() if key != "embedding_size"},
        "activation": "gelu",
        "pooler_activation": "gelu",
    },
    read_config=read_config,
    write_config=write_config,
    prefix="Electra",
    base="electra",
    heads={
        "BertModel": set(),
        "BertForPreTraining": {"discriminator"},
        **{f"BertFor{head}": bert.FAMILY.heads[f"BertFor{head}"] for head in _HEADS},
    },
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    tokens={"pad": "pad"},
    needs_token_types=True,
)
