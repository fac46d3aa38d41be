"""Checkpoints of runs, the only module that imports orbax: atomic, verified when they are read.

Each step is a folder `checkpoints/STEP` with the items `params`, `opt_state` and `meta`, and `manifest.json`,
the digest of every file of these. What a step scored stands in the run's `metrics.jsonl`, and only there.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import traverse_util
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.errors import UserError, choice
from bertjax.files import read_records

_log = logging.getLogger(__name__)

_ITEMS = ("params", "opt_state", "meta")
_MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept.

    Attributes:
      save_every: steps between checkpoints; the last step has one in any case.
      keep: how many of the latest are kept.
      best_metric: also keep the best by this metric ("valid/masked_lm_loss"), of those saved at a step that
        was evaluated too; empty to keep the latest only.
      best_mode: whether the "min" or the "max" is best.
    """

    save_every: int
    keep: int
    best_metric: str
    best_mode: str

    def __post_init__(self) -> None:
        choice(self.best_mode, ("min", "max"), "checkpoint.best_mode")
        if self.save_every < 1 or self.keep < 1:
            raise UserError(
                "config keys checkpoint.{save_every,keep}",
                got=(self.save_every, self.keep),
                expected="at least 1 each",
                fix="keep at least the latest checkpoint, or nothing could be resumed",
            )


class _Manager(ocp.CheckpointManager):
    """Leaves preemption to the loop: two that ask JAX's one notice, with counts of their own, would miss it."""

    def reached_preemption(self, step: int) -> bool:
        return False


class Checkpoints:
    """The checkpoints of a run, while it trains.

    Attributes:
      seconds_waited: how long the run has stood still for saves.
    """

    def __init__(self, workdir: Path, config: CheckpointConfig) -> None:
        """Args: the run's folder, shared by all processes; what to keep."""
        self._folder, self._config = _folder_of(workdir), config
        self._manager = _Manager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                save_decision_policy=ocp.checkpoint_managers.FixedIntervalPolicy(1),
                async_options=ocp.AsyncOptions(post_finalization_callback=self._write_manifest),
                cleanup_tmp_directories=True,
            ),
        )
        self._best = _agreed(_best(workdir, config.best_metric, config.best_mode))
        self.seconds_waited = 0.0

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def latest_step(self) -> int | None:
        """The last step that was saved."""
        return self._manager.latest_step()

    def save(self, step: int, params: Any, opt_state: Any) -> None:
        """Starts to save a step; returns when the arrays may be overwritten.

        Args:
          step: updates done.
          params, opt_state: trees of arrays.
        """
        began = time.perf_counter()
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            opt_state=ocp.args.StandardSave(opt_state),
            meta=ocp.args.JsonSave({"step": step, "machine": _machine()}),
        )
        self._manager.save(step, args=items)
        self.seconds_waited += time.perf_counter() - began

    def finish(self, step: int, scores: Mapping[str, float]) -> None:
        """Waits until a step that was saved is durable, then deletes what need not be kept beside it.

        Args:
          step: updates done.
          scores: what the step scored, if it was evaluated.
        Raises:
          whatever the save ran into in the background.
        """
        began = time.perf_counter()
        self._manager.wait_until_finished()
        self.seconds_waited += time.perf_counter() - began
        score = scores.get(self._config.best_metric)
        if score is not None and math.isfinite(score):
            self._best = _best_of(dict([*([self._best] if self._best else []), (step, score)]), self._config.best_mode)
        if jax.process_index() == 0:
            steps = _steps(self._folder)
            for old in set(steps[: -self._config.keep]) - {self._best and self._best[0]}:
                shutil.rmtree(self._folder / str(old))

    def restore(self, step: int, params: Any, opt_state: Any) -> tuple[Any, Any]:
        """Reads a step.

        Args:
          step: which.
          params, opt_state: trees of `ShapeDtypeStruct` with the shardings that the arrays shall have.
        Raises:
          UserError: a file is damaged, or the arrays have other names or shapes.
        """
        _verify(self._folder / str(step), _ITEMS)
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(params), opt_state=ocp.args.StandardRestore(opt_state)
        )
        before = json.loads((self._folder / str(step) / "meta" / "metadata").read_text())["machine"]
        if before != _machine():
            _log.warning("saved on %s, resumed on %s: the same batches, but other rounding", before, _machine())
        with _reading(self._folder / str(step)):
            restored = self._manager.restore(step, args=items)
        return restored["params"], restored["opt_state"]

    def _write_manifest(self) -> None:
        """Called by orbax when all of a step is written, before its folder gets its name: both or neither are there."""
        if jax.process_index() == 0:
            for folder in self._folder.glob("*.orbax-checkpoint-tmp"):
                (folder / _MANIFEST).write_text(json.dumps(_digests(folder, _ITEMS), indent=1))


def restore_params(workdir: Path, which: str, params: Any) -> Any:
    """Reads the parameters of a run, without its optimizer state.

    Args:
      workdir: the run's folder.
      which: "latest", "best", or a step.
      params: a tree of arrays, or of `ShapeDtypeStruct` with shardings, that the parameters shall be like.
    Raises:
      UserError: no such checkpoint, or one that is damaged or of another model.
    """
    folder = _folder_of(workdir) / str(_find(workdir, which))
    _verify(folder, ("params",))
    with _reading(folder), ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder / "params", params)


