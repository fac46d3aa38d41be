"""Reads and writes what folders of sentence-transformers have in addition to an encoder, without torch.

These are the modules that make a vector of a text, its prompts, and its maximum length.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from bertjax.errors import UserError, did_you_mean
from bertjax.interop import json_files
from bertjax.interop.bert_tensors import Slot, as_float32, refuse, take
from bertjax.interop.folder_keys import (
    ACTIVATIONS,
    CROSS_ENCODER,
    MODULE,
    MODULES,
    MODULES_FILE,
    POOLING_FLAGS,
    SETTINGS,
    SETTINGS_FILE,
    TEXTS,
    texts_file,
)
from bertjax.interop.huggingface import CONFIG_FILE, model_folder, read_tensors, write_json, write_tensors
from bertjax.models.heads import POOLINGS, DenseConfig

_ORDER = re.compile("Transformer Pooling( Dense)*( Normalize)?")
# The names of the package's classes start with this. Those of a folder's own code do not.
_PACKAGE = "sentence_transformers."
# The classes of torch for what a `CrossEncoder` applies to its logits.
_SCORES = {"identity": "torch.nn.modules.linear.Identity", "sigmoid": "torch.nn.modules.activation.Sigmoid"}
_MAX_LENGTH = 2**31 - 1  # tokenizers without a limit have 10^30


class Sentences(NamedTuple):
    """How a text becomes a vector, in addition to the encoder."""

    pooling: str = "mean"  # see `bertjax.models.heads.pool`
    dense: tuple[DenseConfig, ...] = ()
    normalizes: bool = False  # whether vectors are scaled to length 1
    includes_prompt: bool = True  # whether `pooling` includes the tokens of a prompt
    input_size: int | None = None  # the size of the vectors that the first of `dense` maps; None without any
    prompts: Mapping[str, Any] = MappingProxyType({})  # texts that may precede a text, by name
    default_prompt: str | None = None  # the name of the prompt that precedes each text by default
    truncate_dim: int | None = None  # how many numbers of a vector are kept, from the first on; None for all

    def prompt(self, *names: str) -> str:
        """Returns the first prompt with one of these names; "" without any."""
        return next((self.prompts[name] or "" for name in names if name in self.prompts), "")


def read(folder: Path) -> Sentences | None:
    """Returns how a folder makes vectors of texts; None for a folder that is not of sentence-transformers.

    Raises:
      UserError: for an unsupported module, pooling or activation.
    """
    modules = _modules(folder)
    if not modules:
        return None
    configs = []
    for kind, module_folder in modules[1:]:
        path = module_folder / CONFIG_FILE
        # Early versions write no file for Normalize.
        config = {} if kind == "Normalize" and not path.exists() else json_files.read_json(path, dict)
        MODULES[kind].check(config, path)
        configs.append((kind, path, config))
    _check_settings(folder)
    _, path, config = configs[0]
    values = {"include_prompt": True, **config}
    flags = {key for key, value in values.items() if key.startswith("pooling_mode_") and value is True}
    names = POOLING_FLAGS | {key: key for key in flags - POOLING_FLAGS.keys()}
    # Newer versions write a name, or a list of names, instead of flags.
    poolings = values.get("pooling_mode", [name for key, name in names.items() if key in flags] or "mean")
    poolings = poolings if isinstance(poolings, list) else [poolings]
    if not poolings or not all(pooling in POOLINGS for pooling in poolings):
        refuse(f"{path}", " and ".join(map(str, poolings)), "poolings of " + ", ".join(POOLINGS))
    dense = [_read_dense(config, path) for kind, path, config in configs if kind == "Dense"]
    settings = _settings(folder)
    size = settings.get("truncate_dim")
    if size is not None and not (type(size) is int and size > 0):
        refuse(f"{folder / SETTINGS_FILE}: truncate_dim", repr(size), "a number of 1 or more")
    default_prompt, prompts = _prompts(folder)
    return Sentences(
        pooling="+".join(poolings),
        dense=tuple(config for _, config in dense),
        normalizes=modules[-1][0] == "Normalize",
        includes_prompt=json_files.fields(values, {"value": ("include_prompt", bool)}, path)["value"],
        input_size=dense[0][0] if dense else None,
        prompts=prompts,
        default_prompt=default_prompt,
        truncate_dim=size,
    )


def load_dense(folder: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of `bertjax.models.heads.SentenceDense`.

    Args:
      folder: a folder whose `Sentences.dense` the module has.
      like: the wanted parameters, or their shapes.
    Raises:
      UserError: if a file is missing or corrupt, or a tensor is missing, unknown or has another shape.
    """
    params = {}
    for number, path in enumerate(path for kind, path in _modules(folder) if kind == "Dense"):
        leaves = like[str(number)]
        source = f"{path}"
        tensors = {name: as_float32(array, f"{source}: {name}") for name, array in read_tensors(path).items()}
        slots = {"kernel": Slot(("linear.weight",), leaves["kernel"].shape[::-1], False, True)}
        if "bias" in leaves:
            slots["bias"] = Slot(("linear.bias",), leaves["bias"].shape, False, False)
        params[str(number)] = {name: take(tensors, slot, source) for name, slot in slots.items()}
        if tensors:
            refuse(f"{source}: tensors", ", ".join(sorted(tensors)), "only those of one linear map")
    return params


