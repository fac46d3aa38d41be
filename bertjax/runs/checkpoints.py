"""Checkpoints of runs: written atomically, and verified when they are read. The only module that imports Orbax.

Each step has a folder `checkpoints/STEP` with the items `params`, `opt_state` and `meta`, and with `manifest.json`, the
digests of all their files. The metrics of a step are only in the run's `metrics.jsonl`.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import traverse_util
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.config import Constrained, Size, always, one_of
from bertjax.errors import UserError
from bertjax.files import read_records
from bertjax.runs import manifests

_log = logging.getLogger(__name__)

_ITEMS = ("params", "opt_state", "meta")
_NUMERICS = 3  # raised by a change of the code after which training draws or rounds otherwise
_MAX_LAG_SECONDS = 30  # maximum delay until a process sees files of another process in a shared folder


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Constrained, prefix="checkpoint"):
    """When to save checkpoints, and which to keep.

    Attributes:
      save_every: updates between two checkpoints. The last update is always saved. Default in fine-tuning:
        `evaluate_every`.
      keep: number of latest checkpoints to keep.
      best_metric: metric that defines the best checkpoints, among those that are saved and evaluated; "" to keep only
        the latest. Default in pretraining: the loss of `objective`; in classification: the last of `metrics`; in
        tagging: depends on the tags.
      best_mode: "min" if lower values of `best_metric` are better, "max" if higher values are better.
      keep_best: number of best checkpoints to keep in addition to the latest.
      final: checkpoint for the test split and for using the run: "latest", "best", a step, or the mean of the
        parameters of several, such as "last:5" or "best:3".
    """

    save_every: Size = always(None)
    keep: Size = always(1)
    best_metric: str = always("")
    best_mode: Annotated[str, one_of("min", "max")] = always("max")
    keep_best: Size = always(1)
    final: str = always("best")

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = re.fullmatch(r"latest|best|\d+|(last|best):[1-9]\d*", self.final, re.ASCII)
        expected = "latest, best, a step, or the mean of several checkpoints such as last:5 or best:3"
        self.check(ok, "final", expected, fix="choose one of these")


class _Manager(ocp.CheckpointManager):
    """Leaves preemption to the training loop: two pollers with separate counters would miss JAX's notice."""

    def reached_preemption(self, step: int) -> bool:
        return False


