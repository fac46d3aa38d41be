"""Health of training: a loss that is not finite stops the run; spikes of loss and gradient are counted and logged."""

import collections
import logging
import math
import statistics
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from bertjax.contract import TrainingTask
from bertjax.errors import UserError
from bertjax.training import step as steps
from bertjax.training.config import TrainingConfig
from bertjax.training.sharding import path_names
from bertjax.training.step import StepReport, TrainState

_log = logging.getLogger(__name__)

# Of a normal distribution, 1.4826 times the median absolute deviation is the standard deviation.
_DEVIATIONS = 8
_MAD_TO_DEVIATION = 1.4826
_WINDOW = 128
_MIN_VALUES = 64


class NotFiniteError(UserError):
    """An update was skipped because the loss or the gradient was not finite."""


class Spikes:
    """Counts values far above the recent values.

    A value is a spike if it exceeds the median of the previous 128 values by more than 8 standard deviations, and by
    more than a fraction of the median. The standard deviation is estimated from the median absolute deviation, which is
    robust against spikes. The fraction prevents false alarms in very smooth runs. The first 64 values of a stage, and
    those after a start or a resumption, are never spikes.
    """

    def __init__(self, name: str, least: float, log_scale: bool = False) -> None:
        """Starts without values.

        Args:
          name: the name of the values, such as "loss".
          least: the minimum excess of a spike, as a fraction of the median.
          log_scale: whether to compare logarithms, for positive values with a long tail. For example, gradient norms of
            a healthy fine-tuning differ by factors of ten between batches.
        """
        self._name = name
        self._least = least
        self._log_scale = log_scale
        self._values: collections.deque[float] = collections.deque(maxlen=_WINDOW)
        self._count = 0
        self._message = ""
        self._stage = 0

    def add(self, step: int, value: float, stage: int = 0) -> None:
        """Adds the value of a step. Values of different stages are not compared."""
        if stage != self._stage:
            self._stage = stage
            self._values.clear()
        scaled = math.log(max(value, sys.float_info.min)) if self._log_scale else value
        if len(self._values) >= _MIN_VALUES:
            center = statistics.median(self._values)
            deviation = _MAD_TO_DEVIATION * statistics.median(abs(x - center) for x in self._values)
            least = math.log1p(self._least) if self._log_scale else self._least * abs(center)
            if scaled - center > max(_DEVIATIONS * deviation, least):
                self._count += 1
                median = math.exp(center) if self._log_scale else center
                self._message = f"step {step} had {value:.4g}; the median of the steps before is {median:.4g}"
        self._values.append(scaled)

    def take(self) -> dict[str, float]:
        """Returns the number of spikes since the last call, if any, and logs a warning about the last one."""
        if not self._count:
            return {}
        _log.warning("%d spikes of %s; %s", self._count, self._name, self._message)
        metrics = {f"train/{self._name}_spikes": float(self._count)}
        self._count = 0
        return metrics


def check(
    task: TrainingTask, state: TrainState, batch: Any, report: StepReport, index: int, config: TrainingConfig
) -> None:
    """Waits for an update and raises an error if it was skipped.

    Args:
      task: the task.
      state: the state after update `index`. A skipped update leaves the state unchanged.
      batch: the rows of update `index`.
      report: the report of update `index`.
      index: the index of the update.
      config: the run's settings.
    Raises:
      NotFiniteError: if the loss or the gradient was not finite. Names the step and the first tensor that is not
        finite.
    """
    if bool(report.finite):
        return
    raise NotFiniteError(
        f"step {index + 1}",
        got=f"a loss or gradient that is not finite; {_first_not_finite(task, state.params, batch, index, config)}",
        expected="finite numbers; the last checkpoint before this step is kept",
        fix="lower optimizer.learning_rate, raise optimizer.warmup_steps or set optimizer.clip_norm",
    )


def _first_not_finite(task: TrainingTask, params: Any, batch: Any, index: int, config: TrainingConfig) -> str:
    """Names the first parameter, operation or gradient that is not finite, in the order of computation."""
    names = jax.tree.leaves(path_names(params))
    bad = [name for name, leaf in zip(names, jax.tree.leaves(params), strict=True) if not jnp.isfinite(leaf).all()]
    if bad:
        return f"the first such parameter is {bad[0]} ({len(bad)} of {len(names)} parameters are not finite)"
    checked = checkify.checkify(steps.make_gradient(task, config), errors=checkify.float_checks)
    # Everything is an argument, because compiled functions cannot close over arrays that are split over processes.
    error, (_, grads) = jax.jit(checked)(params, batch, np.int32(index), steps.seed_of(config))
    bad = [name for name, leaf in zip(names, jax.tree.leaves(grads), strict=True) if not jnp.isfinite(leaf).all()]
    operation = (error.get() or "no operation made a NaN").splitlines()[0]
    gradient = f"; the gradients of {bad[0]} and {len(bad) - 1} more tensors are not finite" if bad else ""
    return f"the parameters are finite; {operation}{gradient}"
