"""Config keys that may differ from a trained run's when it is evaluated, used for prediction or exported."""

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
from bertjax.errors import UserError, did_you_mean

_log = logging.getLogger(__name__)

# Keys of `data` that name the splits to evaluate.
SOURCES = ("valid_source", "valid_target", "test_source", "test_target")
_TRAINING_SOURCES = ("source", "target")
# Keys that never change the result of training; each experiment adds its FREE_AFTER_TRAINING.
_ALWAYS = (
    "mesh",
    "model.attention_backend",
    "model.dtype",
    "data.on_bad_row",
    "data.workers",
    "data.prepared_dir",
    "data.beam",
)


def override(config: Mapping[str, Any], overrides: Mapping[str, Any], free: Sequence[str]) -> dict[str, Any]:
    """Returns a run's config with the values that the command line sets.

    Args:
      config: the run's config.
      overrides: values by dotted key. A str is parsed as on the command line.
      free: the experiment's keys that may differ after training. A key includes all keys below it.
    Raises:
      UserError: for a key that may not differ.
    """
    result: dict[str, Any] = copy.deepcopy(dict(config))
    known = list(dotted(config))
    for key, written in overrides.items():
        if not _is_below(key, (*_ALWAYS, *free)):
            allowed = (*_ALWAYS, *free)
            raise UserError(
                f"config key {key}",
                got=f"{written!r}, with --workdir of a trained run",
                expected="a key that may differ after training: " + ", ".join(allowed),
                fix="omit it, or train a run with it"
                if key in known
                else did_you_mean(key, (name for name in known if _is_below(name, allowed)), "correct the name"),
            )
        subtree, name = _place(result, key)
        subtree[name] = _parsed(written, subtree.get(name))
    return result


def with_settings_of(
    folder: Path, stated: Mapping[str, Any], config: Mapping[str, Any], overridden: Collection[str], free: Sequence[str]
) -> dict[str, Any]:
    """Returns a config with the settings of the folder in its `init_from`, and logs every difference.

    Args:
      folder: a run's folder or a published one, for messages.
      stated: the run's config, or the settings of the published folder.
      config: the config of a file in `configs/` and the command line.
      overridden: the keys that the command line sets, which win. Values of `data` also win if they are set, because
        they describe the files to read.
      free: the experiment's keys that may differ after training.
    """
    result: dict[str, Any] = copy.deepcopy(dict(config))
    before, values = (traverse_util.flatten_dict(json.loads(json.dumps(each)), sep=".") for each in (stated, config))
    for key in (key for key in values if key in before and before[key] != values[key] and _is_below(key, free)):
        if key in overridden or (key.startswith("data.") and values[key] is not None):
            _log.info("config key %s: %r; %s has %r", key, values[key], folder, before[key])
        else:
            _log.info("config key %s: %r, from %s; the config file has %r", key, before[key], folder, values[key])
            subtree, name = _place(result, key)
            subtree[name] = before[key]
    return result


def splits_to_score(
    config: Mapping[str, Any], sources: Mapping[str, str], *, reads_training: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each split to evaluate, "valid" or "test", with a config whose validation split it is.

    Args:
      config: the config.
      sources: the files of the splits, by key (see `SOURCES`); empty to split the training data as the config says.
      reads_training: whether to keep the sources of the training data.
    """
    emptied = SOURCES if reads_training else (*SOURCES, *_TRAINING_SOURCES)
    data = _without(config["data"], emptied)
    named = [split for split in ("valid", "test") if any(key.startswith(split) for key in sources)]
    for split in named or ["valid"]:
        own = {key.replace(split, "valid", 1): path for key, path in sources.items() if key.startswith(split)}
        yield split, {**config, "data": {**data, **own}}


def without_sources(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config without any source of rows."""
    return {**config, "data": _without(config["data"], (*SOURCES, *_TRAINING_SOURCES))}


def without_limits(config: Mapping[str, Any], overridden: Collection[str]) -> dict[str, Any]:
    """Returns a config that scores all rows, except where `overridden` names a limit."""
    result: dict[str, Any] = copy.deepcopy(dict(config))
    for subtree, prefix, key in ((result, "", "num_scored"), (result["data"], "data.", "valid_rows")):
        if key in subtree and prefix + key not in overridden:
            subtree[key] = 0  # no limit
    return result


def _without(data: Mapping[str, Any], sources: Collection[str]) -> dict[str, Any]:
    """The subtree `data` with these sources emptied."""
    return {**data, **{key: "" for key in sources if key in data}}


def _place(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The subtree that contains a dotted key, and the key's name in it."""
    *path, name = key.split(".")
    for part in path:
        config = config.setdefault(part, {})
        if not isinstance(config, dict):
            expected = "a key in config.json of the run"
            raise UserError(
                f"config key {key}",
                got=f"a key below {part}, which is a value",
                expected=expected,
                fix="correct the name",
            )
    return config, name


def _is_below(key: str, prefixes: Sequence[str]) -> bool:
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
