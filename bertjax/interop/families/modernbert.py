"""ModernBERT (Warner et al. 2024) in Hugging Face's form: config.json, and tensors with fused matrices.

Tensors are converted to the names that `bert_tensors` has for the same parameters of BERT:

>>> to_canonical({"layers.1.attn.Wqkv.weight": np.zeros((6, 2), np.float32)}, {}, "", "folder").keys()
dict_keys(['bert.encoder.layer.1.attention.self.query.weight', ...])
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families.family import Family
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
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_BASES = {
    _GLOBAL: ("rotary_base", "global_rope_theta", 160_000.0),
    _LOCAL: ("local_rotary_base", "local_rope_theta", 10_000.0),
}
# Modules of ModernBERT, and the names of the same modules in `bert_tensors`: several for a fused matrix.
_OF_LAYER = {
    "attn.Wqkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attn.Wo": ("attention.output.dense",),
    "attn_norm": ("attention.output.LayerNorm",),
    "mlp.Wi": ("gate.dense", "intermediate.dense"),
    "mlp.Wo": ("output.dense",),
    "mlp_norm": ("output.LayerNorm",),
}
_MODULES = {
    "model.embeddings.tok_embeddings": "bert.embeddings.word_embeddings",
    "model.embeddings.norm": "bert.embeddings.LayerNorm",
    "model.final_norm": "bert.encoder.final_norm",
    "decoder": "cls.predictions",
}
_HEAD_OF_WORDS = {
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
}
_LAYER, _OUR_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)"), re.compile(r"bert\.encoder\.layer\.(\d+)\.(.+)")
_THEIRS = {ours: theirs for theirs, ours in (_MODULES | _HEAD_OF_WORDS).items()}
_THEIRS |= {"qa_outputs": "classifier", "cls.predictions.output_embeddings": "decoder"}
_THEIRS_OF_LAYER = {ours: (theirs, place) for theirs, names in _OF_LAYER.items() for place, ours in enumerate(names)}
_FIRST_NORM = "bert.encoder.layer.0.attention.output.LayerNorm"
_SECOND_NORM = "bert.encoder.layer.0.output.LayerNorm"


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """See `Family.read_config`.

    Reads the keys of all versions: `layer_types` and `rope_parameters`, or `global_attn_every_n_layers`,
    `global_rope_theta` and `local_rope_theta`.
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
    every = json_files.fields(raw, {"every": ("global_attn_every_n_layers", int)}, path)["every"]
    count = raw["num_hidden_layers"]
    types = raw.get("layer_types") or _layer_types(count, every)
    if types == [_GLOBAL] * count:
        return {"local_attention": 0, "global_every": HeadConfig.global_every}
    fitting = [number for number in (every, *range(count + 1)) if _layer_types(count, number) == types]
    if not fitting:
        refuse(f"{path}: layer_types", types, f"{_GLOBAL} in every n-th layer from the first on, or in none")
    return {"global_every": fitting[0]}


def _layer_types(count: int, every: int) -> list[str]:
    return [_GLOBAL if every and layer % every == 0 else _LOCAL for layer in range(count)]


def _read_bases(raw: Mapping[str, Any], path: Path) -> dict[str, float]:
    newer = raw.get("rope_parameters") or {}
    bases: dict[str, float] = {}
    for kind, (field, old_key, default) in _BASES.items():
        given = newer.get(kind) if isinstance(newer, dict) else newer
        given, name = {} if given is None else given, f"rope_parameters.{kind}"
        if not isinstance(given, dict) or given.get("rope_type", "default") != "default":
            refuse(f"{path}: {name}", given, '{"rope_type": "default", "rope_theta": ...}')
        key = f"{name}.rope_theta" if "rope_theta" in given else old_key
        value = given.get("rope_theta", raw.get(old_key, default))
        bases |= json_files.fields({key: value}, {field: (key, float)}, path)
    return bases


