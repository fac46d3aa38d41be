"""What families of encoders with rotary positions share in the form of transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.interop import json_files
from bertjax.interop.bert_tensors import refuse
from bertjax.interop.families import bert
from bertjax.interop.families.family import Names
from bertjax.models.bert import BertConfig

ATTENTION: dict[str, Names] = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.o_proj": "attention.output.dense",
}
GATED: dict[str, Names] = {
    "mlp.gate_proj": "gate.dense",
    "mlp.up_proj": "intermediate.dense",
    "mlp.down_proj": "output.dense",
}
NORMS: dict[str, Names] = {
    "post_attention_layernorm": "attention.output.LayerNorm",
    "post_mlp_layernorm": "output.LayerNorm",
}
HEADS = {
    "BertModel": set[str](),
    "BertForMaskedLM": {"masked_lm"},
    "BertForSequenceClassification": {"bert/pooler", "classifier"},
    "BertForTokenClassification": {"classifier"},
}
# The head of RoBERTa, whose masked-LM head always has the exact GELU.
ROBERTA_HEAD = {
    "lm_head.dense": "cls.predictions.transform.dense",
    "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "lm_head.decoder": "cls.predictions",
}


def read_base(parameters: Any, kind: str, raw: Mapping[str, Any], older: tuple[str, float], path: Path) -> float:
    """Returns the base of rotary positions.

    Args:
      given: the value of the key `rope_parameters`, or of the kind of layers in it; None if there is none.
      kind: the kind of layers; "" for all.
      raw: the content of config.json.
      older: the key of older files, and its default.
      path: the path of the file, for messages.
    Raises:
      UserError: for a value of another type, or a base that depends on the length.
    """
    parameters = {} if parameters is None else parameters
    name = "rope_parameters" + (f".{kind}" if kind else "")
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        refuse(f"{path}: {name}", parameters, '{"rope_type": "default", "rope_theta": ...}')
    key = f"{name}.rope_theta" if "rope_theta" in parameters else older[0]
    value = parameters.get("rope_theta", raw.get(*older))
    return float(json_files.fields({key: value}, {"base": (key, float)}, path)["base"])


def read_one_base(raw: Mapping[str, Any], default: float, path: Path) -> dict[str, float]:
    """Returns the field `rotary_base` of a model without local layers; see `read_base`."""
    head_size = raw["hidden_size"] // max(raw["num_attention_heads"], 1)
    for key, expected in {"rope_scaling": None, "head_dim": head_size}.items():
        if raw.get(key) not in (None, expected):
            refuse(f"{path}: {key}", raw[key], f"{expected}")
    return {"rotary_base": read_base(raw.get("rope_parameters"), "", raw, ("rope_theta", default), path)}


def write_base(config: BertConfig) -> dict[str, Any]:
    """Returns the key of config.json for `rotary_base`."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": float(config.rotary_base)}}


def read_config(raw: Mapping[str, Any], path: Path, *, base: float, is_gelu: bool) -> dict[str, Any]:
    """Returns the fields of models with BERT's keys.

    Args:
      raw: the content of config.json.
      path: the path of the file, for messages.
      base: the base of files without one.
      is_gelu: whether the activation must be the exact GELU, which the masked-LM head always has.
    """
    values = bert.read_config(raw, path)
    if is_gelu and values["activation"] != "gelu":
        refuse(f"{path}: hidden_act", raw["hidden_act"], "gelu")
    return {**values, **read_one_base(raw, base, path)}


def write_config(config: BertConfig) -> dict[str, Any]:
    return {**bert.write_config(config), **write_base(config)}
