"""A loss that is not finite: stop, and say where it came from. A loss or gradient that is odd: say so, and go on."""

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

from bertjax.contract import Task
from bertjax.errors import UserError
from bertjax.training import step as steps
from bertjax.training.config import TrainingConfig
from bertjax.training.optimizers import path_names
from bertjax.training.step import StepReport, TrainState

_log = logging.getLogger(__name__)

# The 1.4826 makes a median absolute deviation the standard deviation of a normal distribution.
_DEVIATIONS, _MAD_TO_DEVIATION = 8, 1.4826
_MEMORY, _BEFORE_JUDGING = 128, 64


class NotFiniteError(UserError):
    """An update was not made, because the loss or the gradient was not finite."""


class Spikes:
    """Values far above what has been usual.

    A value is a spike if it exceeds the median of the 128 before it by more than 8 standard deviations, estimated
    from their median absolute deviation, which spikes themselves hardly move; and by no less than a fraction of the
    median, lest a very smooth run be full of them. The first 64 values are not judged, after a resumption too.
    """

    def __init__(self, name: str, least: float, log_scale: bool = False) -> None:
        """Args:
        name: what is watched, such as "loss".
        least: the least excess that counts, as a fraction of the median.
        log_scale: whether deviations are those of logarithms, for positive values with a long tail: the norms of a
          healthy fine-tuning differ by factors of ten from batch to batch.
        """
        self._name, self._least, self._log_scale = name, least, log_scale
        self._values: collections.deque[float] = collections.deque(maxlen=_MEMORY)
        self._count, self._told = 0, ""

    def add(self, step: int, value: float) -> None:
        """Adds the value of a step."""
        scaled = math.log(max(value, sys.float_info.min)) if self._log_scale else value
        if len(self._values) >= _BEFORE_JUDGING:
            usual = statistics.median(self._values)
            deviation = _MAD_TO_DEVIATION * statistics.median(abs(x - usual) for x in self._values)
            least = math.log1p(self._least) if self._log_scale else self._least * abs(usual)
            if scaled - usual > max(_DEVIATIONS * deviation, least):
                self._count += 1
                median = math.exp(usual) if self._log_scale else usual
                self._told = f"step {step} had {value:.4g}, the median of those before is {median:.4g}"
        self._values.append(scaled)

    def take(self) -> dict[str, float]:
        """How many there were since this was last asked, nothing for none; warns of the last."""
        if not self._count:
            return {}
        _log.warning("%d spikes of %s; %s", self._count, self._name, self._told)
        figures = {f"train/{self._name}_spikes": float(self._count)}
        self._count = 0
        return figures


def check(task: Task, state: TrainState, batch: Any, report: StepReport, index: int, config: TrainingConfig) -> None:
    """Waits for an update and raises unless it was made.

    Args:
      task: what is trained.
      state: the state after `index`, which a bad update has left as it was before it.
      batch: the rows of update `index`.
      report: what update `index` said.
      index: its number.
      config: the run's settings.
    Raises:
      NotFiniteError: the loss or the gradient was not finite; names the step and the first tensor that went bad.
    """
    if bool(report.finite):
        return
    raise NotFiniteError(
        f"step {index + 1}",
        got=f"a loss or gradient that is not finite; {_first_bad(task, state.params, batch, index, config)}",
        expected="finite numbers; the last checkpoint from before this step is kept",
        fix="lower optimizer.learning_rate, lengthen optimizer.warmup_steps or set optimizer.clip_norm",
    )


def _first_bad(task: Task, params: Any, batch: Any, index: int, config: TrainingConfig) -> str:
    """The first parameter, operation or gradient that is not finite, in the order of the computation."""
    names = jax.tree.leaves(path_names(params))
    bad = [name for name, leaf in zip(names, jax.tree.leaves(params), strict=True) if not jnp.isfinite(leaf).all()]
    if bad:
        return f"parameter {bad[0]} went bad first ({len(bad)} of {len(names)} are)"
    checked = checkify.checkify(steps.make_gradient(task, config), errors=checkify.float_checks)
    # All are arguments: a function that is compiled may not hold arrays that are split over processes.
    error, (_, grads) = jax.jit(checked)(params, batch, np.int32(index), steps.seed_of(config))
    bad = [name for name, leaf in zip(names, jax.tree.leaves(grads), strict=True) if not jnp.isfinite(leaf).all()]
    operation = (error.get() or "no operation made a NaN").splitlines()[0]
    gradient = f"; the gradient of {bad[0]} and of {len(bad) - 1} more tensors is bad" if bad else ""
    return f"the parameters are finite; {operation}{gradient}"
