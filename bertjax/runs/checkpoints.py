"""Checkpoints of runs, the only module that imports orbax: atomic, verified when they are read.

Each step is a folder `checkpoints/STEP` with the items `params`, `opt_state` and `meta`, and `manifest.json`,
the digest of every file of these. What a step scored stands in the run's `metrics.jsonl`, and only there.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import traverse_util
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.config import Constrained, Size, one_of
from bertjax.errors import UserError
from bertjax.files import read_records

_log = logging.getLogger(__name__)

_ITEMS = ("params", "opt_state", "meta")
_MANIFEST = "manifest.json"
_SECONDS_BEHIND = 30  # one process's view of a shared folder, at most, behind another's


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Constrained, prefix="checkpoint"):
    """When checkpoints are written, and which are kept.

    Attributes:
      save_every: updates between two checkpoints; after the last there is one in any case. In fine-tuning as
        `evaluate_every`, once an epoch, where it is not set.
      keep: how many of the latest are kept.
      best_metric: also keep the best by this metric ("valid/masked_lm_loss"), of those saved at a step that
        was evaluated too; "" to keep the latest only. In tagging the tags tell it where it is not set.
      best_mode: whether the "min" or the "max" is best.
      keep_best: how many of the best by `best_metric` are kept, beside the latest.
      final: which checkpoint a trained run is tested with, and used with unless `--checkpoint` says otherwise:
        "latest", "best", a step, or the mean of the parameters of several: "last:5", "best:3".
    """

    save_every: Size
    keep: Size
    best_metric: str
    best_mode: Annotated[str, one_of("min", "max")]
    keep_best: Size
    final: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"latest|best|\d+|(last|best):[1-9]\d*", self.final, re.ASCII):
            raise UserError(
                "config key checkpoint.final",
                got=repr(self.final),
                expected="latest, best, a step, or the mean of several: last:5, best:3",
                fix="choose one of these",
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
        self._is_scheduled: dict[int, bool] = {}  # of the steps that this process saved or restored
        self._best = _agreed(_best(workdir, config.best_metric, config.best_mode), config.keep_best)
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

    def sees(self, step: int) -> bool:
        """Whether a step is there; waits for a file system that may lag behind the one that it was found on."""
        until = time.monotonic() + _SECONDS_BEHIND
        while not (found := (self._folder / str(step)).exists()) and time.monotonic() < until:
            time.sleep(1)
        return found

    def save(self, step: int, params: Any, opt_state: Any, *, scheduled: bool = True) -> None:
        """Starts to save a step; returns when the arrays may be overwritten.

        Args:
          step: updates done.
          params, opt_state: trees of arrays.
          scheduled: whether an uninterrupted run would save this step too. Other checkpoints serve resumption alone:
            they are deleted once a later one is there, and do not count as one of the last or the best.
        """
        began = time.perf_counter()
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            opt_state=ocp.args.StandardSave(opt_state),
            meta=ocp.args.JsonSave({"step": step, "machine": _machine(), "scheduled": scheduled}),
        )
        self._is_scheduled[step] = scheduled
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
        if score is not None and math.isfinite(score) and self._is_scheduled[step]:
            self._best = _best_first({**self._best, step: score}, self._config.best_mode)
        self._best = dict(itertools.islice(self._best.items(), self._config.keep_best))
        if jax.process_index() == 0:
            kept = {*_scheduled_steps(self._folder)[-self._config.keep :], *self._best, step}
            for old in set(_steps(self._folder)) - kept:
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
        self._is_scheduled[step] = _is_scheduled(self._folder / str(step))
        before = _meta(self._folder / str(step)).get("machine")
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
      which: see `CheckpointConfig.final`, which "final" stands for. Averages are of the run's own making, as those of
        Vaswani et al. (2017, section 6.1).
      params: a tree of arrays, or of `ShapeDtypeStruct` with shardings, that the parameters shall be like.
    Raises:
      UserError: no such checkpoint, or one that is damaged or of another model.
    """

    def read(checkpointer: ocp.StandardCheckpointer, folder: Path) -> Any:
        return checkpointer.restore(folder, params)

    return _mean(workdir, which, read)


