"""Attention compiled by XLA for TPUs and GPUs, with few arrays of the size of the scores.

Shapes: B batch, S queries, T keys, N heads, D head size, Q size of a head's queries and keys. Keys are split into h
halves of U = T / h. Key h u + i is at [i, u].
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Key

from bertjax import meshes
from bertjax.models.dot_product import MASKED_SCORE, RESIDUALS, Context, Dropout, Mask
from bertjax.models.layers import LEVELS, kept_levels

_Scores = Float[Array, "B N S h U"]


def compact(
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B T N Q"],
    value: Float[Array, "B T N D"],
    mask: Mask,
    dropout: Dropout | None,
) -> tuple[Context, None]:
    """`xla` with a backward pass that recomputes the weights from the statistics of the softmax.

    Scores and statistics are float32 and stay inside fusions on a TPU. What is stored has the dtype of the values. On a
    TPU, even and odd keys are apart if their number is even, because dropout draws two keys' bits in one word, and a
    TPU is slow to interleave them.
    """
    keys, rate = dropout or (None, 0.0)
    halves = 2 if meshes.platform() == "tpu" and key.shape[1] % 2 == 0 else 1
    key, value = (_split(x, halves).transpose(0, 3, 2, 1, 4) for x in (key, value))
    allowed = _split(mask.allowed.swapaxes(1, 3), halves).transpose(0, 4, 3, 2, 1)
    query = (query * query.shape[-1] ** -0.5).swapaxes(1, 2)
    return _attend(query, key, value, allowed, keys, rate).swapaxes(1, 2), None


def _split(x: Array, halves: int) -> Array:
    """Splits axis 1, of keys, into pairs or single keys: [B, T, ...] to [B, U, h, ...]."""
    return x.reshape(x.shape[0], -1, halves, *x.shape[2:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    query: Float[Array, "B N S Q"],
    key: Float[Array, "B N h U Q"],
    value: Float[Array, "B N h U D"],
    allowed: Bool[Array, "B 1 #S h U"],
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
    of_kept = jnp.einsum("BNSD,BNhUD->BNShU", gradient, value)
    kept, scale = _dropped(weights, keys, rate)
    of_weights, _ = _dropped(of_kept, keys, rate)
    # The mean of the weights' gradients, by which the softmax corrects them.
    mean = jnp.sum(gradient.astype(jnp.float32) * context.astype(jnp.float32), axis=-1)
    of_scores = jnp.where(allowed, weights * (of_weights * scale - mean[..., None, None]), 0).astype(query.dtype)
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
    shape = queries, -(-halves * size // 2)
    words = jnp.vectorize(lambda key: jax.random.bits(key, shape, jnp.uint32), signature="()->(s,u)")(keys)
    if halves == 2:
        bits = (words[..., None, :] >> jnp.array([[0], [16]], jnp.uint32)) & (LEVELS - 1)
    else:
        bits = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*words.shape[:3], 1, -1)[..., :size]
    kept = kept_levels(rate)
    return jnp.where(bits < kept, x, 0), LEVELS / kept


def _barrier(x: Any) -> Any:
    """Keeps XLA from fusing the computation of `x` with its use, on a TPU; on a GPU that would store more."""
    return jax.lax.optimization_barrier(x) if meshes.platform() == "tpu" else x
