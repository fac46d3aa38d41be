"""Lets a run resume after the folder in its `init_from` is gone.

A run reads that folder for weights, config values and the vocabulary. Checkpoints replace the weights. The run's folder
has the rest: `init_from.json`, the config before and after `init_from` was resolved, and the vocabulary files.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from flax import traverse_util

from bertjax.errors import UserError
from bertjax.files import completed

_FILE = "init_from.json"
# The vocabulary keys of `data`, and the subfolder of the run for each if the run has two vocabularies.
_SIDES = {"vocab_file": "source", "target_vocab_file": "target"}


def is_gone(path: Path) -> bool:
    """Whether a path of weights or a vocabulary is gone. An empty folder, such as an unmounted disk, is gone too."""
    # A checkpoint of Google's may be named by its prefix; old folders of sentence-transformers have only subfolders.
    places = (path, Path(f"{path}.index"), *path.glob("*"), *path.glob("*/config.json"))
    return not any(place.is_file() for place in places)


def is_lost(config: Mapping[str, Any]) -> bool:
    """Whether a config names weights in `init_from` that are gone."""
    return bool(config.get("init_from")) and is_gone(Path(config["init_from"]))


def record(given: Mapping[str, Any], resolved: Mapping[str, Any], overridden: Collection[str]) -> dict[str, Any]:
    """Returns what `save` writes; configs have dotted keys.

    Args:
      given: the config before `init_from` was resolved.
      resolved: the config afterwards.
      overridden: the keys that the command line sets.
    """
    return {"given": _flat(given), "resolved": _flat(resolved), "overridden": sorted(overridden)}


def save(workdir: Path, record: Mapping[str, Any]) -> None:
    """Writes a record into a run's folder."""
    with completed(workdir / _FILE) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")


def restore(workdir: Path, given: Mapping[str, Any], overridden: Collection[str]) -> dict[str, Any]:
    """Resolves a config without the folder in its `init_from`.

    Args:
      workdir: the folder of a run that has begun.
      given: the config before `init_from` is resolved. A key that differs from the one that the run was started with
        has the value given here.
      overridden: the keys that the command line sets.
    Raises:
      UserError: if the run's folder does not hold what `init_from` determined.
    """
    before, result, known = _load(workdir, given["init_from"])
    now, newly_set = _flat(given), set(overridden) - known
    for key in before.keys() - now.keys():
        result.pop(key, None)
    for key, value in now.items():
        if key in newly_set or key not in before or before[key] != value:
            result[key] = value
    config: dict[str, Any] = traverse_util.unflatten_dict(result, sep=".")
    return config


def with_copies(config: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Returns a config for the data of a run. The run's folder replaces `init_from` and vocabularies that are gone."""
    data = dict(config["data"])
    for key, side in _SIDES.items():
        if data.get(key) and is_gone(Path(data[key])):
            data[key] = str(workdir / side if (workdir / side).is_dir() else workdir)
    return {**config, "data": data, **({"init_from": str(workdir)} if is_lost(config) else {})}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = traverse_util.flatten_dict(config, sep=".")
    return values


def _load(workdir: Path, init_from: str) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
    """The parts of a record: the config before, the config afterwards, and the keys that the command line set."""
    try:
        found = json.loads((workdir / _FILE).read_text())
        return dict(found["given"]), dict(found["resolved"]), set(found["overridden"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"config key init_from={init_from}",
            got=f"no such folder, and no readable {_FILE} in {workdir}",
            expected=f"the folder that the run was started from, or the {_FILE} that the run saved",
            fix=f"restore the folder, or start another run with --config.init_from={workdir}",
        ) from error