class Checkpoints:
    """The checkpoints of a run during training.

    Attributes:
      seconds_waited: the total time for which training waited for saves.
    """

    def __init__(self, workdir: Path, config: CheckpointConfig) -> None:
        """Opens the checkpoints in the run's folder, which all processes share."""
        self._folder = _folder_of(workdir)
        self._config = config
        self._manager = _Manager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                save_decision_policy=ocp.checkpoint_managers.FixedIntervalPolicy(1),
                async_options=ocp.AsyncOptions(post_finalization_callback=self._write_manifest),
                cleanup_tmp_directories=True,
            ),
        )
        self._is_scheduled: dict[int, bool] = {}  # for each step that this process saved or restored
        self._best = _broadcast_best(_best(workdir, config.best_metric, config.best_mode), config.keep_best)
        self.seconds_waited = 0.0

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def latest_step(self) -> int | None:
        """Returns the last saved step; None if there is none."""
        return self._manager.latest_step()

    def sees(self, step: int) -> bool:
        """Returns whether this process sees a step, waiting a while for a shared file system that may be delayed."""
        until = time.monotonic() + _MAX_LAG_SECONDS
        while not (exists := (self._folder / str(step)).exists()) and time.monotonic() < until:
            time.sleep(1)
        return exists

    def save(
        self, step: int, params: Any, opt_state: Any, *, scheduled: bool = True, trained_seconds: float = 0.0
    ) -> None:
        """Starts to save a step, instead of its checkpoint if it has one. Returns when the arrays may be overwritten.

        Args:
          step: number of updates so far.
          params, opt_state: trees of arrays.
          scheduled: whether an uninterrupted run would save this step too. Unscheduled checkpoints serve only to
            resume: they are deleted after the next save, and never count among the last or best checkpoints.
          trained_seconds: see `trained_seconds`.
        """
        began = time.perf_counter()
        meta = {"step": step, "machine": _machine(), "numerics": _NUMERICS}
        meta |= {"scheduled": scheduled, "trained_seconds": trained_seconds}
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            opt_state=ocp.args.StandardSave(opt_state),
            meta=ocp.args.JsonSave(meta),
        )
        self._is_scheduled[step] = scheduled
        if step in self._manager.all_steps():
            self._manager.delete(step)
        self._manager.save(step, args=items)
        self.seconds_waited += time.perf_counter() - began

    def finish(self, step: int, scores: Mapping[str, float]) -> None:
        """Waits until a saved step is durable, then deletes the checkpoints that need not be kept.

        Args:
          step: number of updates so far.
          scores: the metrics of the step; empty if it was not evaluated.
        Raises:
          Exception: any error of the save in the background.
        """
        began = time.perf_counter()
        self._manager.wait_until_finished()
        self.seconds_waited += time.perf_counter() - began
        score = scores.get(self._config.best_metric)
        if score is not None and math.isfinite(score) and self._is_scheduled[step]:
            self._best = _best_first({**self._best, step: score}, self._config.best_mode)
        self._best = dict(itertools.islice(self._best.items(), self._config.keep_best))
        if jax.process_index() == 0:
            steps_to_keep = {*_scheduled_steps(self._folder)[-self._config.keep :], *self._best, step}
            for old in set(_steps(self._folder)) - steps_to_keep:
                shutil.rmtree(self._folder / str(old))

    def is_scheduled(self, step: int) -> bool:
        """Returns whether a step that this process saved or restored was saved on schedule; see `save`."""
        return self._is_scheduled[step]

    def trained_seconds(self, step: int) -> float:
        """Returns the time of the steps up to a saved one, over all starts of the run; 0 if it was not saved."""
        return float(_meta(self._folder / str(step)).get("trained_seconds", 0.0))

    def restore(self, step: int, params: Any, opt_state: Any) -> tuple[Any, Any]:
        """Restores parameters and optimizer state of a step.

        Args:
          step: the step.
          params, opt_state: trees of `ShapeDtypeStruct` with shardings for the restored arrays.
        Raises:
          UserError: if a file is damaged, or if the arrays have other names or shapes.
        """
        manifests.verify(self._folder / str(step), _ITEMS)
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(params), opt_state=ocp.args.StandardRestore(opt_state)
        )
        self._is_scheduled[step] = _is_scheduled(self._folder / str(step))
        meta = _meta(self._folder / str(step))
        if meta["machine"] != _machine():
            machines = meta["machine"], _machine()
            _log.warning("saved on %s, resumed on %s: batches are the same, rounding may differ", *machines)
        if meta.get("numerics", 1) != _NUMERICS:
            _log.warning("saved by another version of bertjax: batches are the same, dropout and rounding may differ")
        with _reading(self._folder / str(step)):
            restored = self._manager.restore(step, args=items)
        return restored["params"], restored["opt_state"]

    def _write_manifest(self) -> None:
        """Writes the manifest. Orbax calls this before it renames a complete step's folder, so both appear together."""
        if jax.process_index() == 0:
            for folder in self._folder.glob("*.orbax-checkpoint-tmp"):
                manifests.write(folder, _ITEMS)


_OF_TRAINING = ("distillation",)  # parameters that only training with a teacher uses


def restore_params(workdir: Path, which: str, params: Any) -> Any:
    """Restores the parameters of a run, without its optimizer state.

    Args:
      workdir: the run's folder.
      which: "final" for the run's `CheckpointConfig.final`, or any of its values. Means of several checkpoints are as
        in Vaswani et al. (2017, section 6.1).
      params: a tree of arrays, or of `ShapeDtypeStruct` with shardings, for the restored parameters.
    Raises:
      UserError: if there is no such checkpoint, or if it is damaged or of another model.
    """

    def read(checkpointer: ocp.StandardCheckpointer, folder: Path) -> Any:
        saved = checkpointer.metadata(folder).item_metadata
        names = [name for name in _OF_TRAINING if params and saved and name in saved.tree and name not in params]
        if not names:
            return checkpointer.restore(folder, params)
        anywhere = jax.tree.leaves(params)[0].sharding
        extra = {name: jax.tree.map(lambda array: _replicated(array, anywhere), saved.tree[name]) for name in names}
        restored = checkpointer.restore(folder, {**extra, **params})
        return {name: restored[name] for name in params}

    return _read_mean(workdir, which, read)


