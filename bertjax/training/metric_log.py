"""The metrics of a run: `metrics.jsonl` (a flat JSON object per line), TensorBoard files and lines of the log."""

import contextlib
import dataclasses
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import distributed
from bertjax.contract import Metrics
from bertjax.files import completed, read_records
from bertjax.runs.early_stopping import Stop, find_stop
from bertjax.runs.goodput import Ledger
from bertjax.training import log_lines
from bertjax.training.config import TrainingConfig
from bertjax.training.step import StepReport

_log = logging.getLogger(__name__)


def _summary_writer() -> Any:
    """Imports `SummaryWriter` from tensorboardX without torch, whose import takes a second and is not needed."""
    hidden = {} if "torch" in sys.modules else {"torch": None}
    sys.modules.update(hidden)  # type: ignore[arg-type]
    try:
        from tensorboardX import SummaryWriter
    finally:
        for name in hidden:
            del sys.modules[name]
    return SummaryWriter


class MetricLog:
    """Writes metrics by step. Only process 0 writes; the others only take part in the collectives."""

    def __init__(self, workdir: Path, config: TrainingConfig, *, resumed: int) -> None:
        """Opens the files and deletes what they have of steps after `resumed`, which is 0 for a new run."""
        self._config = config
        self._num_steps = config.num_steps
        self._best_metric = config.checkpoint.best_metric
        self._is_writer = distributed.is_first_process()
        self._path = workdir / "metrics.jsonl"
        if self._is_writer:
            _drop_after(self._path, resumed)
            self._file = self._path.open("a")
            self._board = _summary_writer()(str(workdir / "tensorboard"), purge_step=resumed + 1 if resumed else None)

    def __enter__(self) -> "MetricLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_writer:
            self._file.close()
            self._board.close()

    def has_scores(self, step: int, prefix: str) -> bool:
        """Returns whether metrics "PREFIX..." of a step are written; all processes get the same answer."""
        return bool(distributed.of_first_process(bool(self.scores(step, prefix))))

    def scores(self, step: int, prefix: str) -> dict[str, float]:
        """Returns the written metrics "PREFIX..." of a step; empty on processes other than 0."""
        lines = _records(self._path) if self._is_writer else iter(())
        step_lines = [line for line in lines if line["step"] == step]
        return {name: value for line in step_lines for name, value in line.items() if name.startswith(prefix)}

    def find_stop(self) -> Stop | None:
        """Returns where early stopping ends the run, by the metrics written so far; None on processes other than 0."""
        return find_stop(dataclasses.asdict(self._config), _records(self._path)) if self._is_writer else None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a step without a line of the log."""
        if self._is_writer and metrics:
            self._file.write(json.dumps({"step": step, **metrics}) + "\n")
            self._file.flush()
            for name, value in metrics.items():
                self._board.add_scalar(name, value, step)

    def write_update(self, step: int, metrics: Mapping[str, float], seconds_left: float | None) -> None:
        """Writes and logs the metrics of updates; see `log_lines.update`."""
        self.write(step, metrics)
        if self._is_writer:
            _log.info("%s", log_lines.update(step, self._num_steps, metrics, seconds_left))

    def write_scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes and logs the metrics of an evaluation of one split, if there are any; see `log_lines.evaluation`."""
        split = next(iter(scores), "").partition("/")[0]
        first = self.scores(0, f"{split}/") if scores else {}  # read before the scores of step 0 are written
        self.write(step, scores)
        if self._is_writer and scores:
            # Only the validation split is scored before training. The scores of another one repeat its baselines.
            initial = {name: first.pop(name) for name in scores if name in first} if split == "valid" else {}
            _log.info("%s", log_lines.evaluation(step, self._num_steps, scores, first, self._best_metric, initial))