def write_config(config: HeadConfig) -> dict[str, Any]:
    """See `Family.write_config`; writes the keys of all versions."""
    every = config.global_every if config.local_attention else 1
    bases = {kind: float(getattr(config, field)) for kind, (field, *_) in _BASES.items()}
    return {
        "hidden_activation": json_files.activation_name(config.activation),
        **{key: getattr(config, field) for field, (key, _) in _FIELDS.items()},
        **dict.fromkeys(("mlp_bias", "classifier_bias"), config.biases),
        "classifier_activation": json_files.activation_name(config.activation),
        "decoder_bias": True,
        "layer_types": _layer_types(config.num_layers, every),
        "global_attn_every_n_layers": every,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        **{old_key: bases[kind] for kind, (_, old_key, _) in _BASES.items()},
    }


def to_canonical(
    tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], architecture: str, source: str
) -> dict[str, np.ndarray]:
    """Splits fused matrices; see `Family.to_canonical`.

    `head` in the file belongs to the masked language model or to the task, whichever `like` has. The first layer has no
    norm before its attention: it gets the scale 1, which our model does not use.

    Raises:
      UserError: if a fused matrix cannot be split, or there is a norm before the first attention.
    """
    modules = dict(_MODULES)
    if "masked_lm" in like and "decoder.bias" in tensors:
        modules |= _HEAD_OF_WORDS
    if architecture.endswith("ForQuestionAnswering"):
        modules["classifier"] = "qa_outputs"
    is_tied = "output_embeddings" not in like.get("masked_lm", {})
    result: dict[str, np.ndarray] = {}
    for original, array in tensors.items():
        name = re.sub(r"^(?=(embeddings|layers|final_norm)\.)", "model.", original)
        module, _, leaf = name.rpartition(".")
        names: tuple[str, ...] = (modules.get(module, module),)
        if match := _LAYER.fullmatch(module):
            names = tuple(f"bert.encoder.layer.{match[1]}.{part}" for part in _OF_LAYER.get(match[2], (match[2],)))
        if name == "decoder.weight":
            names = ("cls.predictions.decoder" if is_tied else "cls.predictions.output_embeddings",)
        if len(names) > 1 and (not array.ndim or len(array) % len(names)):
            refuse(f"{source}: {original}", f"shape {array.shape}", f"a multiple of {len(names)} rows")
        parts = np.split(array, len(names)) if len(names) > 1 else [array]
        result |= {f"{each}.{leaf}": part for each, part in zip(names, parts, strict=True)}
    for leaf, value in (("weight", 1.0), ("bias", 0.0)):
        if f"{_FIRST_NORM}.{leaf}" in result:
            refuse(f"{source}: norm of the first attention", leaf, "no such norm")
        if (norm := result.get(f"{_SECOND_NORM}.{leaf}")) is not None:
            result[f"{_FIRST_NORM}.{leaf}"] = np.full_like(norm, value)
    return result


def from_canonical(tensors: Mapping[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    """Fuses matrices; see `Family.from_canonical`."""
    del architecture
    found: dict[str, dict[int, np.ndarray]] = {}
    for name, array in tensors.items():
        module, _, leaf = name.rpartition(".")
        theirs, place = _THEIRS.get(module, module), 0
        if match := _OUR_LAYER.fullmatch(module):
            of_layer, place = _THEIRS_OF_LAYER[match[2]]
            theirs = f"model.layers.{match[1]}.{of_layer}"
        if module != _FIRST_NORM:
            found.setdefault(f"{theirs}.{leaf}", {})[place] = array
    return {name: np.concatenate([parts[i] for i in sorted(parts)]) for name, parts in found.items()}


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
        "layer_groups": 0,
        "embedding_size": 0,
        "embedding_norm": True,
        "first_attention_norm": False,
        "qk_norm": False,
        "gated": True,
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
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    # The defaults of transformers are the ids of the published vocabulary.
    tokens={"pad": "pad", "cls": "cls", "bos": "cls", "sep": "sep", "eos": "sep"},
)
