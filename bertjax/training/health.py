"""What to do about a loss that is not finite: stop, and say where it came from."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from bertjax.errors import UserError
from bertjax.task import Task
from bertjax.training import step as steps
from bertjax.training.config import TrainingConfig
from bertjax.training.optimizers import path_names
from bertjax.training.step import StepReport, TrainState


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
      UserError: the loss or the gradient was not finite; names the step and the first tensor that went bad.
    """
    if bool(report.finite):
        return
    raise UserError(
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
    keys = jax.random.split(steps.dropout_key(config.seed, index), config.accumulation_steps)

    def loss(params: Any) -> jax.Array:
        def micro_loss(rows: Any, key: jax.Array) -> jax.Array:
            return sum(task.loss(params, rows, key)[0].values(), jnp.zeros(()))

        return steps.accumulate(micro_loss, batch, keys)

    error, grads = jax.jit(checkify.checkify(jax.grad(loss), errors=checkify.float_checks))(params)
    bad = [name for name, leaf in zip(names, jax.tree.leaves(grads), strict=True) if not jnp.isfinite(leaf).all()]
    operation = (error.get() or "no operation made a NaN").splitlines()[0]
    gradient = f"; the gradient of {bad[0]} and of {len(bad) - 1} more tensors is bad" if bad else ""
    return f"the parameters are finite; {operation}{gradient}"
