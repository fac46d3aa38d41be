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
from bertjax.interop.huggingface import CONFIG_FILE, model_folder, read_tensors, write_json, write_tensors
from bertjax.models.heads import POOLINGS, DenseConfig

_MODULES_FILE = "modules.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
_LENGTH_FILE = "sentence_bert_config.json"
_ORDER = re.compile("Transformer Pooling( Dense)*( Normalize)?")
# Flags of pooling in folders of earlier versions, in the order in which their vectors are concatenated.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# The classes of torch for the activations of `DenseConfig`.
_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
# The classes of torch for what a `CrossEncoder` applies to its logits.
_SCORES = {"identity": "torch.nn.modules.linear.Identity", "sigmoid": "torch.nn.modules.activation.Sigmoid"}
_VECTOR = "sentence_embedding"  # what sentence-transformers calls the vector of a text
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
    path = modules[1][1] / CONFIG_FILE
    values = {"include_prompt": True, **json_files.read_json(path, dict)}
    flags = {key for key, value in values.items() if key.startswith("pooling_mode_") and value is True}
    names = _FLAGS | {key: key for key in flags - _FLAGS.keys()}
    # Newer versions write a name, or a list of names, instead of flags.
    poolings = values.get("pooling_mode", [name for key, name in names.items() if key in flags] or "mean")
    poolings = poolings if isinstance(poolings, list) else [poolings]
    if not poolings or not set(poolings) <= set(POOLINGS):
        refuse(f"{path}", " and ".join(map(str, poolings)), "poolings of " + ", ".join(POOLINGS))
    dense = [_read_dense(module_folder / CONFIG_FILE) for kind, module_folder in modules if kind == "Dense"]
    default_prompt, prompts = _prompts(folder)
    return Sentences(
        pooling="+".join(poolings),
        dense=tuple(config for _, config in dense),
        normalizes=modules[-1][0] == "Normalize",
        includes_prompt=json_files.fields(values, {"value": ("include_prompt", bool)}, path)["value"],
        input_size=dense[0][0] if dense else None,
        prompts=prompts,
        default_prompt=default_prompt,
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
      source: a folder of sentence-transformers whose other prompts are kept.
    """
    names = sentences.pooling.split("+")
    size, length = sizes
    kinds = ("Transformer", "Pooling", *["Dense"] * len(sentences.dense), *["Normalize"] * sentences.normalizes)
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    modes: dict[str, Any] = {key: name in names for key, name in _FLAGS.items()}
    if names != [name for name in _FLAGS.values() if name in names]:  # flags have no order
        modes = {"pooling_mode": names}
    pooling = {"word_embedding_dimension": size, "include_prompt": sentences.includes_prompt, **modes}
    configs = {paths[1]: pooling}
    for number, (path, dense_config) in enumerate(zip(paths[2:], sentences.dense, strict=False)):
        leaves = {name: np.asarray(leaf, np.float32) for name, leaf in dense[str(number)].items()}
        tensors = {"linear.weight": np.ascontiguousarray(leaves["kernel"].T)}
        write_tensors(folder / path, tensors | ({"linear.bias": leaves["bias"]} if dense_config.bias else {}))
        activation = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == dense_config.activation)
        in_features, out_features = leaves["kernel"].shape
        configs[path] = {"in_features": in_features, "out_features": out_features, "bias": dense_config.bias}
        configs[path]["activation_function"] = activation
    for path, config in configs.items():
        (folder / path).mkdir(exist_ok=True)
        write_json(folder / path / CONFIG_FILE, config)
    write_json(folder / _LENGTH_FILE, {"max_seq_length": length, "do_lower_case": False})
    all_prompts = {**_prompts(source)[1], **{name: text for name, text in prompts.items() if name}}
    settings: dict[str, Any] = {"prompts": all_prompts}
    if default := prompts.get(""):
        name = next((name for name, text in all_prompts.items() if text == default), "default")
        settings = {"default_prompt_name": name, "prompts": {**all_prompts, name: default}}
    write_json(folder / _PROMPTS_FILE, settings)
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    of_modules = enumerate(zip(paths, types, strict=True))
    modules = [{"idx": number, "name": f"{number}", "path": path, "type": kind} for number, (path, kind) in of_modules]
    write_json(folder / _MODULES_FILE, modules)


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
    inside = model_folder(folder)
    for path, key in ((_text_file(inside), "max_seq_length"), (inside / "tokenizer_config.json", "model_max_length")):
        values = json_files.read_json(path, dict) if path.exists() else {}
        length = values.get(key)
        if length is not None and not (type(length) is int and length > _MAX_LENGTH):
            return int(json_files.fields(values, {"length": (key, int)}, path)["length"])
    return None


def read_similarity(folder: Path) -> str:
    """Returns the similarity of vectors that a folder states, such as "cosine" or "dot"; "cosine" by default."""
    path = folder / _PROMPTS_FILE
    return str((json_files.read_json(path, dict) if path.exists() else {}).get("similarity_fn_name") or "cosine")


def lowercases(folder: Path) -> bool:
    """Returns whether texts are lowercased before the tokenizer reads them."""
    path = _text_file(model_folder(folder))
    return path.exists() and bool(json_files.read_json(path, dict).get("do_lower_case"))


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


def cross_encoder(activation: str) -> dict[str, Any]:
    """Returns the keys of config.json from which `CrossEncoder`, from version 4 on, knows its activation."""
    return {"sentence_transformers": {"activation_fn": _SCORES[activation]}}


def _cross_encoder(folder: Path) -> dict[str, Any]:
    """The settings of a `CrossEncoder` of version 6; empty for other folders."""
    path = folder / _PROMPTS_FILE
    values: dict[str, Any] = json_files.read_json(path, dict) if path.exists() else {}
    return values if values.get("model_type") == "CrossEncoder" else {}


def _text_file(folder: Path) -> Path:
    """The file of the settings of texts, whose name in early versions has the family of the encoder."""
    return min(folder.glob("sentence_*_config.json"), default=folder / _LENGTH_FILE)


def _prompts(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Returns the name of the default prompt, and all prompts by name."""
    path = folder / _PROMPTS_FILE
    values = {"prompts": {}, **(json_files.read_json(path, dict) if path.exists() else {})}
    return values.get("default_prompt_name"), json_files.fields(values, {"all": ("prompts", dict)}, path)["all"]


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Returns the kinds of the modules and their folders, none for a `CrossEncoder`.

    Raises:
      UserError: for unsupported modules.
    """
    path = folder / _MODULES_FILE
    if not path.exists() or _cross_encoder(folder):
        return []
    modules = []
    for module in json_files.read_json(path, list):
        values = {"path": "", **(module if isinstance(module, dict) else {})}
        fields = json_files.fields(values, {key: (key, str) for key in ("type", "path")}, path)
        modules.append((fields["type"].rpartition(".")[2], folder / fields["path"]))
    kinds = [kind for kind, _ in modules]
    if not _ORDER.fullmatch(" ".join(kinds)):
        expected = "Transformer, Pooling, any number of Dense, and Normalize or none, in this order"
        refuse(f"{path}", ", ".join(kinds), expected)
    return modules


def _read_dense(path: Path) -> tuple[int, DenseConfig]:
    """Returns the size of the vectors that a module `Dense` maps, and its config."""
    raw = {"bias": True, "activation_function": next(iter(_ACTIVATIONS)), **json_files.read_json(path, dict)}
    keys = {"in_features": int, "out_features": int, "bias": bool, "activation_function": str}
    values = json_files.fields(raw, {key: (key, kind) for key, kind in keys.items()}, path)
    allowed = {"activation_function": tuple(_ACTIVATIONS), "use_residual": (None, False)}
    allowed |= dict.fromkeys(("module_input_name", "module_output_name"), (None, _VECTOR))
    for key, choices in allowed.items():
        if raw.get(key) not in choices:
            refuse(f"{path}: {key}", raw[key], "one of " + ", ".join(map(str, choices)))
    activation = _ACTIVATIONS[values["activation_function"]]
    return values["in_features"], DenseConfig(values["out_features"], activation, values["bias"])