class Window:
    """The metrics of the updates since the last line of the log."""

    def __init__(self, learning_rate: Callable[[int], Any], ledger: Ledger) -> None:
        """Initializes the window.

        Args:
          learning_rate: the schedule, to log the rate of the last update.
          ledger: records the time that updates wait.
        """
        self._learning_rate = learning_rate
        self._ledger = ledger
        self._metrics: Metrics | None = None
        self._report: StepReport | None = None
        self._timed_steps = 0
        self._data_wait = 0.0
        self._seconds = 0.0
        self._since: float | None = None

    def add(self, report: StepReport, data_wait: float, compile_wait: float) -> None:
        """Adds an update without waiting for it.

        Args:
          report: its metrics.
          data_wait: seconds that the devices were idle because they waited for the batch.
          compile_wait: seconds that they were idle because the program was compiled. Step times exclude it.
        """
        self._ledger.add_waits(data_wait, compile_wait)
        if self._since is None:  # timing starts when the first update is done
            jax.tree.map(jnp.add, report.metrics, report.metrics)  # compiles the sums below, to time updates alone
            jax.block_until_ready(report)
            self._since = time.perf_counter()
        else:
            self._timed_steps += 1
            self._data_wait += data_wait
            self._seconds -= compile_wait
        total = self._metrics
        self._metrics = report.metrics if total is None else jax.tree.map(jnp.add, total, report.metrics)
        self._report = report

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time of an evaluation or a save from the time of updates."""
        assert self._since is not None
        self._seconds += time.perf_counter() - self._since
        yield
        self._since = time.perf_counter()

    def close(self, done: int) -> dict[str, float]:
        """Returns the means and the speed of the window, which ends after `done` updates, and begins the next one."""
        assert self._metrics is not None and self._report is not None and self._since is not None
        metrics = means(self._metrics, "train")
        metrics["train/gradient_norm"] = float(self._report.gradient_norm)
        seconds = self._seconds + time.perf_counter() - self._since
        metrics["train/learning_rate"] = float(self._learning_rate(done - 1))  # compiles the schedule at the first call
        if self._timed_steps:
            tokens_per_step = float(self._metrics["tokens"][0]) / float(self._metrics["loss"][1])
            metrics["train/step_seconds"] = seconds / self._timed_steps
            metrics["train/tokens_per_second"] = tokens_per_step * self._timed_steps / seconds
            metrics["train/data_wait_fraction"] = self._data_wait / seconds
        self._metrics = None
        self._timed_steps = 0
        self._data_wait = 0.0
        self._seconds = 0.0
        self._since = time.perf_counter()
        return metrics


def means(metrics: Mapping[str, tuple[jax.Array, jax.Array]], prefix: str) -> dict[str, float]:
    """Returns sums divided by counts, as "PREFIX/NAME". Omits "tokens", which is a count, and metrics with count 0.

    Sums and counts may be arrays of groups; the metric is then the mean of their quotients. The sum of "perplexity" is
    that of negative log-likelihoods.
    """
    fetched = jax.device_get(dict(metrics))
    return {
        f"{prefix}/{name}": float(np.exp(value / count) if name == "perplexity" else np.mean(value / count))
        for name, (value, count) in fetched.items()
        if np.all(count > 0) and name != "tokens"
    }


def last_improvement(workdir: Path, metric: str, mode: str) -> tuple[float, float] | None:
    """Returns the last two values of a validation metric, if the last is the best by more than 2 %; otherwise None.

    Args:
      workdir: the run's folder.
      metric: the name, such as "valid/accuracy".
      mode: "max" or "min", whether higher or lower is better.
    """
    records = (record for record in _records(workdir / "metrics.jsonl") if record["step"])
    values = [record[metric] for record in records if isinstance(record.get(metric), float)]
    *before, last = values or [math.nan]
    gains = [last - value if mode == "max" else value - last for value in before]
    return (before[-1], last) if gains and min(gains) > 0.02 * abs(last) else None


def _drop_after(path: Path, step: int) -> None:
    """Deletes the lines of steps after `step`, which the resumed run repeats."""
    if not step:
        path.unlink(missing_ok=True)
    if not path.exists():
        return
    lines = [json.dumps(record) + "\n" for record in _records(path) if record["step"] <= step]
    with completed(path) as partial:
        partial.write_text("".join(lines))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a log that have a step. Damaged records may have none."""
    return (record for record in read_records(path) if isinstance(record.get("step"), int))
