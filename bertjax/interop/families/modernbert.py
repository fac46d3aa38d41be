"""ModernBERT (Warner et al. 2024) in Hugging Face's form: config.json, and tensors with fused matrices.

Tensors are converted to the names that `bert_tensors` has for the same parameters of BERT:

>>> FAMILY.to_canonical({"layers.1.attn.Wqkv.weight": np.zeros((6, 2), np.float32)}, {}, "", "folder").keys()
dict_keys(['bert.encoder.layer.1.attention.self.query.weight', ...])
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families.family import QUERY_KEY_VALUE, Family, Names, Renaming, of_layers
from bertjax.interop.families.rotary import read_base
from bertjax.models.bert import HeadConfig

# Fields of HeadConfig that config.json has under the same meaning, in the form of `json_files.SIZES`.
_FIELDS = {
    **{field: key for field, key in json_files.SIZES.items() if field != "type_vocab_size"},
    "dropout": ("embedding_dropout", float),
    "attention_dropout": ("attention_dropout", float),
    "activation_dropout": ("mlp_dropout", float),
    "norm_eps": ("norm_eps", float),
    "norm_biases": ("norm_bias", bool),
    "biases": ("attention_bias", bool),
    "tie_output": ("tie_word_embeddings", bool),
    "pooling": ("classifier_pooling", str),
    "local_attention": ("local_attention", int),
}
# Documented defaults of the keys that files may omit.
_DEFAULTS = {
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "mlp_dropout": 0.0,
    "initializer_range": 0.02,
    "norm_eps": 1e-5,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "tie_word_embeddings": True,
    "classifier_pooling": "cls",
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
# Keys that must equal another key, because HeadConfig has one field for both.
_SAME = {
    "mlp_bias": "attention_bias",
    "classifier_bias": "attention_bias",
    "classifier_activation": "hidden_activation",
}
# The kinds of layers. For each: the field of the base, the key of older files, and its default.
_GLOBAL = "full_attention"
_LOCAL = "sliding_attention"
_BASES = {
    _GLOBAL: ("rotary_base", "global_rope_theta", 160_000.0),
    _LOCAL: ("local_rotary_base", "local_rope_theta", 10_000.0),
}
_MODULES: dict[str, Names] = {
    "model.embeddings.tok_embeddings": "bert.embeddings.word_embeddings",
    "model.embeddings.norm": "bert.embeddings.LayerNorm",
    "model.final_norm": "bert.encoder.final_norm",
    "decoder": "cls.predictions",
}
_OF_LAYER: dict[str, Names] = {
    "attn.Wo": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "mlp.Wi": ("gate.dense", "intermediate.dense"),
    "mlp.Wo": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_WORDS = "cls.predictions.transform"
_FIRST_NORM = "bert.encoder.layer.0.attention.output.LayerNorm"
_SECOND_NORM = "bert.encoder.layer.0.output.LayerNorm"


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the fields from the keys of any version.

    These are `layer_types` and `rope_parameters`, or `global_attn_every_n_layers`, `global_rope_theta` and
    `local_rope_theta`.
    """
    raw = {**_DEFAULTS, **raw}
    values = json_files.fields(raw, _FIELDS, path)
    activation = json_files.read_activation(raw, "hidden_activation", path)
    for key, other in _SAME.items():
        if raw[key] != raw[other]:
            refuse(f"{path}: {key}", raw[key], f"{raw[other]}, as {other}")
    for key, expected in {"decoder_bias": True, "rope_scaling": None}.items():
        if raw.get(key) != expected:
            refuse(f"{path}: {key}", raw[key], str(expected))
    return {**values, "activation": activation, **_read_layers(raw, path), **_read_bases(raw, path)}


