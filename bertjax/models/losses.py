"""Losses and scores of single predictions: whoever calls them masks, sums and averages."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.models.attention import MASKED_SCORE


def cross_entropy(logits: Float[Array, "*n C"], labels: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """-log softmax(logits)[labels], for each."""
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def is_best(logits: Float[Array, "*n C"], labels: Int[Array, "*n"]) -> Bool[Array, "*n"]:
    """Whether no other class is as likely as the label's. Comparing is several times as fast as `argmax` on CPU."""
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    return jnp.sum(logits >= picked, axis=-1) == 1


def squared_error(predictions: Float[Array, "*n"], targets: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """(predictions - targets)^2, for each."""
    return jnp.square(predictions - targets)


def span_cross_entropy(
    start_logits: Float[Array, "B S"],
    end_logits: Float[Array, "B S"],
    starts: Int[Array, " B"],
    ends: Int[Array, " B"],
) -> Float[Array, " B"]:
    """The mean of the cross-entropies of a span's first and last token, as `run_squad.py` of google-research/bert.

    That code lets padding and the question take part in the softmax. To leave them out, give `mask_logits(...)`.
    """
    return (cross_entropy(start_logits, starts) + cross_entropy(end_logits, ends)) / 2


def mask_logits(logits: Float[Array, "*n C"], allowed: Bool[Array, "*n C"]) -> Float[Array, "*n C"]:
    """The logits, those of what is not allowed so low that a softmax gives it nothing."""
    return jnp.where(allowed, logits, MASKED_SCORE)
