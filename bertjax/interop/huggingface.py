"""Reads and writes encoders of Hugging Face `transformers` without torch.

>>> config = HeadConfig(**published.open_weights(Path("bert-base-uncased")).fields)
>>> init = functools.partial(Bert(config, pooler_activation="tanh").init, deterministic=True, return_attention=False)
>>> ids = np.zeros((1, 1), np.int32)
>>> shapes = jax.eval_shape(init, jax.random.key(0), BertInputs(ids, ids, ids))["params"]
>>> params, report = huggingface.load("bert-base-uncased", shapes)
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.interop import families, json_files
from bertjax.interop.bert_tensors import Report, assemble, canonical, canonical_name, disassemble, heads_of, refuse
from bertjax.interop.families.family import Family, offset_positions
from bertjax.models.bert import HeadConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_TORCH_WEIGHTS_FILE = "pytorch_model.bin"

# The problem_type of a classifier by its objective in `configs/classification.py`.
PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
# The ends of the names of classes with a classifier, and transformers' default names of two classes.
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
_TWO_LABELS = ("LABEL_0", "LABEL_1")


def model_folder(folder: str | Path) -> Path:
    """Returns the folder of config.json, weights and vocabulary, in old sentence-transformers folders a subfolder."""
    inside = Path(folder) / "0_Transformer"
    return inside if inside.is_dir() else Path(folder)


def read_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the fields of HeadConfig that a config.json determines.

    The user chooses the others (dtype, initializer, scan_layers, remat, ...).

    Args:
      raw: the content of the file.
      path: the path of the file, for messages.
    Raises:
      UserError: if a key is missing, or the model is not supported.
    """
    kind = json_files.fields(raw, {"kind": ("model_type", str)}, path)["kind"]
    if kind not in families.ENCODERS:
        got = f"{kind}, with its own code (auto_map), which is never run" if raw.get("auto_map") else kind
        names = ", ".join((*families.ENCODERS, *families.SEQ2SEQ))
        raise UserError(f"{path}: model_type", got=got, expected=names, fix="use a model of one of these families")
    family = families.find(kind)
    values = {**family.fixed, **family.read_config(raw, path)}
    return {**values, "max_positions": values["max_positions"] - first_position(raw, path)}


def first_position(raw: Mapping[str, Any], path: Path) -> int:
    """Returns the row of the first token of a text in the position table of the weights; see `read_config`."""
    if not families.find(raw["model_type"]).counts_from_padding:
        return 0
    return 1 + int(json_files.fields({"pad_token_id": 1, **raw}, {"pad": ("pad_token_id", int)}, path)["pad"])


def read_labels(raw: Mapping[str, Any], path: Path) -> tuple[str, ...] | None:
    """Returns the names of the classes by number, or None if a config.json has none; see `read_config`.

    transformers omits its default names of two classes.

    Raises:
      UserError: if the names are not those of classes 0, 1, ...
    """
    labels = raw.get("id2label")
    if labels is None:
        kinds = raw.get("architectures") or ()
        return _TWO_LABELS if any(str(kind).endswith(_CLASSIFIERS) for kind in kinds) else None
    numbers = [str(i) for i in range(len(labels))] if isinstance(labels, dict) else []
    if not numbers or labels.keys() != set(numbers) or not all(isinstance(name, str) for name in labels.values()):
        refuse(f"{path}: id2label", labels, 'names by number, such as {"0": "no", "1": "yes"}')
    return tuple(labels[number] for number in numbers)