def _read_layers(raw: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Returns `global_every` and, if all layers are global, `local_attention`."""
    period = json_files.fields(raw, {"every": ("global_attn_every_n_layers", int)}, path)["every"]
    count = raw["num_hidden_layers"]
    types = raw.get("layer_types") or _layer_types(count, period)
    if types == [_GLOBAL] * count:
        return {"local_attention": 0, "global_every": HeadConfig.global_every}
    fitting = [number for number in (period, *range(count + 1)) if _layer_types(count, number) == types]
    if not fitting:
        refuse(f"{path}: layer_types", types, f"{_GLOBAL} in every n-th layer from the first on, or in none")
    return {"global_every": fitting[0]}


def _layer_types(count: int, period: int) -> list[str]:
    return [_GLOBAL if period and layer % period == 0 else _LOCAL for layer in range(count)]


def _read_bases(raw: Mapping[str, Any], path: Path) -> dict[str, float]:
    newer = raw.get("rope_parameters") or {}
    return {
        field: read_base(newer.get(kind) if isinstance(newer, dict) else newer, kind, raw, (old_key, default), path)
        for kind, (field, old_key, default) in _BASES.items()
    }


def write_config(config: HeadConfig) -> dict[str, Any]:
    """Returns the keys of all versions."""
    period = config.global_every if config.local_attention else 1
    bases = {kind: float(getattr(config, field)) for kind, (field, *_) in _BASES.items()}
    return {
        "hidden_activation": json_files.activation_name(config.activation),
        **{key: getattr(config, field) for field, (key, _) in _FIELDS.items()},
        **dict.fromkeys(("mlp_bias", "classifier_bias"), config.biases),
        "classifier_activation": json_files.activation_name(config.activation),
        "decoder_bias": True,
        "layer_types": _layer_types(config.num_layers, period),
        "global_attn_every_n_layers": period,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        **{old_key: bases[kind] for kind, (_, old_key, _) in _BASES.items()},
    }


class TensorNames:
    """Converts tensors; its methods are `Family.to_canonical` and `Family.from_canonical`."""

    def __init__(self, attention: Mapping[str, Names], head: str) -> None:
        """Stores the names of the maps in front of attention, and of the head of the masked language model."""
        self._modules = {**_MODULES, **of_layers("model.layers", {**_OF_LAYER, **attention})}
        self._of_words = {f"{head}.dense": f"{_WORDS}.dense", f"{head}.norm": f"{_WORDS}.LayerNorm"}
        self._of_task = {f"{head}.{part}": f"head.{part}" for part in ("dense", "norm")}

    def to_canonical(
        self, tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], architecture: str, source: str
    ) -> dict[str, np.ndarray]:
        """Renames tensors.

        The head in a file of the language model belongs to that model or to the task, whichever `like` has. The first
        layer has no norm before its attention: it gets the scale 1, which our model does not use.

        Raises:
          UserError: if a fused matrix cannot be split, or there is a norm before the first attention.
        """
        is_of_words = "masked_lm" in like and "decoder.bias" in tensors
        modules = self._modules | (self._of_words if is_of_words else self._of_task)
        if architecture.endswith("ForQuestionAnswering"):
            modules["classifier"] = "qa_outputs"
        result = Renaming("model", modules).to_canonical(tensors, like, architecture, source)
        for leaf, value in (("weight", 1.0), ("bias", 0.0)):
            if f"{_FIRST_NORM}.{leaf}" in result:
                refuse(f"{source}: norm of the first attention", leaf, "no such norm")
            if (norm := result.get(f"{_SECOND_NORM}.{leaf}")) is not None:
                result[f"{_FIRST_NORM}.{leaf}"] = np.full_like(norm, value)
        return result

    def from_canonical(self, tensors: Mapping[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
        stored = {name: array for name, array in tensors.items() if not name.startswith(f"{_FIRST_NORM}.")}
        names = Renaming("model", {**self._modules, **self._of_words, "classifier": "qa_outputs"})
        return names.from_canonical(stored, architecture)


_NAMES = TensorNames({"attn.Wqkv": QUERY_KEY_VALUE}, "head")
FAMILY = Family(
    name="modernbert",
    label="ModernBERT",
    fixed={
        "positions": "rotary",
        "relative_positions": "none",
        "type_vocab_size": 0,
        "direction": "both",
        "norm": "pre",
        "norm_type": "layer",
        "convolution_size": 0,
        "layer_groups": 0,
        "embedding_size": 0,
        "embedding_norm": True,
        "first_attention_norm": False,
        "qk_norm": False,
        "gated": True,
        "unbiased": "none",
        "num_key_value_heads": 0,
        "masked_lm_head": "transform",
        "head": "transform",
    },
    read_config=read_config,
    write_config=write_config,
    prefix="ModernBert",
    base="model",
    tokenizer="byte-level BPE",
    heads={
        "BertModel": set(),
        "BertForMaskedLM": {"masked_lm"},
        "BertForSequenceClassification": {"transform", "norm", "classifier"},
        "BertForTokenClassification": {"transform", "norm", "classifier"},
        "BertForMultipleChoice": {"transform", "norm", "classifier"},
        "BertForQuestionAnswering": {"transform", "norm", "qa_outputs"},
    },
    to_canonical=_NAMES.to_canonical,
    from_canonical=_NAMES.from_canonical,
    # The defaults of transformers are the ids of the published vocabulary.
    tokens={"pad": "pad", "cls": "cls", "bos": "cls", "sep": "sep", "eos": "sep"},
)
