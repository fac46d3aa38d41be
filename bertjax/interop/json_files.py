"""Reads the JSON files of published weights, and defines the sizes and activations that all of them have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.files import parse_json
from bertjax.interop.formats.reading import shown

# Field of BertConfig: its key in bert_config.json and config.json, and its type.
SIZES: dict[str, tuple[str, type]] = {
    "hidden_size": ("hidden_size", int),
    "num_layers": ("num_hidden_layers", int),
    "num_heads": ("num_attention_heads", int),
    "intermediate_size": ("intermediate_size", int),
    "dropout": ("hidden_dropout_prob", float),
    "attention_dropout": ("attention_probs_dropout_prob", float),
    "initializer_range": ("initializer_range", float),
    "vocab_size": ("vocab_size", int),
    "max_positions": ("max_position_embeddings", int),
    "type_vocab_size": ("type_vocab_size", int),
}
# Activations by transformers' names. Export writes the first name of an activation.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

_MAX_INT = 2**31 - 1  # the maximum of sizes and ids


def read_json(path: Path, kind: type) -> Any:
    """Returns the content of a JSON file, a dict or a list. Raises UserError if it is unreadable or of another kind."""
    fix = "download or export the file again"
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}", got=shown(error), expected="a readable JSON file", fix=fix) from error
    if not isinstance(values, kind):
        expected = "a JSON object" if kind is dict else "a JSON list"
        raise UserError(f"{path}", got=type(values).__name__, expected=expected, fix=fix)
    return values


def fields(raw: Mapping[str, Any], keys: Mapping[str, tuple[str, type]], path: Path) -> dict[str, Any]:
    """Returns the values of fields.

    Args:
      raw: the content of the file.
      keys: the key in the file and the type of each field; an int is accepted for a float.
      path: the path of the file, for messages.
    Raises:
      UserError: if a key is missing, of another type, or too large.
    """
    for key, kind in keys.values():
        is_large = type(raw.get(key)) is int and abs(raw[key]) > _MAX_INT
        if key not in raw or type(raw[key]) not in ((int, float) if kind is float else (kind,)) or is_large:
            got = shown(repr(raw[key])) if key in raw else "no value"
            expected = f"a value of type {kind.__name__}" + (f", at most {_MAX_INT}" if is_large else "")
            raise UserError(f"{path}: {key}", got=got, expected=expected, fix="correct the key")
    return {field: raw[key] for field, (key, _) in keys.items()}


def read_activation(raw: Mapping[str, Any], key: str, path: Path) -> str:
    """Returns our name of the activation in `raw[key]`. Raises UserError for a missing or unsupported one."""
    name = fields(raw, {"name": (key, str)}, path)["name"]
    if name not in ACTIVATIONS:
        expected = "one of " + ", ".join(ACTIVATIONS)
        raise UserError(f"{path}: {key}", got=name, expected=expected, fix="use a model with that value")
    return ACTIVATIONS[name]


def activation_name(activation: str) -> str:
    """Returns the name of an activation in transformers."""
    return next(name for name, ours in ACTIVATIONS.items() if ours == activation)
