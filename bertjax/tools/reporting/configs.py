"""Compares configs key by key."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_MISSING = "–"
_FLAG = re.compile(r"--?config\.([^=]+)")


class Row(NamedTuple):
    """A config key with its values in one or several configs.

    Attributes:
      key: the dotted key.
      values: the value in each config, as JSON; a dash if the config lacks the key.
      differs: whether the values differ.
    """

    key: str
    values: tuple[str, ...]
    differs: bool


def compared(configs: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Returns a row for each key of the configs, in the order of the configs.

    >>> [tuple(row) for row in compared({"a": {"x": {"y": 1}}, "b": {"x": {"y": 2}}})]
    [('x.y', ('1', '2'), True)]
    """
    flat = [flattened(config) for config in configs.values()]
    rows = []
    for key in dict.fromkeys(key for config in flat for key in config):
        values = tuple(json.dumps(config[key], ensure_ascii=False) if key in config else _MISSING for config in flat)
        rows.append(Row(key, values, len(set(values)) > 1))
    return rows


def set_keys(command: Sequence[str]) -> tuple[str, ...]:
    """Returns the dotted keys that the flags of a command set.

    >>> set_keys(["launch.py", "--config=configs/tagging.py", "--config.seed=1", "--config.data.source", "file"])
    ('seed', 'data.source')
    """
    flags = (_FLAG.match(word) for word in command)
    return tuple(flag[1] for flag in flags if flag)


def flattened(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the values of a config by dotted key. An empty subtree is a value."""
    if not isinstance(tree, Mapping) or (prefix and not tree):
        return {prefix: tree}
    return {k: v for key, value in tree.items() for k, v in flattened(value, f"{prefix}.{key}".strip(".")).items()}
