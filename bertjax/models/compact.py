"""Attention compiled by XLA for TPUs and GPUs, with few arrays of the size of the scores.

Shapes: B batch, S queries, T keys, N heads, D head size, Q size of a head's queries and keys, U = T / 2. Key 2 u + h is
at [h, u].
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Key

from bertjax.models import meshes
from bertjax.models.dot_product import MASKED_SCORE, RESIDUALS, Context, Dropout, Mask
from bertjax.models.layers import LEVELS, kept_levels

_Scores = Float[Array, "B N S 2 U"]


def compact(
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B T N Q"],
    value: Float[Array, "B T N D"],
    mask: Mask,
    dropout: Dropout | None,
) -> tuple[Context, None]:
    """`xla` with a backward pass that recomputes the weights from the statistics of the softmax.

    Scores and statistics are float32 and stay inside fusions on a TPU. What is stored has the dtype of the values. Keys
    are split into even and odd ones, because dropout draws two keys' bits in one word, and a TPU is slow to interleave
    the halves. T is even.
    """
    keys, rate = dropout or (None, 0.0)
    allowed = mask.allowed.reshape(*mask.allowed.shape[:3], -1, 2).swapaxes(-1, -2)
    query = (query * query.shape[-1] ** -0.5).swapaxes(1, 2)
    return _attend(query, _halves(key), _halves(value), allowed, keys, rate).swapaxes(1, 2), None


def _halves(x: Float[Array, "B T N D"]) -> Float[Array, "B N 2 U D"]:
    return x.reshape(x.shape[0], -1, 2, *x.shape[2:]).transpose(0, 3, 2, 1, 4)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    query: Float[Array, "B N S Q"],
    key: Float[Array, "B N 2 U Q"],
    value: Float[Array, "B N 2 U D"],
    allowed: Bool[Array, "B 1 #S 2 U"],
    keys: Key[Array, "B N"] | None,
    rate: float,
) -> Float[Array, "B N S D"]:
    return _forward(query, key, value, allowed, keys, rate)[0]


def _forward(
    query: Array, key: Array, value: Array, allowed: Array, keys: Array | None, rate: float
) -> tuple[Array, tuple[Any, ...]]:
    """The result, and what `_backward` needs."""
    largest = _scores(query, key, allowed).max((-1, -2))
    # A second product costs less than storing the scores. The barrier keeps XLA from merging both.
    again, largest = _barrier((query, largest))
    powers = jnp.exp(_scores(again, key, allowed) - largest[..., None, None])
    total = powers.sum((-1, -2))
    powers, total = _barrier((powers.astype(value.dtype), total))
    kept, scale = _dropped(powers, keys, rate)
    context = jnp.einsum("BNShU,BNhUD->BNSD", kept, value, preferred_element_type=jnp.float32)
    context = (context * (scale / total)[..., None]).astype(value.dtype)
    context, largest, total = (checkpoint_name(x, RESIDUALS) for x in (context, largest, total))
    return context, (query, key, value, allowed, keys, context, largest, total)


def _backward(rate: float, residuals: tuple[Any, ...], gradient: Array) -> tuple[Array | None, ...]:
    query, key, value, allowed, keys, context, largest, total = residuals
    weights = jnp.exp(_scores(query, key, allowed) - largest[..., None, None]) / total[..., None, None]
    weights = _barrier(weights.astype(value.dtype))
    of_kept = jnp.einsum("BNSD,BNhUD->BNShU", gradient, value, preferred_element_type=jnp.float32)
    kept, scale = _dropped(weights, keys, rate)
    of_weights, _ = _dropped(of_kept, keys, rate)
    # The mean of the weights' gradients, by which the softmax corrects them.
    mean = jnp.sum(gradient.astype(jnp.float32) * context.astype(jnp.float32), axis=-1)
    of_scores = (weights * (of_weights * scale - mean[..., None, None])).astype(query.dtype)
    of_value = jnp.einsum("BNShU,BNSD->BNhUD", kept, (gradient * scale).astype(gradient.dtype))
    of_query = jnp.einsum("BNShU,BNhUQ->BNSQ", of_scores, key)
    of_key = jnp.einsum("BNShU,BNSQ->BNhUQ", of_scores, query)
    return of_query, of_key, of_value, None, None


_attend.defvjp(_forward, _backward)


def _scores(query: Array, key: Array, allowed: Array) -> _Scores:
    scores = jnp.einsum("BNSQ,BNhUQ->BNShU", query, key, preferred_element_type=jnp.float32)
    return jnp.where(allowed, scores, MASKED_SCORE)


def _dropped(x: _Scores, keys: Array | None, rate: float) -> tuple[_Scores, float]:
    """`x` with zeros for what `layers.drop` would drop, and the scale of the others."""
    if keys is None:
        return x, 1.0
    _, _, queries, halves, size = x.shape
    words = jnp.vectorize(lambda key: jax.random.bits(key, (queries, size), jnp.uint32), signature="()->(s,u)")(keys)
    bits = (words[..., None, :] >> (16 * jnp.arange(halves, dtype=jnp.uint32))[:, None]) & (LEVELS - 1)
    kept = kept_levels(rate)
    return jnp.where(bits < kept, x, 0), LEVELS / kept


def _barrier(x: Any) -> Any:
    """Keeps XLA from fusing the computation of `x` with its use, on a TPU; on a GPU that would store more."""
    return jax.lax.optimization_barrier(x) if meshes.platform() == "tpu" else x
