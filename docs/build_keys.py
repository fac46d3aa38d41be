"""Rebuilds keys.md: of each config file the keys, their defaults, and what the dataclasses that read them say of them.

    python -m docs.build_keys

A subtree that the experiment takes as a mapping is read by the dataclasses within its reach that fit its keys best.
Of a key that the training wing reads too, what the experiment says of it counts.
"""

import dataclasses
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.config import constraints
from bertjax.files import completed
from bertjax.training.config import InferenceConfig, TrainingConfig

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/keys.md"
CONFIGS = tuple(
    path.stem for path in sorted((ROOT / "configs").glob("*.py")) if "\ndef get_config(" in path.read_text()
)
# Of a config whose keys are not all there without a variant: the ones that have the rest.
_VARIANTS = {"translation": ("", "rnn")}
_HEAD = """# The keys of the configs

The keys of every config file. "Default" is the value without a variant. A key with no default follows from `init_from`,
the size or the data, unless its meaning says otherwise. "Allowed" is the constraint checked on each key alone; others
depend on several keys. Each key is a flag: `--config.data.seq_len=128`.
`python -m docs.build_keys` writes this page from the code.
"""
# An entry of a docstring's Attributes: names, and what is said of them until the next entry.
_ENTRY = re.compile(r"^ {2}(?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n {4}.*)*)", re.MULTILINE)


class Key(typing.NamedTuple):
    """A line of a table: the dotted key, its default, the values allowed by its type's constraint, its meaning."""

    name: str
    default: Any
    allowed: str
    meaning: str


def main() -> None:
    """Writes the page."""
    with completed(PAGE) as partial:
        partial.write_text(page())


def page() -> str:
    """The whole page, in Markdown."""
    return _HEAD + "".join(f"\n## configs/{name}.py\n\n{_table(keys(name))}" for name in CONFIGS)


def keys(name: str) -> list[Key]:
    """The keys of a config file."""
    found: dict[str, Key] = {}
    for variant in _VARIANTS.get(name, ("",)):
        config = importlib.import_module(f"bertjax.configs.{name}").get_config(variant).to_dict()
        module = importlib.import_module(f"bertjax.experiments.{config['experiment']}")
        training = TrainingConfig if "optimizer" in config else InferenceConfig
        for key in _keys(config, [module.Config, training], _reach(module), ""):
            found.setdefault(key.name, key)
    return list(found.values())


def _keys(tree: Mapping[str, Any], readers: list[type], reach: list[type], prefix: str) -> Iterator[Key]:
    """Those of a subtree, which `readers` read."""
    for key, value in tree.items():
        of_key = [reader for reader in readers if key in _fields(reader)]
        if isinstance(value, Mapping):
            hints = [typing.get_type_hints(reader)[key] for reader in of_key]
            typed = [hint for hint in hints if dataclasses.is_dataclass(hint)]
            yield from _keys(value, typed or _fitting(value, reach), reach, f"{prefix}{key}.")
        else:
            reader = next((reader for reader in of_key if key in _attributes(reader)), None)
            constraint = constraints(reader).get(key) if reader else None
            meaning = _attributes(reader)[key] if reader else ""
            yield Key(prefix + key, value, constraint.expected if constraint else "", meaning)


def _reach(module: types.ModuleType) -> list[type]:
    """The dataclasses of an experiment, and of the modules that it takes something from."""
    near = {module.__name__}
    for value in vars(module).values():
        near.add(value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", ""))
    ours = [sys.modules[name] for name in sorted(filter(None, near)) if name.startswith(("bertjax.", "experiments."))]
    found = {id(value): value for each in ours for value in vars(each).values() if isinstance(value, type)}
    return [value for value in found.values() if dataclasses.is_dataclass(value)]


def _fitting(tree: Mapping[str, Any], reach: list[type]) -> list[type]:
    """Those that have keys of the subtree, the ones first of which the most fields are keys of it."""

    def share(reader: type) -> float:
        return len(_fields(reader) & set(tree)) / len(_fields(reader))

    return sorted((reader for reader in reach if share(reader)), key=share, reverse=True)


def _fields(reader: type) -> set[str]:
    return {field.name for field in dataclasses.fields(reader)}


def _attributes(reader: type) -> dict[str, str]:
    """What the docstrings of a dataclass and those that it extends say of each field."""
    found: dict[str, str] = {}
    for cls in reversed(reader.__mro__):
        # From Python 3.13 on the compiler removes the indentation.
        _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
        for entry in _ENTRY.finditer(section.partition("\n\n")[0]):
            found |= dict.fromkeys(entry["names"].split(", "), " ".join(entry["text"].split()))
    return found


def _table(found: list[Key]) -> str:
    cells = [
        (f"`{key.name}`", "" if key.default is None else f"`{key.default!r}`", key.allowed, key.meaning)
        for key in found
    ]
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join(["| key | default | allowed | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


if __name__ == "__main__":
    main()
