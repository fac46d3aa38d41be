"""Runs whose `init_from` or vocabulary is gone: the run's folder has copies, and a record of what they determined."""

import json
from collections.abc import Collection
from pathlib import Path

from flax import traverse_util

from bertjax.contract import ConfigTree, Record
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.modes.config_values import flat

_RECORD = "init_from.json"
# The vocabulary keys of `data`, and the subfolder of the run for each if the run has two vocabularies.
_SIDES = {"vocab_file": "source", "target_vocab_file": "target"}


def is_gone(path: Path) -> bool:
    """Whether a path of weights or a vocabulary is gone. An empty folder, such as an unmounted disk, is gone too."""
    # A checkpoint of Google's may be named by its prefix; old folders of sentence-transformers have only subfolders.
    places = (path, Path(f"{path}.index"), *path.glob("*"), *path.glob("*/config.json"))
    return not any(place.is_file() for place in places)


def is_lost(config: ConfigTree) -> bool:
    """Whether a config names weights in `init_from` that are gone."""
    return bool(config.get("init_from")) and is_gone(Path(config["init_from"]))


def record_of(config: ConfigTree, resolved: ConfigTree, overridden: Collection[str]) -> Record:
    """What `save_record` writes: the config before and after `init_from`, and the keys that the command line sets."""
    return {"given": flat(config), "resolved": flat(resolved), "overridden": sorted(overridden)}


def save_record(workdir: Path, record: Record) -> None:
    """Writes into a run's folder what `init_from` determined, so that the run can resume after that folder is gone."""
    with completed(workdir / _RECORD) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")


def restored(workdir: Path, config: ConfigTree, overridden: Collection[str]) -> ConfigTree:
    """Resolves a config without the folder in its `init_from`.

    Args:
      workdir: the folder of a run that has begun.
      config: the config before `init_from` is resolved. A key that differs from the one that the run was started with
        has the value in `config`.
      overridden: the keys that the command line sets.
    Raises:
      UserError: if the run's folder does not hold what `init_from` determined.
    """
    try:
        record = json.loads((workdir / _RECORD).read_text())
        before = dict(record["given"])
        result = dict(record["resolved"])
        earlier_overrides = set(record["overridden"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got=f"no such folder, and no readable {_RECORD} in {workdir}",
            expected=f"the folder that the run was started from, or the {_RECORD} that the run saved",
            fix=f"restore the folder, or start another run with --config.init_from={workdir}",
        ) from error
    now = flat(config)
    newly_set = set(overridden) - earlier_overrides
    for key in before.keys() - now.keys():
        result.pop(key, None)
    for key, value in now.items():
        if key in newly_set or key not in before or before[key] != value:
            result[key] = value
    return traverse_util.unflatten_dict(result, sep=".")


def with_copies(config: ConfigTree, workdir: Path) -> ConfigTree:
    """The config for the data of a run. The run's folder replaces `init_from` and vocabularies that are gone."""
    data = dict(config["data"])
    for key, side in _SIDES.items():
        if data.get(key) and is_gone(Path(data[key])):
            copies = (workdir / side, workdir / "data" / side, workdir)  # the second has no learned words
            data[key] = str(next(copy for copy in copies if copy.is_dir()))
            data.pop("add_tokens", None)  # the copy has them
    return {**config, "data": data, **({"init_from": str(workdir)} if is_lost(config) else {})}