def restore_shared(workdir: Path, params: Any) -> tuple[Any, tuple[str, ...]]:
    """Restores the parameters that a run shares with another model, for example one with other heads.

    Reads the checkpoint, or the mean of several, that the run's `CheckpointConfig.final` names.

    Args:
      workdir: the run's folder.
      params: the parameters of the other model, as a nested dict of arrays.
    Returns:
      The parameters, in which those that the run does not have are unchanged; and the paths of the unchanged ones.
    Raises:
      UserError: if there is no such checkpoint, if it is damaged, or if an array of the same name has another shape.
    """
    flat = traverse_util.flatten_dict(params, sep="/")
    anywhere = next(iter(flat.values())).sharding

    def read(checkpointer: ocp.StandardCheckpointer, folder: Path) -> dict[str, Any]:
        saved = traverse_util.flatten_dict(checkpointer.metadata(folder).item_metadata.tree, sep="/")
        # Orbax must read all saved arrays. Only a few heads are read unnecessarily.
        wanted = {name: flat.get(name, _replicated(array, anywhere)) for name, array in saved.items()}
        restored = checkpointer.restore(folder, traverse_util.unflatten_dict(wanted, sep="/"))
        return {name: array for name, array in traverse_util.flatten_dict(restored, sep="/").items() if name in flat}

    shared = _read_mean(workdir, "final", read)
    return traverse_util.unflatten_dict(flat | shared, sep="/"), tuple(sorted(flat.keys() - shared.keys()))


def _read_mean(workdir: Path, which: str, read: Callable[[ocp.StandardCheckpointer, Path], Any]) -> Any:
    """The result of `read` for the parameters' folder of a checkpoint, or the mean over several checkpoints."""
    steps = find_steps(workdir, which)
    _log.info("using checkpoint %s", ", ".join(map(str, steps)))
    total = None
    for step in steps:
        folder = _folder_of(workdir) / str(step)
        manifests.verify(folder, ("params",))
        with _reading(folder), ocp.StandardCheckpointer() as checkpointer:
            params = read(checkpointer, folder / "params")
        total = params if total is None else jax.tree.map(jnp.add, total, params)
    return total if len(steps) == 1 else jax.tree.map(lambda leaf: leaf / len(steps), total)


def digest(workdir: Path, which: str) -> str:
    """Returns a digest of the parameters of a run's checkpoint, or of several to average; see `restore_params`."""
    digests = [manifests.read(_folder_of(workdir) / str(step)) for step in find_steps(workdir, which)]
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def num_parameters(workdir: Path) -> int:
    """Returns the number of parameters in a run's last checkpoint. Raises UserError if it is damaged."""
    (step,) = find_steps(workdir, "latest")
    folder = _folder_of(workdir) / str(step)
    with _reading(folder), ocp.StandardCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(folder / "params").item_metadata
    if metadata is None:
        raise manifests.damaged(folder / "params", "no metadata of its arrays", "Orbax metadata", folder)
    return sum(math.prod(array.shape) for array in jax.tree.leaves(metadata.tree))