def restore_shared(workdir: Path, params: Any) -> tuple[Any, tuple[str, ...]]:
    """Reads what a run has of some parameters, which may be those of a model with other heads.

    They are of the checkpoint, or the mean of those, that its `CheckpointConfig.final` names.

    Args:
      workdir: the run's folder.
      params: a nested dict of arrays.
    Returns:
      the parameters, those that the run does not have as they were; and the paths of these.
    Raises:
      UserError: no such checkpoint, one that is damaged, or one with arrays of the same name and another shape.
    """
    ours = traverse_util.flatten_dict(params, sep="/")
    anywhere = next(iter(ours.values())).sharding

    def read(checkpointer: ocp.StandardCheckpointer, folder: Path) -> dict[str, Any]:
        saved = traverse_util.flatten_dict(checkpointer.metadata(folder).item_metadata.tree, sep="/")
        # All that was saved has to be read; what nobody wants are a few heads.
        wanted = {name: ours.get(name, _like(array, anywhere)) for name, array in saved.items()}
        restored = checkpointer.restore(folder, traverse_util.unflatten_dict(wanted, sep="/"))
        return {name: array for name, array in traverse_util.flatten_dict(restored, sep="/").items() if name in ours}

    found = _mean(workdir, "final", read)
    return traverse_util.unflatten_dict(ours | found, sep="/"), tuple(sorted(ours.keys() - found.keys()))


def _mean(workdir: Path, which: str, read: Callable[[ocp.StandardCheckpointer, Path], Any]) -> Any:
    """What `read` finds in the parameters' folder of a checkpoint, or the mean over several."""
    steps = find_steps(workdir, which)
    _log.info("using checkpoint %s", ", ".join(map(str, steps)))
    total = None
    for step in steps:
        folder = _folder_of(workdir) / str(step)
        _verify(folder, ("params",))
        with _reading(folder), ocp.StandardCheckpointer() as checkpointer:
            found = read(checkpointer, folder / "params")
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    return total if len(steps) == 1 else jax.tree.map(lambda leaf: leaf / len(steps), total)


def digest(workdir: Path, which: str) -> str:
    """Identifies the parameters of a run's checkpoint, or of the several that are averaged; see `restore_params`."""
    manifests = [_manifest(_folder_of(workdir) / str(step)) for step in find_steps(workdir, which)]
    return hashlib.sha256(json.dumps(manifests, sort_keys=True).encode()).hexdigest()


def num_parameters(workdir: Path) -> int:
    """How many numbers the model of a run's last checkpoint has. Raises UserError if it is damaged."""
    (step,) = find_steps(workdir, "latest")
    folder = _folder_of(workdir) / str(step)
    with _reading(folder), ocp.StandardCheckpointer() as checkpointer:
        found = checkpointer.metadata(folder / "params").item_metadata
    if found is None:
        raise _damaged(folder / "params", "no description of its arrays", "one", folder)
    return sum(math.prod(array.shape) for array in jax.tree.leaves(found.tree))


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


def _agreed(best: Mapping[int, float], count: int) -> dict[int, float]:
    """Process 0's best steps and their scores, on all processes: another's file system may lag behind."""
    if jax.process_count() == 1:
        return dict(best)
    pairs = np.full((count, 2), -1, np.float32)
    for place, pair in zip(pairs, best.items(), strict=False):
        place[:] = pair
    return {int(step): float(score) for step, score in multihost_utils.broadcast_one_to_all(pairs) if step >= 0}


def _best_first(scores: Mapping[int, float], mode: str) -> dict[int, float]:
    """The steps with their scores, from the best on; of equals the first is better."""
    sign = 1 if mode == "min" else -1
    return dict(sorted(scores.items(), key=lambda item: (sign * item[1], item[0])))


