"""Operations of the matrix products in a traced function, without compiling it."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval as pe
from jax.sharding import AbstractDevice, AbstractMesh

from bertjax.contract import StagedTask, TaughtTask, TrainingTask
from bertjax.training.config import TrainingConfig

Build = Callable[[Mapping[str, Any]], tuple[TrainingTask, TrainingConfig]]

# For several CPUs, models use plain attention, which repeats no product in the backward pass.
_CPUS = AbstractMesh((2,), ("data",), abstract_device=AbstractDevice("cpu", None, "cpu"))


def stage_of(task: TrainingTask, update: int, num_steps: int) -> int | None:
    """Returns the index in `batch_specs` of the shapes of an update; None if they depend on the rows.

    Args:
      task: the task.
      update: the number of the update, from 0 on.
      num_steps: the number of updates of the run.
    """
    if isinstance(task, StagedTask):
        return task.stage(update, num_steps)
    return 0 if len(task.batch_specs()) == 1 else None


def largest_spec(task: TrainingTask) -> Mapping[str, jax.ShapeDtypeStruct]:
    """Returns the one of `batch_specs` with the most elements; of stages the last, which has the longest rows."""
    specs = task.batch_specs()
    return (
        specs[-1] if isinstance(task, StagedTask) else max(specs, key=lambda spec: sum(x.size for x in spec.values()))
    )


def count_positions(spec: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    """Returns the number of positions of a batch, including padding."""
    return max(x.size for x in spec.values() if jnp.issubdtype(x.dtype, jnp.integer))


def training_flops(task: TrainingTask, spec: Mapping[str, jax.ShapeDtypeStruct]) -> float:
    """Returns the operations of an update without recomputation: three times those of the loss, once those of metrics.

    The backward pass has two products for each product of the forward pass. For BERT this is
    6P + 12 L S H + 6 m (H^2 + H V) per token, see docs/benchmarks.md, without the last layer's products where
    the loss does not read its output, plus the small products of the pooler. A teacher adds its forward pass.

    Args:
      task: the task.
      spec: the shapes of a batch, see `TrainingTask.batch_specs`.
    """
    with jax.sharding.use_abstract_mesh(_CPUS):
        params = jax.eval_shape(lambda: task.init(jax.random.key(0)))
        program, (sums, _) = jax.make_jaxpr(lambda p, b: task.loss(p, b, None), return_shape=True)(params, dict(spec))
        is_sum = [number < len(sums) for number in range(len(program.out_avals))]
        loss, _ = pe.dce_jaxpr(program.jaxpr, is_sum)
        both, _ = pe.dce_jaxpr(program.jaxpr, [True] * len(is_sum))
        return 2 * matrix_flops(loss) + matrix_flops(both) + teacher_flops(task, spec)


def teacher_flops(task: TrainingTask, spec: Mapping[str, jax.ShapeDtypeStruct]) -> float:
    """Returns the operations of a teacher in an update, whose outputs `spec` has; 0 if there are none to compute."""
    if not isinstance(task, TaughtTask) or task.stores:
        return 0.0
    params = jax.eval_shape(task.teacher.init, jax.random.key(0))
    program = jax.make_jaxpr(task.teacher_fields)(params, dict(spec)).jaxpr
    used, _ = pe.dce_jaxpr(program, [True] * len(program.outvars))  # without the teacher's own loss
    return matrix_flops(used)


def update_flops(task: TrainingTask, spec: Mapping[str, jax.ShapeDtypeStruct]) -> float:
    """Returns the operations of an update, including those that rematerialization repeats; see `training_flops`."""

    def loss(params: Any, batch: Any) -> jax.Array:
        return sum(task.loss(params, batch, None)[0].values(), jnp.zeros(()))

    with jax.sharding.use_abstract_mesh(_CPUS):
        params = jax.eval_shape(lambda: task.init(jax.random.key(0)))
        return matrix_flops(jax.make_jaxpr(jax.grad(loss))(params, dict(spec)).jaxpr)


def with_plain_attention(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config with attention that can be traced for any device, for `training_flops`."""
    model = config["model"]
    if model.get("attention_backend", "auto") in ("auto", "xla"):
        return config
    return {**config, "model": {**model, "attention_backend": "xla"}}


def matrix_flops(jaxpr: Any) -> float:
    """Returns the operations of matrix products: two per product of two numbers, for all iterations of scans."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            lhs_shape = equation.invars[0].aval.shape
            result = equation.outvars[0].aval.shape
            total += 2.0 * math.prod(result) * math.prod(lhs_shape[axis] for axis in contracted)
        inner = [matrix_flops(function) for function in _inner(equation.params)]
        if equation.primitive.name == "cond":
            total += max(inner)
        else:
            total += sum(inner) * equation.params.get("length", 1)
    return total


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    """The traced functions that an equation calls."""
    for value in params.values():
        for function in value if isinstance(value, (tuple, list)) else (value,):
            function = getattr(function, "jaxpr", function)  # unwraps a closed jaxpr, which also has constants
            if hasattr(function, "eqns"):
                yield function