def save(
    folder: Path,
    sentences: Sentences,
    dense: Mapping[str, Any],
    sizes: tuple[int, int],
    prompts: Mapping[str, str],
    source: Path,
) -> None:
    """Writes the files that a folder of sentence-transformers has in addition to those of its encoder.

    Args:
      folder: a folder with an encoder.
      sentences: how the vectors of texts are made.
      dense: the parameters of `sentences.dense`.
      sizes: the size of the vectors of tokens, and the maximum number of tokens.
      prompts: texts that precede the texts, by name. That of the name "" precedes each text by default.
      source: a folder of sentence-transformers whose other prompts and similarity are kept.
    """
    names = sentences.pooling.split("+")
    size, length = sizes
    kinds = ("Transformer", "Pooling", *["Dense"] * len(sentences.dense), *["Normalize"] * sentences.normalizes)
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    modes: dict[str, Any] = {key: name in names for key, name in POOLING_FLAGS.items()}
    if names != [name for name in POOLING_FLAGS.values() if name in names]:  # flags have no order
        modes = {"pooling_mode": names}
    pooling = {"word_embedding_dimension": size, "include_prompt": sentences.includes_prompt, **modes}
    configs = {paths[1]: pooling}
    for number, (path, dense_config) in enumerate(zip(paths[2:], sentences.dense, strict=False)):
        leaves = {name: np.asarray(leaf, np.float32) for name, leaf in dense[str(number)].items()}
        tensors = {"linear.weight": np.ascontiguousarray(leaves["kernel"].T)}
        write_tensors(folder / path, tensors | ({"linear.bias": leaves["bias"]} if dense_config.bias else {}))
        activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == dense_config.activation)
        in_features, out_features = leaves["kernel"].shape
        configs[path] = {"in_features": in_features, "out_features": out_features, "bias": dense_config.bias}
        configs[path]["activation_function"] = activation
    for path, config in configs.items():
        (folder / path).mkdir(exist_ok=True)
        write_json(folder / path / CONFIG_FILE, config)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    settings = _prompts_json({**_prompts(source)[1], **prompts}) | {"similarity_fn_name": read_similarity(source)}
    settings |= {} if sentences.truncate_dim is None else {"truncate_dim": sentences.truncate_dim}
    write_json(folder / SETTINGS_FILE, settings)
    types = [f"{_PACKAGE}models.{kind}" for kind in kinds]
    of_modules = enumerate(zip(paths, types, strict=True))
    modules = [{"idx": number, "name": f"{number}", "path": path, "type": kind} for number, (path, kind) in of_modules]
    write_json(folder / MODULES_FILE, modules)


