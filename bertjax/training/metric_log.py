"""What a run measured: `metrics.jsonl` (one flat object a line), TensorBoard files, and lines to read."""

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import distributed
from bertjax.contract import Metrics
from bertjax.files import completed, read_records
from bertjax.runs.goodput import Ledger
from bertjax.training.step import StepReport

_log = logging.getLogger(__name__)


def _summary_writer() -> Any:
    """Imports `SummaryWriter` from tensorboardX, which would also import torch if installed: a second, for nothing."""
    hidden = {} if "torch" in sys.modules else {"torch": None}
    sys.modules.update(hidden)  # type: ignore[arg-type]
    try:
        from tensorboardX import SummaryWriter
    finally:
        for name in hidden:
            del sys.modules[name]
    return SummaryWriter


class MetricLog:
    """Writes figures by step; process 0 does, the others only take part."""

    def __init__(self, workdir: Path, resumed: int) -> None:
        """Args: the run's folder; the step that the run resumes from, beyond which lines are dropped."""
        self._is_writer = distributed.is_first_process()
        self._path = workdir / "metrics.jsonl"
        if self._is_writer:
            _drop_after(self._path, resumed)
            self._file = self._path.open("a")
            self._board = _summary_writer()(str(workdir / "tensorboard"), purge_step=resumed + 1 if resumed else None)

    def __enter__(self) -> "MetricLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_writer:
            self._file.close()
            self._board.close()

    def has_scores(self, step: int, prefix: str) -> bool:
        """Whether a run had written figures "PREFIX..." of a step; the same answer on all processes."""
        return bool(distributed.of_first_process(bool(self.scores(step, prefix))))

    def scores(self, step: int, prefix: str) -> dict[str, float]:
        """Returns the metrics "PREFIX..." that have been written of a step; on process 0 alone."""
        lines = _records(self._path) if self._is_writer else iter(())
        found = [line for line in lines if line["step"] == step]
        return {name: value for line in found for name, value in line.items() if name.startswith(prefix)}

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes the figures of a step, in full; the line that people read has four digits."""
        if self._is_writer and figures:
            self._file.write(json.dumps({"step": step, **figures}) + "\n")
            self._file.flush()
            for name, value in figures.items():
                self._board.add_scalar(name, value, step)
            _log.info("step %d  %s", step, "  ".join(f"{name}={value:.4g}" for name, value in figures.items()))


class Window:
    """The figures of the steps between two lines of the log."""

    def __init__(self, learning_rate: Callable[[int], Any], ledger: Ledger) -> None:
        """Args: the schedule, to log the rate of the last step; what is told of the time that steps wait."""
        self._learning_rate, self._ledger = learning_rate, ledger
        self._metrics: Metrics | None = None
        self._report: StepReport | None = None
        self._timed_steps = 0
        self._data_wait = 0.0
        self._seconds = 0.0
        self._since: float | None = None

    def add(self, report: StepReport, data_wait: float, compile_wait: float) -> None:
        """Adds a step, without waiting for it.

        Args:
          report: what it said.
          data_wait: seconds that the devices were idle for want of its batch.
          compile_wait: seconds that they were idle for want of its program, which count for nothing.
        """
        self._ledger.add_waits(data_wait, compile_wait)
        if self._since is None:  # the first step is timed from when it is done
            jax.tree.map(jnp.add, report.metrics, report.metrics)  # compiled now, the sums below take no time
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
        """Stops the clock while something other than training goes on."""
        assert self._since is not None
        self._seconds += time.perf_counter() - self._since
        yield
        self._since = time.perf_counter()

    def close(self, done: int) -> dict[str, float]:
        """The means over the window, and its pace, after `done` updates; begins the next window."""
        assert self._metrics is not None and self._report is not None and self._since is not None
        figures = means(self._metrics, "train")
        figures["train/gradient_norm"] = float(self._report.gradient_norm)
        seconds = self._seconds + time.perf_counter() - self._since
        figures["train/learning_rate"] = float(self._learning_rate(done - 1))  # which compiles the schedule at first
        if self._timed_steps:
            tokens_per_step = float(self._metrics["tokens"][0]) / float(self._metrics["loss"][1])
            figures["train/step_seconds"] = seconds / self._timed_steps
            figures["train/tokens_per_second"] = tokens_per_step * self._timed_steps / seconds
            figures["train/data_wait_fraction"] = self._data_wait / seconds
        self._metrics, self._timed_steps, self._data_wait, self._seconds = None, 0, 0.0, 0.0
        self._since = time.perf_counter()
        return figures


def means(metrics: Mapping[str, tuple[jax.Array, jax.Array]], prefix: str) -> dict[str, float]:
    """Sums over counts, on the host; a metric that counted nothing, and the plain count "tokens", are left out.

    Of "perplexity" the sum is one of negative log-likelihoods.
    """
    fetched = jax.device_get(dict(metrics))
    return {
        f"{prefix}/{name}": float(np.exp(value / count) if name == "perplexity" else value / count)
        for name, (value, count) in fetched.items()
        if count > 0 and name != "tokens"
    }


def _drop_after(path: Path, step: int) -> None:
    """Drops the lines of steps after `step`, which a killed run got to and the resumed one will do again."""
    if not step:
        path.unlink(missing_ok=True)
    if not path.exists():
        return
    kept = [json.dumps(record) + "\n" for record in _records(path) if record["step"] <= step]
    with completed(path) as partial:
        partial.write_text("".join(kept))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a log; a damaged one may have no step."""
    return (record for record in read_records(path) if isinstance(record.get("step"), int))
