"""DistilBERT (Sanh et al. 2019) in the form of transformers.

In fine-tuning, dropout also applies to the output of attention, as in BERT; transformers' DistilBERT omits it there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.interop import json_files
from bertjax.interop.families import bert
from bertjax.interop.families.family import Family, Renaming
from bertjax.models.bert import BertConfig

# Fields of BertConfig, in the form of `json_files.SIZES`.
_FIELDS: dict[str, tuple[str, type]] = {
    "hidden_size": ("dim", int),
    "num_layers": ("n_layers", int),
    "num_heads": ("n_heads", int),
    "intermediate_size": ("hidden_dim", int),
    "dropout": ("dropout", float),
    "attention_dropout": ("attention_dropout", float),
    "initializer_range": ("initializer_range", float),
    "vocab_size": ("vocab_size", int),
    "max_positions": ("max_position_embeddings", int),
}
_LAYER = "distilbert.transformer.layer.{}"
_OUR_LAYER = "bert.encoder.layer.{}"
_NAMES = Renaming(
    "distilbert",
    {
        "distilbert.embeddings.word_embeddings": "bert.embeddings.word_embeddings",
        "distilbert.embeddings.position_embeddings": "bert.embeddings.position_embeddings",
        "distilbert.embeddings.LayerNorm": "bert.embeddings.LayerNorm",
        f"{_LAYER}.attention.q_lin": f"{_OUR_LAYER}.attention.self.query",
        f"{_LAYER}.attention.k_lin": f"{_OUR_LAYER}.attention.self.key",
        f"{_LAYER}.attention.v_lin": f"{_OUR_LAYER}.attention.self.value",
        f"{_LAYER}.attention.out_lin": f"{_OUR_LAYER}.attention.output.dense",
        f"{_LAYER}.sa_layer_norm": f"{_OUR_LAYER}.attention.output.LayerNorm",
        f"{_LAYER}.ffn.lin1": f"{_OUR_LAYER}.intermediate.dense",
        f"{_LAYER}.ffn.lin2": f"{_OUR_LAYER}.output.dense",
        f"{_LAYER}.output_layer_norm": f"{_OUR_LAYER}.output.LayerNorm",
        "vocab_transform": "cls.predictions.transform.dense",
        "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
        "vocab_projector": "cls.predictions",
        "pre_classifier": "bert.pooler.dense",
    },
)


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the fields. Sinusoidal positions are stored in the weights like others."""
    bert.check_ties(raw, path)
    values = json_files.fields({"initializer_range": 0.02, **raw}, _FIELDS, path)
    return {**values, "activation": json_files.read_activation(raw, "activation", path)}


def write_config(config: BertConfig) -> dict[str, Any]:
    fields = {key: getattr(config, field) for field, (key, _) in _FIELDS.items()}
    return {**fields, "activation": json_files.activation_name(config.activation), "sinusoidal_pos_embds": False}


FAMILY = Family(
    name="distilbert",
    label="DistilBERT",
    fixed={**bert.FAMILY.fixed, "type_vocab_size": 0, "norm_eps": 1e-12, "pooler_activation": "relu"},
    read_config=read_config,
    write_config=write_config,
    prefix="DistilBert",
    base="distilbert",
    heads={"BertModel": set(), **bert.HEADS},
    to_canonical=_NAMES.to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokens={"pad": "pad"},
)
