"""Scaled dot-product attention as written in Vaswani et al. 2017, equation 1, compiled by XLA for any device.

Shapes: B batch, S queries, T keys, N heads, Q size of a head's queries and keys, D size of its values.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from bertjax.models.attention import disentangled
from bertjax.models.attention.inputs import MASKED_SCORE, AttentionInputs, Context, Weights
from bertjax.models.attention.mask import as_array
from bertjax.models.layers import drop


def xla(inputs: AttentionInputs) -> tuple[Context, Weights]:
    """Attention written as in the equation, compiled by XLA for any device.

    Scores, bias, mask and softmax are float32.

    Returns:
      The weighted mean of the values for each query, and the weights before dropout.
    """
    query, key, value = (x.swapaxes(1, 2) for x in inputs[:3])
    keys, rate = inputs.dropout or (None, 0.0)
    context, weights = attend(query, key, value, as_array(inputs.mask), inputs.bias, inputs.relative, keys, rate)
    return context.swapaxes(1, 2), weights


def attend(
    query: Float[Array, "*pairs S Q"],
    key: Float[Array, "*pairs T Q"],
    value: Float[Array, "*pairs T D"],
    mask: Bool[Array, "*#pairs #S T"],
    bias: Float[Array, "*#pairs S T"] | None,
    relative: disentangled.Positions | None,
    keys: Key[Array, "*pairs"] | None,
    rate: float,
) -> tuple[Float[Array, "*pairs S D"], Float[Array, "*pairs S T"]]:
    """Returns the attention of each (row, head) pair, and the weights before dropout."""
    if relative is not None:
        bias = disentangled.scores(query, key, relative)
    query = query * query.shape[-1] ** -0.5  # fewer elements than the scores
    scores = jnp.einsum("...SQ,...TQ->...ST", query, key, preferred_element_type=jnp.float32)
    scores = scores if bias is None else scores + bias
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED_SCORE))
    dropped = weights.astype(value.dtype)
    if keys is not None:
        dropped = jnp.vectorize(functools.partial(drop, rate=rate), signature="(s,t),()->(s,t)")(dropped, keys)
    return dropped @ value, weights
