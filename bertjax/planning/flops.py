"""Operations of the matrix products in a traced function, without compiling it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from bertjax.contract import Task


def training_flops(task: Task, spec: Mapping[str, jax.ShapeDtypeStruct]) -> float:
    """Returns the operations of an update without recomputation: three times those of the loss.

    The backward pass has two products for each product of the forward pass. For BERT this is
    6P + 12 L S H + 6 m (H^2 + H V) per token, see docs/benchmarks.md, plus the small products of the pooler.

    Args:
      task: the task.
      spec: the shapes of a batch, see `Task.batch_specs`.
    """
    params = jax.eval_shape(task.init, jax.random.key(0))
    return 3 * matrix_flops(jax.make_jaxpr(lambda p, b: task.loss(p, b, None))(params, dict(spec)).jaxpr)


def matrix_flops(jaxpr: Any) -> float:
    """Returns the operations of matrix products: two per product of two numbers.

    All iterations of scans, all blocks of kernels and all devices are counted."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            result = equation.outvars[0].aval.shape
            total += 2.0 * math.prod(result) * math.prod(left[axis] for axis in contracted)
        if equation.primitive.name == "dot_product_attention_fwd_wrapper":  # cuDNN's attention
            query, key, value = (each.aval.shape for each in equation.invars[:3])  # [B, S, N, Q], [B, T, N, Q or D]
            total += 2.0 * math.prod(query[:3]) * key[1] * (query[3] + value[3])
        inner = [matrix_flops(each) for each in _inner(equation.params)]
        total += max(inner) if equation.primitive.name == "cond" else sum(inner) * _repetitions(equation)
    return total


def _repetitions(equation: Any) -> int:
    """How often the functions that an equation calls are computed."""
    if equation.primitive.name == "pallas_call":
        return math.prod(equation.params["grid_mapping"].grid)
    if equation.primitive.name == "shard_map":
        return math.prod(equation.params["mesh"].shape[axis] for axis in equation.params["newly_manual_axes"])
    return int(equation.params.get("length", 1))


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    """The traced functions that an equation calls."""
    for value in params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            each = getattr(each, "jaxpr", each)  # unwraps a closed jaxpr, which also has constants
            if hasattr(each, "eqns"):
                yield each