def restore_shared(workdir: Path, params: Any) -> tuple[Any, tuple[str, ...]]:
    """Reads what a run's last checkpoint has of some parameters, which may be those of a model with other heads.

    Args:
      workdir: the run's folder.
      params: a nested dict of arrays.
    Returns:
      the parameters, those that the run does not have as they were; and the paths of these.
    Raises:
      UserError: a checkpoint that is damaged, or has arrays of the same name and another shape.
    """
    folder = _folder_of(workdir) / str(_find(workdir, "latest"))
    _verify(folder, ("params",))
    ours = traverse_util.flatten_dict(params, sep="/")
    anywhere = next(iter(ours.values())).sharding
    with _reading(folder), ocp.StandardCheckpointer() as checkpointer:
        saved = traverse_util.flatten_dict(checkpointer.metadata(folder / "params").item_metadata.tree, sep="/")
        # All that was saved has to be read; what nobody wants are a few heads.
        wanted = {name: ours.get(name, _like(array, anywhere)) for name, array in saved.items()}
        restored = checkpointer.restore(folder / "params", traverse_util.unflatten_dict(wanted, sep="/"))
    found = {name: array for name, array in traverse_util.flatten_dict(restored, sep="/").items() if name in ours}
    return traverse_util.unflatten_dict(ours | found, sep="/"), tuple(sorted(ours.keys() - found.keys()))


def _like(array: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    """The shape of a saved array that is to be read whole by each device."""
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder is a run's that has saved at least once."""
    return bool(_steps(_folder_of(folder)))


def _machine() -> dict[str, Any]:
    """What the rounding of a run depends on: the same program on one core and on two gives other last bits."""
    return {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _folder_of(workdir: Path) -> Path:
    return workdir.absolute() / "checkpoints"


def _agreed(best: tuple[int, float] | None) -> tuple[int, float] | None:
    """Process 0's best step and its score, on all processes: another's file system may lag behind."""
    if jax.process_count() == 1:
        return best
    step, score = multihost_utils.broadcast_one_to_all(tuple(map(np.float32, best or (-1, 0))))
    return (int(step), float(score)) if step >= 0 else None


def _best_of(scores: Mapping[int, float], mode: str) -> tuple[int, float] | None:
    """The step with the best score, and it; the first of several."""
    step = (min if mode == "min" else max)(scores, key=scores.__getitem__, default=None)
    return None if step is None else (step, scores[step])


def _steps(folder: Path) -> list[int]:
    """The steps that are whole, in order; orbax renames a step's folder to its number when it is."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def _find(workdir: Path, which: str) -> int:
    steps = _steps(_folder_of(workdir))
    if steps and which == "latest":
        return steps[-1]
    if steps and which == "best":
        best = best_step(workdir)
        if best is not None:
            return best
    elif which.isdigit() and int(which) in steps:
        return int(which)
    raise UserError(
        f"checkpoint {which!r} of {workdir}",
        got="steps " + ", ".join(map(str, steps)) if steps else "no checkpoints",
        expected="latest, best (by the figures in metrics.jsonl, where checkpoint.best_metric is set) or one of the "
        "steps that are there",
        fix="train the run first, or choose another --checkpoint",
    )


def best_step(workdir: Path) -> int | None:
    """The step of a run's best checkpoint, by the metric in its config; None if no figure tells it."""
    config = json.loads((workdir / "config.json").read_text())["checkpoint"]
    best = _best(workdir, config["best_metric"], config["best_mode"])
    return None if best is None else best[0]


def _best(workdir: Path, metric: str, mode: str) -> tuple[int, float] | None:
    """The best step of those saved, and its score; None if none was evaluated."""
    steps = set(_steps(_folder_of(workdir)))
    lines = read_records(workdir / "metrics.jsonl")
    scores = {line["step"]: line[metric] for line in lines if metric in line and line["step"] in steps}
    return _best_of({step: score for step, score in scores.items() if math.isfinite(score)}, mode)


def _digests(folder: Path, items: Sequence[str]) -> dict[str, str]:
    """The sha256 of each file of some items."""
    digests = {}
    for path in sorted(path for item in items for path in (folder / item).rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digests[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _verify(folder: Path, items: Sequence[str]) -> None:
    """Compares the files of some items of a step with its manifest."""
    manifest = folder / _MANIFEST
    try:
        expected = json.loads(manifest.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(manifest, str(error), "the digests of the checkpoint's files", folder) from error
    actual = _digests(folder, items)
    for name, digest in expected.items():
        if name.split("/")[0] in items and actual.get(name) != digest:
            got = f"sha256 {actual[name][:16]}..." if name in actual else "no such file"
            raise _damaged(folder / name, got, f"sha256 {digest[:16]}..., as it was written", folder)


def _damaged(path: Path, got: str, expected: str, folder: Path) -> UserError:
    fix = f"restore the file, or delete {folder} to go on from the checkpoint before it"
    return UserError(f"checkpoint file {path}", got=got, expected=expected, fix=fix)


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Tells a user what orbax could not read."""
    try:
        yield
    except (ValueError, KeyError, OSError) as error:
        raise UserError(
            f"checkpoint {folder}",
            got=str(error).strip().split("\n")[0][:300],
            expected="arrays with the names and shapes of this run's model",
            fix="use the config that the run was trained with",
        ) from error
