"""EuroBERT (Boizard et al. 2025) in the form of transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.file_keys import check_fixed
from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families import bert, rotary
from bertjax.interop.families.family import Family, Renaming, of_layers
from bertjax.models.bert import HeadConfig

# Fields of HeadConfig, in the form of `json_files.SIZES`.
_FIELDS = {
    **{field: key for field, key in json_files.SIZES.items() if field not in ("dropout", "type_vocab_size")},
    "attention_dropout": ("attention_dropout", float),
    "norm_eps": ("rms_norm_eps", float),
    "num_key_value_heads": ("num_key_value_heads", int),
}
# Fields that models of EuroBERT do not share, unlike those of BERT.
_FREE = ("num_key_value_heads", "pooling")
_DEFAULTS = {"attention_dropout": 0.0, "initializer_range": 0.02, "rms_norm_eps": 1e-5}
# Keys that files may omit, and their only supported values.
_FIXED = {"attention_bias": False, "mlp_bias": False}
_POOLINGS = {"bos": "cls", "mean": "mean", "late": "late"}
_NORMS = {"input_layernorm": "attention.output.LayerNorm", "post_attention_layernorm": "output.LayerNorm"}
_NAMES = Renaming(
    "model",
    {
        "model.embed_tokens": "bert.embeddings.word_embeddings",
        **of_layers("model.layers", {**rotary.ATTENTION, **rotary.GATED, **_NORMS}),
        "model.norm": "bert.encoder.final_norm",
        "lm_head": "cls.predictions",
        "dense": "bert.pooler.dense",
    },
)


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    raw = {"classifier_pooling": raw.get("clf_pooling", "late"), "hidden_act": "silu", **_DEFAULTS, **raw}
    if raw.get("num_key_value_heads") is None:
        raw["num_key_value_heads"] = raw.get("num_attention_heads")
    bert.check_ties(raw, path, are_tied=False)
    values = json_files.fields(raw, _FIELDS, path)
    check_fixed(raw, _FIXED, path)
    pooling = json_files.fields(raw, {"pooling": ("classifier_pooling", str)}, path)["pooling"]
    if pooling not in _POOLINGS:
        refuse(f"{path}: classifier_pooling", pooling, " or ".join(_POOLINGS))
    return {
        **values,
        "activation": json_files.read_activation(raw, "hidden_act", path),
        "pooling": _POOLINGS[pooling],
        "dropout": 0.0,
        **rotary.read_one_base(raw, 10_000.0, path),
    }


def write_config(config: HeadConfig) -> dict[str, Any]:
    return {
        **_FIXED,
        "tie_word_embeddings": False,
        **{key: getattr(config, field) for field, (key, _) in _FIELDS.items()},
        "num_key_value_heads": config.key_value_heads,
        "hidden_act": json_files.activation_name(config.activation),
        "classifier_pooling": next(theirs for theirs, ours in _POOLINGS.items() if ours == config.pooling),
        **rotary.write_base(config),
    }


FAMILY = Family(
    name="eurobert",
    label="EuroBERT",
    fixed={
        **{key: value for key, value in bert.FAMILY.fixed.items() if key not in _FREE},
        "positions": "rotary",
        "type_vocab_size": 0,
        "norm": "pre",
        "norm_type": "rms",
        "embedding_norm": False,
        "first_attention_norm": True,
        "gated": True,
        "unbiased": "layers",
        "tie_output": False,
        "masked_lm_head": "linear",
        "pooler_activation": "gelu",
    },
    read_config=read_config,
    write_config=write_config,
    prefix="EuroBert",
    base="model",
    heads=rotary.HEADS,
    to_canonical=_NAMES.to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokenizer="byte-level BPE",
    tokens={"pad": "pad", "bos": "cls", "eos": "sep", "mask": "mask"},
)
