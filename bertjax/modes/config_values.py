"""Changes of values in config trees: what the command line sets, what weights state, and sources of rows."""

import ast
import contextlib
import copy
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flax import traverse_util

from bertjax.config import dotted
from bertjax.contract import ConfigTree, FlatConfig
from bertjax.errors import UserError, did_you_mean
from bertjax.modes.request import SOURCES

_log = logging.getLogger(__name__)

_TRAINING_SOURCES = ("source", "target")
_MIXTURE = ("mixture", "phases")  # keys that name several training sources
# Keys that never change the result of training; each experiment adds its FREE_AFTER_TRAINING.
_ALWAYS = (
    *("mesh", "model.attention_backend", "model.dtype"),
    *("data.on_bad_row", "data.workers", "data.prepared_dir", "data.beam", "evaluations"),
)


def override(config: ConfigTree, overrides: FlatConfig, free: Sequence[str]) -> ConfigTree:
    """Returns a run's config with the values that the command line sets.

    Args:
      config: the run's config.
      overrides: values by dotted key. A str is parsed as on the command line.
      free: the experiment's keys that may differ after training. A key includes all keys below it.
    Raises:
      UserError: for a key that may not differ.
    """
    result = copy.deepcopy(dict(config))
    keys = list(dotted(config))
    allowed = (*_ALWAYS, *free)
    for key, written in overrides.items():
        if not is_below(key, allowed):
            raise UserError(
                f"config key {key}",
                got=f"{written!r}, for a trained run",
                expected="a key that may differ after training: " + ", ".join(allowed),
                fix="omit it, or train a run with it"
                if key in keys
                else did_you_mean(key, (name for name in keys if is_below(name, allowed)), "correct the name"),
            )
        subtree, name = place(result, key)
        subtree[name] = _parsed(written, subtree.get(name))
    return result


def with_settings(
    folder: Path, settings: FlatConfig, config: ConfigTree, overridden: Collection[str], free: Sequence[str]
) -> ConfigTree:
    """Returns a config with the settings of the folder in its `init_from`, and logs every difference.

    Args:
      folder: a run's folder or a published one, for messages.
      settings: its settings, by dotted key.
      config: the config of a file in `configs/` and the command line.
      overridden: the keys that the command line sets, which win. Values of `data` also win if they are set, because
        they describe the files to read.
      free: the experiment's keys that may differ after training.
    """
    result = copy.deepcopy(dict(config))
    before = json.loads(json.dumps(dict(settings)))
    values = flat(json.loads(json.dumps(config)))
    for key in (key for key in values if key in before and before[key] != values[key] and is_below(key, free)):
        if key in overridden or (key.startswith("data.") and values[key] is not None):
            _log.info("config key %s: %r; %s has %r", key, values[key], folder, before[key])
        else:
            _log.info("config key %s: %r, from %s; the config file has %r", key, before[key], folder, values[key])
            subtree, name = place(result, key)
            subtree[name] = before[key]
    return result


def splits_to_score(
    config: ConfigTree, sources: Mapping[str, str], *, reads_training: bool
) -> Iterator[tuple[str, ConfigTree]]:
    """Yields each split to evaluate, "valid" or "test", with a config whose validation split it is.

    Args:
      config: the config.
      sources: the files of the splits, by key (see `SOURCES`); empty to split the training data as the config says.
      reads_training: whether to keep the sources of the training data.
    """
    emptied = SOURCES if reads_training else (*SOURCES, *_TRAINING_SOURCES)
    data = _without(config["data"], emptied)
    splits = [split for split in ("valid", "test") if any(key.startswith(split) for key in sources)]
    for split in splits or ["valid"]:
        files = {key.replace(split, "valid", 1): path for key, path in sources.items() if key.startswith(split)}
        yield split, {**config, "data": {**data, **files}}


def without_sources(config: ConfigTree) -> ConfigTree:
    """Returns a config without any source of rows."""
    return {**config, "data": _without(config["data"], (*SOURCES, *_TRAINING_SOURCES))}


def to_mine(config: ConfigTree) -> ConfigTree:
    """Returns a config without sources to evaluate."""
    return {**config, "data": _without(config["data"], SOURCES)}


def without_limits(config: ConfigTree, overridden: Collection[str]) -> ConfigTree:
    """Returns a config that scores all rows, except where `overridden` names a limit."""
    result = copy.deepcopy(dict(config))
    for subtree, prefix, key in ((result, "", "num_scored"), (result["data"], "data.", "valid_rows")):
        if key in subtree and prefix + key not in overridden:
            subtree[key] = 0  # no limit
    return result


def _without(data: ConfigTree, sources: Collection[str]) -> ConfigTree:
    """The subtree `data` with these sources emptied."""
    mixture = {key: () for key in _MIXTURE if key in data and set(_TRAINING_SOURCES) <= set(sources)}
    return {**data, **{key: "" for key in sources if key in data}, **mixture}


def flat(config: ConfigTree) -> FlatConfig:
    """Returns the values of a config by dotted key."""
    return traverse_util.flatten_dict(config, sep=".")


def place(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Returns the subtree that contains a dotted key, and the key's name in it. Raises UserError if it is a value."""
    *path, name = key.split(".")
    for part in path:
        config = config.setdefault(part, {})
        if not isinstance(config, dict):
            raise UserError(
                f"config key {key}",
                got=f"a key below {part}, which is a value",
                expected="a key that --keys lists",
                fix="correct the name",
            )
    return config, name


def is_below(key: str, prefixes: Sequence[str]) -> bool:
    """Returns whether a dotted key is one of the prefixes or below one."""
    return any(f"{key}.".startswith(f"{prefix}.") for prefix in prefixes)


def _parsed(written: Any, before: Any) -> Any:
    """The value of a flag: a string if the key holds one, otherwise a Python literal if it parses."""
    if not isinstance(written, str) or isinstance(before, str):
        return written
    if written.lower() in ("true", "false"):
        return written.lower() == "true"
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(written)
    return written