def _steps(folder: Path) -> list[int]:
    """The steps that are whole, in order; orbax renames a step's folder to its number when it is."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def _meta(folder: Path) -> dict[str, Any]:
    """What was saved with a step's arrays; nothing if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        meta = json.loads((folder / "meta" / "metadata").read_text())
        return meta if isinstance(meta, dict) else {}
    return {}


def _is_scheduled(folder: Path) -> bool:
    """Whether a step was saved when it was due; otherwise the run was stopped there and resumes from it."""
    return bool(_meta(folder).get("scheduled", True))


def _scheduled_steps(folder: Path) -> list[int]:
    return [step for step in _steps(folder) if _is_scheduled(folder / str(step))]


def find_steps(workdir: Path, which: str) -> list[int]:
    """The steps that are meant; see `CheckpointConfig.final`."""
    if which == "final":
        which = _config_of(workdir)["final"]
    steps = _steps(_folder_of(workdir))
    scheduled = _scheduled_steps(_folder_of(workdir))
    kind, _, count = which.partition(":")
    number = int(count) if count.isascii() and count.isdecimal() else 0 if count else 1
    best = list(best_steps(workdir)) if kind == "best" and steps else []
    found = {"latest": steps[-1:], "last": scheduled[-number:] if number else [], "best": best[:number]}
    if which.isdecimal() and int(which) in steps:
        return [int(which)]
    if kind in found and number and number == len(found[kind]):
        return found[kind]
    raise UserError(
        f"checkpoint {which!r} of {workdir}",
        got="steps " + ", ".join(map(str, steps)) if steps else "no checkpoints",
        expected="latest, best (by the figures in metrics.jsonl, where checkpoint.best_metric is set), one of the "
        "steps that are there, or the mean of no more than there are: last:5, best:3",
        fix="train the run first, or choose another --checkpoint; checkpoint.{keep,keep_best} say how many are kept",
    )


def best_step(workdir: Path) -> int | None:
    """The step of a run's best checkpoint, by the metric in its config; None if no figure tells it."""
    return next(iter(best_steps(workdir)), None)


def best_steps(workdir: Path) -> dict[int, float]:
    """The steps of a run's checkpoints that were evaluated, with their figures of the config's metric; best first."""
    config = _config_of(workdir)
    return _best(workdir, config["best_metric"], config["best_mode"])


def _config_of(workdir: Path) -> Mapping[str, Any]:
    """What a run's config says of checkpoints."""
    config: Mapping[str, Any] = json.loads((workdir / "config.json").read_text())["checkpoint"]
    return config


def _best(workdir: Path, metric: str, mode: str) -> dict[int, float]:
    """The steps of those saved that were evaluated, with their scores, best first."""
    steps = set(_scheduled_steps(_folder_of(workdir)))
    lines = [line for line in read_records(workdir / "metrics.jsonl") if isinstance(line.get("step"), int)]
    scores = {line["step"]: line[metric] for line in lines if metric in line and line["step"] in steps}
    good = {step: score for step, score in scores.items() if isinstance(score, (int, float)) and math.isfinite(score)}
    return _best_first(good, mode)


def _digests(folder: Path, items: Sequence[str]) -> dict[str, str]:
    """The sha256 of each file of some items."""
    digests = {}
    for path in sorted(path for item in items for path in (folder / item).rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digests[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _verify(folder: Path, items: Sequence[str]) -> None:
    """Compares the files of some items of a step with its manifest."""
    actual = _digests(folder, items)
    for name, digest in _manifest(folder).items():
        if name.split("/")[0] in items and actual.get(name) != digest:
            got = f"sha256 {actual[name][:16]}..." if name in actual else "no such file"
            raise _damaged(folder / name, got, f"sha256 {digest[:16]}..., as it was written", folder)


def _manifest(folder: Path) -> dict[str, str]:
    """The digests of a step's files. Raises UserError if they cannot be read."""
    path = folder / _MANIFEST
    try:
        digests = json.loads(path.read_text())
        if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
            raise ValueError(f"{digests}")
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error), "the digests of the checkpoint's files", folder) from error
    return digests


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
