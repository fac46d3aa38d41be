"""ALBERT (Lan et al. 2020) in the form of transformers, without its head for the order of sentences."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families import bert
from bertjax.interop.families.family import Family, Renaming
from bertjax.models.bert import BertConfig

_SIZES: dict[str, tuple[str, type]] = {
    "embedding_size": ("embedding_size", int),
    "layer_groups": ("num_hidden_groups", int),
}
_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
_OUR_LAYER = "bert.encoder.layer.{}"
_NAMES = Renaming(
    "albert",
    {
        "albert.encoder.embedding_hidden_mapping_in": "bert.embeddings.projection",
        f"{_LAYER}.attention.query": f"{_OUR_LAYER}.attention.self.query",
        f"{_LAYER}.attention.key": f"{_OUR_LAYER}.attention.self.key",
        f"{_LAYER}.attention.value": f"{_OUR_LAYER}.attention.self.value",
        f"{_LAYER}.attention.dense": f"{_OUR_LAYER}.attention.output.dense",
        f"{_LAYER}.attention.LayerNorm": f"{_OUR_LAYER}.attention.output.LayerNorm",
        f"{_LAYER}.ffn": f"{_OUR_LAYER}.intermediate.dense",
        f"{_LAYER}.ffn_output": f"{_OUR_LAYER}.output.dense",
        f"{_LAYER}.full_layer_layer_norm": f"{_OUR_LAYER}.output.LayerNorm",
        "albert.pooler": "bert.pooler.dense",
        "predictions": "cls.predictions",
        "predictions.dense": "cls.predictions.transform.dense",
        "predictions.LayerNorm": "cls.predictions.transform.LayerNorm",
        "predictions.decoder": "cls.predictions.decoder",
    },
)


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    raw = {"num_hidden_groups": 1, "inner_group_num": 1, **raw}
    values = {**bert.read_config(raw, path), **json_files.fields(raw, _SIZES, path)}
    if raw["inner_group_num"] != 1:
        refuse(f"{path}: inner_group_num", raw["inner_group_num"], "1")
    if values["embedding_size"] == values["hidden_size"]:  # transformers has the map, and ours is only for other sizes
        refuse(f"{path}: embedding_size", values["embedding_size"], "another size than hidden_size")
    return values


def write_config(config: BertConfig) -> dict[str, Any]:
    """Returns the keys. Raises UserError if the embeddings are not mapped to another size."""
    if config.word_size == config.hidden_size:
        refuse("config key model.embedding_size", config.embedding_size, "another size than model.hidden_size")
    sizes = {"embedding_size": config.embedding_size, "num_hidden_groups": config.stored_layers}
    return {**bert.write_config(config), **sizes, "inner_group_num": 1}


FAMILY = Family(
    name="albert",
    label="ALBERT",
    fixed={key: value for key, value in bert.FAMILY.fixed.items() if key not in _SIZES},
    read_config=read_config,
    write_config=write_config,
    prefix="Albert",
    base="albert",
    heads={"BertModel": {"bert/pooler"}, **bert.HEADS},
    to_canonical=_NAMES.to_canonical,
    from_canonical=_NAMES.from_canonical,
    tokens={"pad": "pad", "bos": "cls", "eos": "sep"},
    needs_token_types=True,
    tokenizer="Unigram",
)