def load(
    folder: str | Path, like: Mapping[str, Any], architecture: str = "", family: str = "bert", first_position: int = 0
) -> tuple[dict[str, Any], Report]:
    """Reads weights as parameters: nested dicts of float32 numpy arrays.

    Reads files of any transformers version, of an encoder or any class that contains it: safetensors or, if there are
    none, torch pickles; whole or sharded; float32, float16 or bfloat16.

    Args:
      folder: a folder of transformers or sentence-transformers.
      like: the wanted parameters, or their shapes; see `bert_tensors.assemble`.
      architecture: the class in config.json. Only ModernBERT's for question answering matters.
      family: the name of the encoder's family.
      first_position: see the function of this name.
    Returns:
      the parameters without the modules that the weights lack, and the report of these modules.
    Raises:
      UserError: if a file is missing or corrupt, a tensor is missing, unknown, or has another shape or type, or output
        embeddings differ from the input's.
    """
    folder = model_folder(folder)
    source = str(folder)
    stored = read_tensors(folder)
    shapes = {name: array.shape for name, array in stored.items()}

    def convert(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return families.find(family).to_canonical(tensors, like, architecture, source)

    is_tied = "masked_lm" in like and "output_embeddings" not in like["masked_lm"]
    tensors = canonical(convert(stored), source, is_tied=is_tied)
    del stored  # the weights may take much memory
    tensors = offset_positions(tensors, -first_position)
    return assemble(tensors, like, source, lambda: _stored_names(convert, shapes, is_tied))


def _stored_names(
    convert: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
    shapes: Mapping[str, tuple[int, ...]],
    is_tied: bool,
) -> dict[str, str]:
    """Returns the name in a folder of each converted tensor, from the conversion of arrays that hold their numbers."""
    names = dict(enumerate(shapes, start=2))  # a conversion may add tensors of zeros and ones
    numbers = {name: np.broadcast_to(np.float32(number), shapes[name]) for number, name in names.items()}
    converted = {name: int(array.flat[0]) for name, array in convert(numbers).items() if array.size}
    return {canonical_name(name, is_tied=is_tied): names[number] for name, number in converted.items() if number > 1}


def save(
    folder: str | Path,
    params: Mapping[str, Any],
    config: HeadConfig,
    architecture: str,
    labels: Sequence[str] | None = None,
    more: Mapping[str, Any] | None = None,
    special: Mapping[str, int] = MappingProxyType({"pad": 0}),
    family: str = "bert",
) -> None:
    """Writes config.json and model.safetensors for `from_pretrained` of transformers.

    Each file appears under its name only when it is complete.

    Args:
      folder: the folder; created if needed. Other files in it, such as vocab.txt, are kept.
      params: the parameters of our class for `architecture`; for "BertModel", those of `Bert` with its pooler, if it
        has one.
      config: its configuration.
      architecture: the class of BERT like the one that opens it: one of `BertModel`,
        `BertForPreTraining`, `BertForMaskedLM`, `BertForSequenceClassification`, `BertForTokenClassification`,
        `BertForMultipleChoice`, `BertForQuestionAnswering`; or "BertSum" or "BertSumAbs", whose encoder it opens.
      labels: the names of the classes by number; None for LABEL_0, LABEL_1, ...
      more: additional keys of config.json, which take precedence.
      special: the ids of the tokens "pad" and, for some families, "cls", "sep" and "mask".
      family: the name of the encoder's family.
    Raises:
      UserError: for an option that the family does not have.
    """
    of_family = families.find(family)
    heads = heads_of(params)
    _check_fields(config, architecture, of_family, heads)
    is_bare = architecture == "BertModel" and not heads  # transformers does without a pooler
    if not (is_bare or heads == of_family.heads_of(architecture)):
        raise UserError(
            "--mode=export",
            got=f"parameters {', '.join(sorted(params))}, for {architecture}",
            expected="those of a class of transformers",
            fix='override `export` of the task: `save({"bert": params["bert"]}, folder, "BertModel")` has the encoder',
        )
    if of_family.needs_token_types and not config.type_vocab_size:
        config = dataclasses.replace(config, type_vocab_size=1)
        zeros = {"token_type_embeddings": np.zeros((1, config.word_size), np.float32)}
        params = {**params, "bert": {**params["bert"], "embeddings": {**params["bert"]["embeddings"], **zeros}}}
    if of_family.pad_id not in (None, special["pad"]):
        refuse("id of padding in the vocabulary", special["pad"], f"{of_family.pad_id}, as in {of_family.label}")
    num_unused = special["pad"] + 1 if of_family.counts_from_padding else 0  # rows that transformers counts too
    config = dataclasses.replace(config, max_positions=config.max_positions + num_unused)
    tensors = offset_positions(disassemble(params), num_unused)
    values = {"model_type": of_family.name, **of_family.write_config(config)}
    values |= {"architectures": [of_family.class_name(architecture)], "dtype": "float32"}
    values |= {f"{theirs}_token_id": special.get(name) for theirs, name in of_family.tokens.items()}
    if "classifier.weight" in tensors:
        values |= _classes_json(architecture, len(tensors["classifier.weight"]), labels)
    values |= more or {}
    tensors = of_family.from_canonical(tensors, architecture)
    if architecture == "BertModel":
        tensors = {name.removeprefix(f"{of_family.base}."): array for name, array in tensors.items()}
    write_tensors(folder, tensors)
    write_json(Path(folder) / CONFIG_FILE, values)


def read_tensors(folder: Path, names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Returns the tensors of the weights, from safetensors files if they exist, otherwise from torch pickles.

    Args:
      folder: the folder.
      names: the names of the tensors to read, if they are there; empty for all.
    Raises:
      UserError: if there is no such file, or it is damaged.
    """
    readers: dict[str, Callable[[Path, Collection[str]], dict[str, np.ndarray]]] = {
        WEIGHTS_FILE: _read_safetensors,
        _TORCH_WEIGHTS_FILE: _read_torch,
    }
    for name, read in readers.items():
        if (folder / name).exists():
            return read(folder / name, names)
        index = folder / f"{name}.index.json"
        if index.exists():
            return {key: array for shard in _shards(index) for key, array in read(shard, names).items()}
    names = " or ".join(name + suffix for name in readers for suffix in ("", ".index.json"))
    fix = "convert other formats with save_pretrained(folder) of transformers"
    raise UserError(f"{folder}", got="no weights", expected=names, fix=fix)


def write_tensors(folder: str | Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes model.safetensors into a folder, and creates the folder if needed."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with completed(Path(folder) / WEIGHTS_FILE) as temporary:
        save_file(dict(tensors), temporary, metadata={"format": "pt"})


def write_json(path: Path, values: Any) -> None:
    """Writes a JSON file with sorted keys, like transformers."""
    with completed(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _check_fields(config: HeadConfig, architecture: str, family: Family, heads: set[str]) -> None:
    """Raises UserError for a value that the family does not have in transformers."""
    complete = family.heads_of(architecture)
    if complete is None or (architecture == "BertForPreTraining" and heads != complete):
        expected = f"bert, because {family.label} has no class like {architecture}"
        refuse("config key model.family", family.name, expected)
    for key, value in family.fixed.items():
        if getattr(config, key) != value:
            refuse(f"config key model.{key}", getattr(config, key), f"{value}, as in Hugging Face's {family.label}")


def _classes_json(architecture: str, count: int, labels: Sequence[str] | None) -> dict[str, Any]:
    names = [f"LABEL_{i}" for i in range(count)] if labels is None else list(labels)
    assert len(names) == len(set(names)) == count, names
    values: dict[str, Any] = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    if architecture == "BertForSequenceClassification":
        values["problem_type"] = PROBLEM_TYPES["regression" if count == 1 else "classification"]
    return values


def _read_safetensors(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, framework="numpy") as file:
            # By offset, so that the file is read from front to back.
            return {name: file.get_tensor(name) for name in file.offset_keys() if not names or name in names}
    except (SafetensorError, OSError) as error:
        fix = "download or export it again"
        raise UserError(f"{path}", got=error, expected="a complete safetensors file", fix=fix) from error


def _read_torch(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    from bertjax.interop.formats import torch_pickle

    tensors = torch_pickle.read_tensors(path)
    return {name: array for name, array in tensors.items() if not names or name in names}


def _shards(index: Path) -> list[Path]:
    shards = json_files.read_json(index, dict).get("weight_map")
    if not isinstance(shards, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in shards.values()
    ):
        fix = "download or export it again"
        raise UserError(f"{index}: weight_map", got=shards, expected="file names by tensor", fix=fix)
    return [index.with_name(name) for name in sorted(set(shards.values()))]
