"""BERT folders of Hugging Face `transformers` (config.json, model.safetensors), in and out, without torch.

>>> values = huggingface.read_config("bert-base-uncased")
>>> config = BertConfig(**values, dtype="float32", scan_layers=True, remat=False, next_sentence=True)
>>> params, report = huggingface.load("bert-base-uncased", config)
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.models.bert import BertConfig, BertForPreTraining

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Field of BertConfig: key of config.json.
_CONFIG_KEYS = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
}
_GELU = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
# Keys that older files leave out, and the only value of each that this model has. The absence of
# layer_norm_eps means 1e-12, which transformers documents.
_FIXED = {"position_embedding_type": "absolute", "is_decoder": False, "tie_word_embeddings": True}
_LAYER_NORM_EPS = 1e-12

# Module of our tree: module of theirs; {} is the layer.
_MODULES = {
    "bert/embeddings": "bert.embeddings",
    "bert/embeddings/norm": "bert.embeddings.LayerNorm",
    "bert/encoder/layers/attention/query": "bert.encoder.layer.{}.attention.self.query",
    "bert/encoder/layers/attention/key": "bert.encoder.layer.{}.attention.self.key",
    "bert/encoder/layers/attention/value": "bert.encoder.layer.{}.attention.self.value",
    "bert/encoder/layers/attention/output": "bert.encoder.layer.{}.attention.output.dense",
    "bert/encoder/layers/attention_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "bert/encoder/layers/intermediate": "bert.encoder.layer.{}.intermediate.dense",
    "bert/encoder/layers/output": "bert.encoder.layer.{}.output.dense",
    "bert/encoder/layers/output_norm": "bert.encoder.layer.{}.output.LayerNorm",
    "bert/pooler": "bert.pooler.dense",
    "masked_lm": "cls.predictions",
    "masked_lm/transform": "cls.predictions.transform.dense",
    "masked_lm/norm": "cls.predictions.transform.LayerNorm",
    "next_sentence": "cls.seq_relationship",
}
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}  # a table's leaf is NAME.weight
_HEADS = {"pooler": "bert/pooler/", "masked_lm": "masked_lm/", "next_sentence": "next_sentence/"}
# Second names of one tensor, which some versions of transformers also wrote.
_ALIASES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


class Report(NamedTuple):
    """What `load` found beside the encoder."""

    missing: tuple[str, ...]  # heads for the caller to initialize: of "pooler", "masked_lm", "next_sentence"
    unused: tuple[str, ...]  # tensors of heads that the config does without


class _Slot(NamedTuple):
    """Where a parameter of ours lives in their file."""

    names: tuple[str, ...]  # one for each layer if `stacked`
    shape: tuple[int, ...]  # of each tensor, in their order of axes
    stacked: bool
    transposed: bool  # torch keeps kernels [O, I]


def read_config(folder: str | Path) -> dict[str, Any]:
    """Returns the fields of BertConfig that config.json determines.

    The others (dtype, scan_layers, remat, next_sentence) are the user's choice.

    Raises:
      UserError: no readable config.json, a key missing, or a model that is not BERT as built here.
    """
    path = Path(folder) / CONFIG_FILE
    raw = {"layer_norm_eps": _LAYER_NORM_EPS, **_FIXED, **_read_json(path)}
    for key in ("model_type", "hidden_act", *_CONFIG_KEYS.values()):
        if key not in raw:
            raise UserError(f"{path}: {key}", got="no value", expected="a value", fix="add the key")
    for key, expected in {"model_type": "bert", **_FIXED}.items():
        if raw[key] != expected:
            _refuse(f"{path}: {key}", raw[key], repr(expected))
    if raw["hidden_act"] not in tuple(_GELU):
        _refuse(f"{path}: hidden_act", raw["hidden_act"], "one of " + ", ".join(_GELU))
    values = {field: raw[key] for field, key in _CONFIG_KEYS.items()}
    return {**values, "gelu": _GELU[raw["hidden_act"]], "norm": "post", "direction": "both"}


def load(folder: str | Path, config: BertConfig) -> tuple[dict[str, Any], Report]:
    """Reads weights as parameters of `BertForPreTraining(config)`: nested dicts of float32 numpy arrays.

    Takes files written by any version of transformers: float32, float16 or bfloat16, whole or sharded, of
    BertForPreTraining, BertForMaskedLM or BertModel (names without `bert.`), LayerNorms named gamma and beta.
    Heads that the weights lack are absent from the parameters and listed in the report.

    Raises:
      UserError: a file that is missing or corrupt; a tensor that is missing, unknown, of another shape or
        type; output embeddings that differ from the input's.
    """
    folder = Path(folder)
    _check_post_norm(config)
    tensors = _canonical(_read_tensors(folder), folder)
    slots = _slots(config)
    missing = tuple(head for head in _HEADS if _lacks(head, slots, tensors))
    params = {
        path: _take(tensors, slot, folder)
        for path, slot in slots.items()
        if not any(path.startswith(_HEADS[head]) for head in missing)
    }
    optional = {name for slot in _slots(_with_all_heads(config)).values() for name in slot.names}
    unknown = sorted(set(tensors) - optional)
    if unknown:
        fix = "give a folder of BertForPreTraining, BertForMaskedLM or BertModel with these sizes"
        got = f"{len(unknown)} unknown: " + ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        raise UserError(f"{folder}: tensors", got=got, expected="those of BERT alone", fix=fix)
    return traverse_util.unflatten_dict(params, sep="/"), Report(missing, tuple(sorted(tensors)))


def save(folder: str | Path, params: Mapping[str, Any], config: BertConfig) -> None:
    """Writes config.json and model.safetensors, which `from_pretrained` of transformers opens.

    The architecture is BertForPreTraining, or BertForMaskedLM when `config.next_sentence` is False.
    Each file takes its name only once complete.

    Args:
      folder: made if needed; other files in it, such as vocab.txt, are left alone.
      params: of `BertForPreTraining(config)`.
      config: its configuration.
    Raises:
      UserError: an option that transformers' BERT does not have.
    """
    _check_post_norm(config)
    if config.direction != "both":
        _refuse("config key model.direction", config.direction, "both, the only one of Hugging Face's BERT")
    slots = _slots(config)
    leaves = traverse_util.flatten_dict(params, sep="/")
    assert leaves.keys() == slots.keys(), sorted(leaves.keys() ^ slots.keys())
    tensors = {}
    for path, slot in slots.items():
        array = np.asarray(leaves[path], np.float32)
        for name, value in zip(slot.names, array if slot.stacked else [array], strict=True):
            # safetensors writes the buffer as it lies, whatever the strides.
            tensors[name] = np.ascontiguousarray(value.T if slot.transposed else value)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_config_json(config), indent=2, sort_keys=True) + "\n"
    with completed(folder / WEIGHTS_FILE) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    with completed(folder / CONFIG_FILE) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _config_json(config: BertConfig) -> dict[str, Any]:
    return {
        "architectures": ["BertForPreTraining" if config.next_sentence else "BertForMaskedLM"],
        "model_type": "bert",
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_new",
        "pad_token_id": 0,
        "dtype": "float32",
        **_FIXED,
        **{key: getattr(config, field) for field, key in _CONFIG_KEYS.items()},
    }


def _check_post_norm(config: BertConfig) -> None:
    if config.norm != "post":
        _refuse("config key model.norm", config.norm, "post, the only one of Hugging Face's BERT")


def _refuse(what: str, got: object, expected: str) -> None:
    raise UserError(what, got=got, expected=expected, fix="use a model with that value")


def _with_all_heads(config: BertConfig) -> BertConfig:
    return dataclasses.replace(config, next_sentence=True)


def _slots(config: BertConfig) -> dict[str, _Slot]:
    """Returns the place of each parameter of `BertForPreTraining(config)`, by its path."""
    model = BertForPreTraining(config)

    def init() -> Any:
        ids = jnp.zeros((1, 1), jnp.int32)
        return model.init(jax.random.key(0), ids, ids, ids, ids, deterministic=True, return_attention=False)

    shapes = traverse_util.flatten_dict(jax.eval_shape(init)["params"], sep="/")
    return {path: _slot(path, leaf.shape) for path, leaf in shapes.items()}


def _slot(path: str, shape: tuple[int, ...]) -> _Slot:
    """Names a parameter as transformers does.

    >>> _slot("bert/encoder/layers/output/kernel", (2, 3072, 768)).names[0]
    'bert.encoder.layer.0.output.dense.weight'
    """
    module, leaf = path.rsplit("/", 1)
    name = f"{_MODULES[module]}.{_LEAVES.get(leaf, f'{leaf}.weight')}"
    stacked, transposed = "{}" in name, leaf == "kernel"
    names = tuple(name.format(layer) for layer in range(shape[0])) if stacked else (name,)
    shape = shape[1:] if stacked else shape
    return _Slot(names, shape[::-1] if transposed else shape, stacked, transposed)


def _lacks(head: str, slots: Mapping[str, _Slot], tensors: Mapping[str, Any]) -> bool:
    """Returns whether the config has the head and the weights have no tensor of it."""
    names = [name for path, slot in slots.items() if path.startswith(_HEADS[head]) for name in slot.names]
    return bool(names) and not any(name in tensors for name in names)


def _take(tensors: dict[str, np.ndarray], slot: _Slot, folder: Path) -> np.ndarray:
    """Moves a parameter out of `tensors`, in our layout."""
    arrays = []
    for name in slot.names:
        found = tensors[name].shape if name in tensors else "no such tensor"
        if found != slot.shape:
            fix = "give a complete folder, or the sizes that its config.json says"
            raise UserError(f"{folder}: {name}", got=found, expected=f"shape {slot.shape}", fix=fix)
        array = tensors.pop(name)
        arrays.append(array.T if slot.transposed else array)
    return np.stack(arrays) if slot.stacked else np.ascontiguousarray(arrays[0])


def _canonical(tensors: Mapping[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Returns the tensors, each once, under the names that transformers gives them today."""
    result: dict[str, np.ndarray] = {}
    for original, array in tensors.items():
        name = re.sub(r"^(?=(embeddings|encoder|pooler)\.)", "bert.", original)
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        name = _ALIASES.get(name, name)
        if name in result and not np.array_equal(result[name], array):
            expected = f"the values of {name}, which is the same parameter here"
            _refuse(f"{folder}: {original}", "other values", expected)
        result[name] = array
    return result


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Reads all shards as float32, without the constant `position_ids` of older versions."""
    tensors = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                found = {name: file.get_tensor(name) for name in file.offset_keys()}
        except (SafetensorError, OSError) as error:
            fix = "download or export it again"
            raise UserError(f"{path}", got=error, expected="a complete safetensors file", fix=fix) from error
        for name, array in found.items():
            if name.endswith("position_ids"):
                continue
            if array.dtype.name not in ("float32", "float16", "bfloat16"):
                _refuse(f"{path}: {name}", array.dtype.name, "float32, float16 or bfloat16")
            tensors[name] = array.astype(np.float32, copy=False)
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS_FILE).exists():
        return [folder / WEIGHTS_FILE]
    index = folder / INDEX_FILE
    if not index.exists():
        fix = "convert other formats with save_pretrained(folder) of transformers"
        raise UserError(f"{folder}", got="no weights", expected=f"{WEIGHTS_FILE} or {INDEX_FILE}", fix=fix)
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in shards.values()
    ):
        fix = "download or export it again"
        raise UserError(f"{index}: weight_map", got=shards, expected="file names by tensor", fix=fix)
    return [folder / name for name in sorted(set(shards.values()))]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        fix = "give a folder that save_pretrained wrote"
        raise UserError(f"{path}", got=error, expected="a readable JSON file", fix=fix) from error
    if not isinstance(values, dict):
        _refuse(f"{path}", type(values).__name__, "a JSON object")
    return values