def _replicated(array: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    """The shape of a saved array, replicated on all devices."""
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def has_checkpoint(folder: Path) -> bool:
    """Returns whether a folder is a run with at least one checkpoint."""
    return bool(_steps(_folder_of(folder)))


def latest_step(workdir: Path) -> int:
    """Returns the step of the checkpoint that a run resumes from; 0 without checkpoints."""
    return next(reversed(_steps(_folder_of(workdir))), 0)


def _machine() -> dict[str, Any]:
    """The properties of the machine that rounding depends on. Even the number of CPU cores changes the last bits."""
    return {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _folder_of(workdir: Path) -> Path:
    return workdir.absolute() / "checkpoints"


def _broadcast_best(best: Mapping[int, float], count: int) -> dict[int, float]:
    """Process 0's best steps and scores, on all processes, because their views of the file system may differ."""
    if jax.process_count() == 1:
        return dict(best)
    pairs = np.full((count, 2), -1, np.float32)
    for place, pair in zip(pairs, best.items(), strict=False):
        place[:] = pair
    return {int(step): float(score) for step, score in multihost_utils.broadcast_one_to_all(pairs) if step >= 0}


def _best_first(scores: Mapping[int, float], mode: str) -> dict[int, float]:
    """The steps with their scores, best first; equal scores by step."""
    sign = 1 if mode == "min" else -1
    return dict(sorted(scores.items(), key=lambda item: (sign * item[1], item[0])))


def _steps(folder: Path) -> list[int]:
    """The complete steps, in order. Orbax renames a step's folder to its number when it is complete."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def _meta(folder: Path) -> dict[str, Any]:
    """The metadata saved with a step; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        meta = json.loads((folder / "meta" / "metadata").read_text())
        return meta if isinstance(meta, dict) else {}
    return {}


def _is_scheduled(folder: Path) -> bool:
    """Whether a step was saved on schedule. Other steps were saved because the run was stopped."""
    return bool(_meta(folder).get("scheduled", True))


def _scheduled_steps(folder: Path) -> list[int]:
    return [step for step in _steps(folder) if _is_scheduled(folder / str(step))]


def find_steps(workdir: Path, which: str) -> list[int]:
    """Returns the steps that `which` names, one or several to average; see `restore_params`.

    Raises:
      UserError: if there are no such checkpoints.
    """
    if which == "final":
        which = _config_of(workdir)["final"]
    steps = _steps(_folder_of(workdir))
    scheduled = _scheduled_steps(_folder_of(workdir))
    kind, _, count = which.partition(":")
    number = int(count) if count.isascii() and count.isdecimal() else 0 if count else 1
    best = list(best_steps(workdir)) if kind == "best" and steps else []
    candidates = {"latest": steps[-1:], "last": scheduled[-number:] if number else [], "best": best[:number]}
    if which.isdecimal() and int(which) in steps:
        return [int(which)]
    if kind in candidates and number and number == len(candidates[kind]):
        return candidates[kind]
    raise UserError(
        f"checkpoint {which!r} of {workdir}",
        got="steps " + ", ".join(map(str, steps)) if steps else "no checkpoints",
        expected="latest, best (by checkpoint.best_metric in metrics.jsonl), one of the existing steps, or "
        "the mean of several existing checkpoints such as last:5 or best:3",
        fix="train the run first, or choose another --checkpoint; checkpoint.{keep,keep_best} set how many are kept",
    )


def best_step(workdir: Path) -> int | None:
    """Returns the step of a run's best checkpoint by the metric in its config; None without such metrics."""
    return next(iter(best_steps(workdir)), None)


def best_steps(workdir: Path) -> dict[int, float]:
    """Returns the steps of a run's evaluated checkpoints with their values of the config's metric, best first."""
    config = _config_of(workdir)
    return _best(workdir, config["best_metric"], config["best_mode"])


def _config_of(workdir: Path) -> Mapping[str, Any]:
    """The subtree `checkpoint` of a run's config."""
    return json.loads((workdir / "config.json").read_text())["checkpoint"]


def _best(workdir: Path, metric: str, mode: str) -> dict[int, float]:
    """The saved and evaluated steps with their scores, best first."""
    steps = set(_scheduled_steps(_folder_of(workdir)))
    lines = [line for line in read_records(workdir / "metrics.jsonl") if isinstance(line.get("step"), int)]
    scores = {line["step"]: line[metric] for line in lines if metric in line and line["step"] in steps}
    good = {step: score for step, score in scores.items() if isinstance(score, (int, float)) and math.isfinite(score)}
    return _best_first(good, mode)


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turns Orbax's errors into UserErrors."""
    try:
        yield
    except (ValueError, KeyError, OSError) as error:
        raise UserError(
            f"checkpoint {folder}",
            got=str(error).strip().split("\n")[0][:300],
            expected="arrays with the names and shapes of this run's model",
            fix="use the config that the run was trained with",
        ) from error
