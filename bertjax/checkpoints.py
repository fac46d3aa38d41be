"""Checkpoints of runs, the only module that imports orbax: asynchronous, atomic, verified when they are read.

Each step is a folder `checkpoints/STEP` with the items `params`, `opt_state` and `meta`, and `manifest.json`,
the digest of every file of these.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import orbax.checkpoint as ocp

from bertjax.errors import UserError, choice

_log = logging.getLogger(__name__)

_ITEMS = ("params", "opt_state", "meta")
_MANIFEST = "manifest.json"
managers = ocp.checkpoint_managers


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept.

    Attributes:
      save_every: steps between checkpoints; the last step has one in any case.
      keep: how many of the latest are kept.
      best_metric: also keep the best by this metric ("valid/masked_lm_loss"), of those saved at a step that
        was evaluated; empty to keep the latest only.
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
    """The checkpoints of a run, while it trains."""

    def __init__(self, workdir: Path, config: CheckpointConfig) -> None:
        """Args: the run's folder, shared by all processes; when to save and what to keep."""
        self._folder = _folder_of(workdir)
        keep: list[Any] = [managers.LatestN(n=config.keep)]
        if config.best_metric:
            keep.append(
                managers.BestN(
                    get_metric_fn=lambda metrics: metrics[config.best_metric],
                    reverse=config.best_mode == "min",
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        self._manager = _Manager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                save_decision_policy=managers.FixedIntervalPolicy(1),
                preservation_policy=managers.AnyPreservationPolicy(keep),
                async_options=ocp.AsyncOptions(post_finalization_callback=self._write_manifest),
                cleanup_tmp_directories=True,
            ),
        )

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

    def metrics(self, step: int) -> dict[str, float]:
        """What a step that was saved had scored by then."""
        return json.loads((self._folder / str(step) / "meta" / "metadata").read_text())["metrics"]

    def save(self, step: int, params: Any, opt_state: Any, metrics: Mapping[str, float]) -> None:
        """Starts to save a step; returns when the arrays may be overwritten.

        Args:
          step: updates done.
          params, opt_state: trees of arrays.
          metrics: what the step scored, if it was evaluated, to tell the best.
        """
        self.check()
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            opt_state=ocp.args.StandardSave(opt_state),
            meta=ocp.args.JsonSave({"step": step, "metrics": dict(metrics), "machine": _machine()}),
        )
        self._manager.save(step, args=items, metrics=dict(metrics) or None)

    def check(self) -> None:
        """Raises the error of a save that failed in the background, if any did."""
        self._manager.check_for_errors()

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


def _steps(folder: Path) -> list[int]:
    """The steps that are whole, in order; orbax renames a step's folder to its number when it is."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def _find(workdir: Path, which: str) -> int:
    steps = _steps(_folder_of(workdir))
    if steps and which == "latest":
        return steps[-1]
    if steps and which == "best":
        best = _best(workdir, steps)
        if best is not None:
            return best
    elif which.isdigit() and int(which) in steps:
        return int(which)
    raise UserError(
        f"checkpoint {which!r} of {workdir}",
        got="steps " + ", ".join(map(str, steps)) if steps else "no checkpoints",
        expected="latest, best (where checkpoint.best_metric is set) or one of the steps that are there",
        fix="train the run first, or choose another --checkpoint",
    )


def _best(workdir: Path, steps: list[int]) -> int | None:
    """The best step by the metric that the run's config names."""
    config = json.loads((workdir / "config.json").read_text())["checkpoint"]
    scores = {}
    for step in steps:
        folder = _folder_of(workdir) / str(step)
        path = folder / "meta" / "metadata"
        try:
            metrics = json.loads(path.read_text())["metrics"]
        except (OSError, ValueError, KeyError) as error:
            raise _damaged(path, str(error), "what the step scored", folder) from error
        if config["best_metric"] in metrics:
            scores[step] = metrics[config["best_metric"]]
    if not scores:
        return None
    return (min if config["best_mode"] == "min" else max)(scores, key=scores.__getitem__)


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
