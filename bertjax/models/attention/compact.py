"""Attention compiled by XLA for TPUs and GPUs, with few arrays of the size of the scores.

Shapes: B batch, S queries, T keys, N heads, Q size of a head's queries and keys, D size of its values.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Key

from bertjax import meshes
from bertjax.models.attention.inputs import MASKED_SCORE, RESIDUALS, AttentionInputs, Context
from bertjax.models.attention.mask import as_array
from bertjax.models.layers import LEVELS, draw_levels, kept_levels

_Scores = Float[Array, "B N S T"]


def compact(inputs: AttentionInputs) -> tuple[Context, None]:
    """`xla` with a backward pass that recomputes the weights from the statistics of the softmax.

    Scores and statistics are float32 and stay inside fusions on a TPU. What is stored has the dtype of the values.
    """
    query, key, value, mask = inputs[:4]
    keys, rate = inputs.dropout or (None, 0.0)
    query, key, value = (x.swapaxes(1, 2) for x in (query * query.shape[-1] ** -0.5, key, value))
    return _attend(query, key, value, as_array(mask), inputs.bias, keys, rate).swapaxes(1, 2), None


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(
    query: Float[Array, "B N S Q"],
    key: Float[Array, "B N T Q"],
    value: Float[Array, "B N T D"],
    allowed: Bool[Array, "B 1 #S T"],
    bias: Float[Array, "#B N S T"] | None,
    keys: Key[Array, "B N"] | None,
    rate: float,
) -> Float[Array, "B N S D"]:
    return _forward(query, key, value, allowed, bias, keys, rate)[0]


def _forward(
    query: Array, key: Array, value: Array, allowed: Array, bias: Array | None, keys: Array | None, rate: float
) -> tuple[Array, tuple[Any, ...]]:
    """The result, and what `_backward` needs."""
    largest = _scores(query, key, allowed, bias).max(-1)
    # A second product costs less than storing the scores. The barrier keeps XLA from merging both.
    again, largest = _barrier((query, largest))
    powers = jnp.exp(_scores(again, key, allowed, bias) - largest[..., None])
    total = powers.sum(-1)
    powers, total = _barrier((powers.astype(value.dtype), total))
    kept_powers, scale = _dropped(powers, keys, rate)
    context = jnp.einsum("BNST,BNTD->BNSD", kept_powers, value, preferred_element_type=jnp.float32)
    context = (context * (scale / total)[..., None]).astype(value.dtype)
    context, largest, total = (checkpoint_name(x, RESIDUALS) for x in (context, largest, total))
    return context, (query, key, value, allowed, bias, keys, context, largest, total)


def _backward(rate: float, residuals: tuple[Any, ...], gradient: Array) -> tuple[Array | None, ...]:
    query, key, value, allowed, bias, keys, context, largest, total = residuals
    weights = jnp.exp(_scores(query, key, allowed, bias) - largest[..., None]) / total[..., None]
    weights = _barrier(weights.astype(value.dtype))
    kept_grad = jnp.einsum("BNSD,BNTD->BNST", gradient, value)
    kept_weights, scale = _dropped(weights, keys, rate)
    weights_grad, _ = _dropped(kept_grad, keys, rate)
    # The mean of the weights' gradients, by which the softmax corrects them.
    mean = jnp.sum(gradient.astype(jnp.float32) * context.astype(jnp.float32), axis=-1)
    scores_grad = jnp.where(allowed, weights * (weights_grad * scale - mean[..., None]), 0)
    bias_grad = None if bias is None else _summed(scores_grad, len(bias)).astype(bias.dtype)
    scores_grad = scores_grad.astype(query.dtype)
    value_grad = jnp.einsum("BNST,BNSD->BNTD", kept_weights, (gradient * scale).astype(gradient.dtype))
    query_grad = jnp.einsum("BNST,BNTQ->BNSQ", scores_grad, key)
    key_grad = jnp.einsum("BNST,BNSQ->BNTQ", scores_grad, query)
    return query_grad, key_grad, value_grad, None, bias_grad, None


_attend.defvjp(_forward, _backward)


def _summed(x: _Scores, rows: int) -> Float[Array, "{rows} N S T"]:
    """The gradient of a bias of `rows`: that of the scores, or their sum over all rows."""
    return x if rows == len(x) else x.sum(0, keepdims=True)


def _scores(query: Array, key: Array, allowed: Array, bias: Array | None) -> _Scores:
    scores = jnp.einsum("BNSQ,BNTQ->BNST", query, key, preferred_element_type=jnp.float32)
    return jnp.where(allowed, scores if bias is None else scores + bias, MASKED_SCORE)


def _dropped(x: _Scores, keys: Array | None, rate: float) -> tuple[_Scores, float]:
    """`x` with zeros for what `layers.drop` would drop, and the scale of the others."""
    if keys is None:
        return x, 1.0
    levels = jnp.vectorize(lambda key: draw_levels(key, x.shape[2:]), signature="()->(s,t)")(keys)
    kept_count = kept_levels(rate)
    return jnp.where(levels < kept_count, x, 0), LEVELS / kept_count


def _barrier(x: Any) -> Any:
    """Keeps XLA from fusing the computation of `x` with its use, on a TPU; on a GPU that would store more."""
    return jax.lax.optimization_barrier(x) if meshes.platform() == "tpu" else x
