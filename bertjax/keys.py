"""The keys of config files, with default, allowed values and meaning: for `--keys` and docs/reference/keys.md.

Meanings come from the docstrings of the dataclasses that read the keys. If an experiment and the training package both
read a key, the description of the experiment counts.
"""

import dataclasses
import fnmatch
import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax import evaluations
from bertjax.config import constraints, defaults, keys, readers
from bertjax.errors import UserError, did_you_mean
from bertjax.experiments import find
from bertjax.training.config import InferenceConfig, TrainingConfig

# Of a config whose keys are not all there without a variant: the ones that have the rest.
_VARIANTS = {"translation": ("", "rnn")}
# An entry of a docstring's Attributes: names, and what is said of them until the next entry.
_ENTRY = re.compile(r"^ {2}(?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n {4}.*)*)", re.MULTILINE)
_WIDTH = 110


class Key(typing.NamedTuple):
    """A config key: its dotted name, default (None if other values determine it), allowed values and meaning."""

    name: str
    default: Any
    allowed: str
    meaning: str


def of_file(name: str) -> list[Key]:
    """Returns the keys of a file of `configs/`, in its order."""
    file = importlib.import_module(f"bertjax.configs.{name}")
    keys_by_name: dict[str, Key] = {}
    for variant in _VARIANTS.get(name, ("",)):
        for key in of_config(file.get_config(variant).to_dict()):
            keys_by_name.setdefault(key.name, key)
    return list(keys_by_name.values())


def of_config(config: Mapping[str, Any]) -> list[Key]:
    """Returns the keys of a config, in its order. Raises UserError for an unknown experiment."""
    config_class = find(config["experiment"]).Config
    trains = "optimizer" in config
    classes = [config_class, TrainingConfig, evaluations.reader(config)] if trains else [config_class, InferenceConfig]
    return list(_keys(config, classes, "", is_open=trains))


def text(of_configs: Mapping[str, Sequence[Key]], pattern: str) -> str:
    """Returns the keys whose names match a pattern, each with its default and its meaning.

    Args:
      of_configs: the keys of each config, by its name. Names are shown where the configs differ.
      pattern: a part of a name, in which * stands for any characters.
    Raises:
      UserError: if no key matches.
    """
    described: dict[Key, dict[str, list[str]]] = {}
    for config, config_keys in of_configs.items():
        for key in config_keys:
            defaults = described.setdefault(key._replace(default=None), {})
            defaults.setdefault("unset" if key.default is None else repr(key.default), []).append(config)
    matches = [key for key in described if fnmatch.fnmatchcase(key.name, f"*{pattern}*")]
    if not matches:
        fix = did_you_mean(pattern, [key.name for key in described], "omit the pattern to list all keys")
        raise UserError(f"--keys={pattern}", got="no such key", expected="a part of a key, such as data.*", fix=fix)
    lines = []
    for key in matches:
        defaults = described[key]
        of_all = [configs for configs in defaults.values() if len(configs) == len(of_configs)]
        values = [value if of_all else f"{value} ({', '.join(configs)})" for value, configs in defaults.items()]
        meaning = f"{key.meaning} [{key.allowed}]" if key.allowed else key.meaning
        lines += [*_wrapped(f"{key.name} = {'; '.join(values)}", ""), *_wrapped(meaning, "    ")]
    return "\n".join(lines)


def _wrapped(words: str, indent: str) -> list[str]:
    return textwrap.wrap(words, _WIDTH, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False)


def _keys(tree: Mapping[str, Any], classes: list[type], prefix: str, *, is_open: bool) -> Iterator[Key]:
    """Yields the keys of a subtree, which these dataclasses read.

    Args:
      tree: the subtree.
      classes: the dataclasses.
      prefix: the dotted name of the subtree, with a dot at its end.
      is_open: whether to include fields that the subtree lacks. Without training, those are keys of training.
    """
    classes = [reader for cls in classes for reader in readers(cls)]
    for key, value in {**(defaults(*classes) if is_open else {}), **tree}.items():
        hints = [typing.get_type_hints(cls)[key] for cls in classes if key in _fields(cls)]
        if isinstance(value, Mapping):
            typed = [cls for hint in hints for cls in _of_subtree(hint, value)]
            yield from _keys(value, typed, f"{prefix}{key}.", is_open=is_open)
        else:
            meanings = [_attributes(cls)[key] for cls in classes if key in _attributes(cls)]
            limits = [constraints(cls)[key].expected for cls in classes if key in constraints(cls)]
            default = None if isinstance(value, type) else value
            yield Key(prefix + key, default, limits[0] if limits else "", meanings[0] if meanings else "")


def _of_subtree(hint: Any, tree: Mapping[str, Any]) -> Iterator[type]:
    """The dataclass of a subtree; of a union, the one with the most keys of it."""
    kinds = (hint, *typing.get_args(hint))
    classes = [kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    if classes:
        yield max(classes, key=lambda cls: len(keys(cls) & set(tree)))


def _fields(reader: type) -> set[str]:
    return {field.name for field in dataclasses.fields(reader)}


def _attributes(reader: type) -> dict[str, str]:
    """What the docstrings of a dataclass and those that it extends say of each field."""
    meanings: dict[str, str] = {}
    for cls in reversed(reader.__mro__):
        # From Python 3.13 on the compiler removes the indentation.
        _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
        for entry in _ENTRY.finditer(section.partition("\n\n")[0]):
            meanings |= dict.fromkeys(entry["names"].split(", "), " ".join(entry["text"].split()))
    return meanings
