"""What a run keeps in its folder of its config and of where it began, and what may change when it is started again."""

import contextlib
import fcntl
import functools
import json
import os
import platform
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from flax import traverse_util

from bertjax import distributed
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.runs.checkpoints import has_checkpoint

# These say where and how often, on what, with how much memory, and of what to predict; none changes what is learned.
_MAY_CHANGE = (
    "log_every",
    "evaluate_every",
    "num_epochs",  # what follows from these two is compared
    "warmup_fraction",
    "mesh",
    "checkpoint",
    "model.remat",
    "model.scan_layers",
    "data.workers",
    "data.prepared_dir",
    "data.beam",
    "selection.min_words",
)
# Those that figures may depend on.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint", "tokenizers")


@contextlib.contextmanager
def alone(workdir: Path) -> Iterator[None]:
    """Keeps other trainings out of a folder; none of them where its file system has no locks.

    Deletes a new folder if a UserError ends the run before its config is saved or data are prepared.

    Raises:
      UserError: there is one already.
    """
    with contextlib.ExitStack() as held:
        distributed.on_first_process(lambda: _lock(workdir, held))
        yield


def _lock(workdir: Path, held: contextlib.ExitStack) -> None:
    """Locks a folder for as long as its file is open, which is left to `held`."""
    is_new = not workdir.exists()
    workdir.mkdir(parents=True, exist_ok=True)
    file = held.enter_context((workdir / "lock").open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            f"--workdir={workdir}",
            got="a folder in which another training is going on",
            expected="one at a time",
            fix="wait for it or stop it, or choose another --workdir; processes that shall train together have to be "
            "joined, by --distributed=on with the address of the first",
        ) from error
    except OSError:
        pass
    if is_new:
        held.push(functools.partial(_discard, workdir))


def _discard(workdir: Path, kind: type[BaseException] | None, *_: object) -> None:
    """Deletes a folder without a config or prepared data if a UserError leaves the block."""
    kept = (workdir / "config.json").exists() or next(workdir.rglob("manifest.json"), None)  # of prepared data
    if kind and issubclass(kind, UserError) and not kept:
        shutil.rmtree(workdir, ignore_errors=True)


def check_config(workdir: Path, config: Mapping[str, Any], open_keys: Collection[str] = ()) -> None:
    """Raises UserError if a run of another config has begun in the folder, and names the keys that differ.

    Args:
      workdir: the folder.
      config: the config of the run that is to begin or to go on.
      open_keys: its dotted keys whose values are not known yet, which are not compared.
    """
    if has_begun(workdir):
        flat = (traverse_util.flatten_dict(each, sep=".") for each in (load_config(workdir), config))
        old, new = ({key: value for key, value in each.items() if key not in open_keys} for each in flat)
        differing = differences(old, json.loads(json.dumps(new)))
        if differing:
            raise UserError(
                f"--workdir={workdir}",
                got="a run of another config: " + "; ".join(differing),
                expected="an empty folder, or a run of the same config to go on with",
                fix="choose another --workdir, or start with the config that the run had",
            )


def lasting(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config, by dotted keys, but for those that may change in a run's folder."""
    values = traverse_util.flatten_dict(config, sep=".")
    return {k: v for k, v in values.items() if not any((k + ".").startswith(free + ".") for free in _MAY_CHANGE)}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What is different in the lasting values of two configs, in words.

    A key that one of them lacks came later than that run, which did what the key does when it is off: False, 0, "", ().
    """
    one, two = lasting(old), lasting(new)
    off = {key for key in one.keys() ^ two.keys() if not one.get(key) and not two.get(key)}
    return [
        f"{key}: {one.get(key)!r} there, {two.get(key)!r} now"
        for key in sorted((one.keys() | two.keys()) - off)
        if one.get(key) != two.get(key)
    ]


def save_config(workdir: Path, config: Mapping[str, Any], free_keys: Collection[str] = ()) -> None:
    """Writes `config.json`. Raises UserError as `check_config` does, but for dotted keys that may differ."""
    check_config(workdir, config, free_keys)
    workdir.mkdir(parents=True, exist_ok=True)
    with completed(workdir / "config.json") as partial:
        partial.write_text(json.dumps(config, indent=2) + "\n")


def save_rows(workdir: Path, report: Mapping[str, Any]) -> None:
    """Writes `rows.json`: the counts of the prepared rows, if there are any."""
    if report:
        with completed(workdir / "rows.json") as partial:
            partial.write_text(json.dumps(report, indent=1) + "\n")


def save_environment(workdir: Path, started: Mapping[str, Any]) -> None:
    """Writes `environment.json`: how the run was started first, from which commit, in which versions, on which devices.

    `started` holds the fields of `Request.started` and "parameters", the size of the model.
    """
    path = workdir / "environment.json"
    if path.exists() and _has_begun(workdir):
        return
    environment = {
        **started,
        "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "devices": Counter(f"{device.device_kind} ({device.platform})" for device in jax.devices()),
        "processes": jax.process_count(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        **({"commit": commit} if (commit := source_commit(Path(__file__))) else {}),
    }
    with completed(path) as partial:
        partial.write_text(json.dumps(environment, indent=1) + "\n")


def source_commit(path: Path) -> str:
    """The commit of the Git repository that tracks a file, with "-dirty" if tracked files differ; "" without one."""
    git = ["git", "--no-optional-locks", "-C", str(path.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", path.name], check=True, capture_output=True)
        described = [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def has_begun(workdir: Path) -> bool:
    """Whether there is a run that has done any update; one that stopped before may start anew with another config."""
    return (workdir / "config.json").exists() and _has_begun(workdir)


def _has_begun(workdir: Path) -> bool:
    """Whether a run has done any update; one that stopped before, over a mistake, may start anew without it."""
    log = workdir / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return has_checkpoint(workdir) or any(not line.startswith('{"step": 0,') for line in lines)


def check_text(workdir: Path, fingerprint: str) -> None:
    """Writes down which prepared text the run has begun with, or checks that it is the same.

    Raises:
      UserError: the files of `data.source` have changed since, and with them the vocabulary and the rows.
    """
    path = workdir / "text_fingerprint"
    before = path.read_text().strip() if path.exists() and _has_begun(workdir) else fingerprint
    if before != fingerprint:
        raise UserError(
            f"the text of --workdir={workdir}",
            got=f"prepared text {fingerprint}",
            expected=f"{before}, which the run began with",
            fix="restore the files of data.source (or the versions of Python and nltk), or choose another --workdir",
        )
    if not path.exists() or path.read_text().strip() != fingerprint:
        with completed(path) as partial:
            partial.write_text(fingerprint + "\n")


def load_config(workdir: Path) -> dict[str, Any]:
    """Reads a run's config. Raises UserError if the folder is not a run's."""
    path = workdir / "config.json"
    try:
        config = json.loads(path.read_text())
        if not isinstance(config, dict):
            raise ValueError(f"a JSON {type(config).__name__}")
        return config
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"--workdir={workdir}",
            got=f"no readable config.json ({error})",
            expected="the folder of a run",
            fix="train it first, with --config=... and this --workdir, or correct the path",
        ) from error