def _prompts_json(prompts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keys of prompts by name. That of the name "" becomes the default prompt."""
    texts = {name: text for name, text in prompts.items() if name}
    default = prompts.get("")
    if not default:
        return {"prompts": texts}
    name = next((name for name, text in texts.items() if text == default), "default")
    return {"default_prompt_name": name, "prompts": {**texts, name: default}}


def prompt_of(sentences: Sentences, name: str | None, source: Path) -> str:
    """Returns a prompt, which precedes each text; "" for none.

    Args:
      sentences: what `source` states.
      name: the name of the prompt; None for the default one.
      source: the folder, for messages.
    Raises:
      UserError: if there is no prompt of this name.
    """
    key = "default_prompt_name" if name is None else "prompt_name"
    name = sentences.default_prompt if name is None else name
    prompts = sentences.prompts
    if name is None:
        return ""
    if name not in list(prompts):
        expected = f"one of {', '.join(prompts)}" if prompts else "no name"
        expected += f", the prompts of {source}" if prompts else f": {source} has no prompts"
        raise UserError(
            key, got=repr(name), expected=expected, fix=did_you_mean(str(name), prompts, "correct the name")
        )
    text = prompts[name]
    return "" if text is None else str(json_files.fields(prompts, {"text": (name, str)}, source)["text"])


def read_length(folder: Path) -> int | None:
    """Returns the maximum tokens of a text, including special ones; None for all positions of the model.

    Folders of newer versions have it in the tokenizer's file only.

    Raises:
      UserError: for a value that is not an integer.
    """
    path = model_folder(folder) / "tokenizer_config.json"
    texts = _texts(folder), "max_seq_length"
    for (file, values), key in (texts, *(((path, _optional(path)), key) for key in ("model_max_length", "max_len"))):
        length = values.get(key)
        if length is not None and not (type(length) is int and length > _MAX_LENGTH):
            return int(json_files.fields(values, {"length": (key, int)}, file)["length"])
    return None


def read_similarity(folder: Path) -> str:
    """Returns the similarity of vectors that a folder states, such as "cosine" or "dot"; "cosine" by default."""
    return str(_settings(folder).get("similarity_fn_name") or "cosine")


def check_casing(folder: Path, lowercase: bool | None) -> None:
    """Raises UserError if texts are lowercased before a cased tokenizer reads them."""
    path, values = _texts(folder)
    if values.get("do_lower_case") and not lowercase:
        expected = "False, or a tokenizer that lowercases"
        raise UserError(f"{path}: do_lower_case", got=True, expected=expected, fix="use another folder")


def read_activation(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Returns what a `CrossEncoder` applies to its logits, "identity" or "sigmoid"; None if the folder states nothing.

    Version 6 writes it into a file of its own, version 4 and earlier ones into config.json under two different keys.

    Args:
      folder: the folder.
      config: the content of config.json.
    Raises:
      UserError: for another activation.
    """
    settings = config.get("sentence_transformers")
    of_version_4 = settings.get("activation_fn") if isinstance(settings, dict) else None
    activation = (
        _cross_encoder(folder).get("activation_fn")
        or of_version_4
        or config.get("sbert_ce_default_activation_function")
    )
    if not activation:
        return None
    name = str(activation).rpartition(".")[2].lower()
    if name not in _SCORES:
        refuse(f"{folder}: activation of scores", activation, " or ".join(_SCORES.values()))
    return name


def read_prompt(folder: Path) -> str:
    """Returns the text that a `CrossEncoder` of version 6 puts before the first text of each pair; "" for none."""
    default_prompt, prompts = _prompts(folder) if _cross_encoder(folder) else (None, {})
    return prompt_of(Sentences(prompts=prompts, default_prompt=default_prompt), None, folder)


def save_cross_encoder(folder: Path, activation: str, prompt: str) -> None:
    """Writes the files of a `CrossEncoder` with a prompt into the folder of its model. Only version 6 applies it."""
    settings = {"model_type": CROSS_ENCODER, "activation_fn": _SCORES[activation], **_prompts_json({"": prompt})}
    write_json(folder / SETTINGS_FILE, settings)
    write_json(folder / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
    module = {"idx": 0, "name": "0", "path": "", "type": f"{_PACKAGE}base.modules.transformer.Transformer"}
    write_json(folder / MODULES_FILE, [module])


def cross_encoder(activation: str) -> dict[str, Any]:
    """Returns the keys of config.json from which `CrossEncoder`, from version 4 on, knows its activation."""
    return {"sentence_transformers": {"activation_fn": _SCORES[activation]}}


def _cross_encoder(folder: Path) -> dict[str, Any]:
    """The settings of a `CrossEncoder` of version 6; empty for other folders."""
    settings = _settings(folder)
    if settings.get("model_type") != CROSS_ENCODER:
        return {}
    _check_settings(folder)
    return settings


def _check_settings(folder: Path) -> None:
    """Raises UserError for a setting of the package that is not supported."""
    SETTINGS.check(_settings(folder), folder / SETTINGS_FILE)
    path, values = _texts(folder)
    TEXTS.check(values, path)


def _settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of the package, which reads them only in a folder with modules."""
    return _optional(folder / SETTINGS_FILE) if (folder / MODULES_FILE).exists() else {}


def _texts(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Returns the file of the settings of texts, and its content."""
    path = texts_file(model_folder(folder))
    return path, _optional(path)


def _optional(path: Path) -> dict[str, Any]:
    """Returns the content of a file, or {} if there is none."""
    return json_files.read_json(path, dict) if path.exists() else {}


def _prompts(folder: Path) -> tuple[Any, dict[str, str]]:
    """Returns the name of the default prompt, and all prompts by name."""
    path = folder / SETTINGS_FILE
    values = {"prompts": {}, **_settings(folder)}
    prompts = json_files.fields(values, {"all": ("prompts", dict)}, path)["all"]
    texts = {name: "" if text is None else text for name, text in prompts.items()}
    json_files.fields(texts, {name: (name, str) for name in texts}, path)
    name = values.get("default_prompt_name")
    # Version 6 has empty prompts of these names.
    return None if name in ("query", "document") and name not in texts else name, texts


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Returns the kinds of the modules and their folders, none for a `CrossEncoder`.

    Raises:
      UserError: for unsupported modules.
    """
    path = folder / MODULES_FILE
    if not path.exists():
        return []
    modules = []
    names = set()
    for number, module in enumerate(json_files.read_json(path, list)):
        values = {"path": "", "name": f"{number}", **(module if isinstance(module, dict) else {})}
        fields = json_files.fields(values, {key: (key, str) for key in MODULE.applied}, path)
        is_foreign = number and not fields["type"].startswith(_PACKAGE)
        modules.append((fields["type"] if is_foreign else fields["type"].rpartition(".")[2], folder / fields["path"]))
        names.add(fields["name"])
    kinds = [kind for kind, _ in modules]
    if len(names) < len(modules):
        refuse(f"{path}: name", "a repeated name", "different names")
    if _cross_encoder(folder):
        if kinds != ["Transformer"]:
            refuse(f"{path}", ", ".join(kinds), "Transformer, the only module of a cross-encoder with one")
        return []
    if not _ORDER.fullmatch(" ".join(kinds)):
        expected = "Transformer, Pooling, any number of Dense, and Normalize or none, in this order"
        refuse(f"{path}", ", ".join(kinds), expected)
    return modules


def _read_dense(config: Mapping[str, Any], path: Path) -> tuple[int, DenseConfig]:
    """Returns the size of the vectors that a module `Dense` maps, and its config."""
    raw = {"bias": True, "activation_function": next(iter(ACTIVATIONS)), **config}
    keys = {"in_features": int, "out_features": int, "bias": bool, "activation_function": str}
    values = json_files.fields(raw, {key: (key, kind) for key, kind in keys.items()}, path)
    activation = ACTIVATIONS[values["activation_function"]]
    return values["in_features"], DenseConfig(values["out_features"], activation, values["bias"])
