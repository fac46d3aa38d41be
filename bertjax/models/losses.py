"""Losses and scores of single predictions: whoever calls them masks, sums and averages."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.config import choice
from bertjax.models.dot_product import MASKED_SCORE


def cross_entropy(logits: Float[Array, "*n C"], labels: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """-log softmax(logits)[labels], for each."""
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def smoothed_cross_entropy(
    logits: Float[Array, "*n V"],
    labels: Int[Array, "*n"],
    smoothing: float,
    denominator: str,
    padding_id: int | None = None,
) -> Float[Array, "*n"]:
    """The cross-entropy with labels that are smoothed (Szegedy et al. 2016, section 7), for each.

    The Kullback-Leibler divergence that other systems report is this minus the smoothed label's entropy, a constant.

    Args:
      logits: of all words.
      labels: the right ones.
      smoothing: the probability that the label gives away. At 0 this is `cross_entropy`.
      denominator: to whom, in equal parts. "V": to all words, the label among them, as torch; "V-1": to the others, as
        fairseq and Flax's wmt; "V-2": to the others but padding, as the Annotated Transformer and PreSumm.
      padding_id: the word that gets nothing with "V-2".
    """
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    total = jnp.sum(logits, axis=-1)
    if denominator != "V":
        total -= picked
    if denominator == "V-2":
        assert padding_id is not None
        total -= logits[..., padding_id]
    mean = total / _num_smoothed(logits.shape[-1], denominator)
    return jax.nn.logsumexp(logits, axis=-1) - picked - smoothing * (mean - picked)


def _num_smoothed(num_words: int, denominator: str) -> int:
    choice(denominator, ("V", "V-1", "V-2"), "smoothing_denominator")
    return num_words - {"V": 0, "V-1": 1, "V-2": 2}[denominator]


def is_best(logits: Float[Array, "*n C"], labels: Int[Array, "*n"]) -> Bool[Array, "*n"]:
    """Whether no other class is as likely as the label's. Comparing is several times as fast as `argmax` on CPU."""
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    return jnp.sum(logits >= picked, axis=-1) == 1


def squared_error(predictions: Float[Array, "*n"], targets: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """(predictions - targets)^2, for each."""
    return jnp.square(predictions - targets)


def span_cross_entropy(
    start_logits: Float[Array, "*n S"],
    end_logits: Float[Array, "*n S"],
    starts: Int[Array, "*n"],
    ends: Int[Array, "*n"],
) -> Float[Array, "*n"]:
    """The mean of the cross-entropies of a span's first and last token, as `run_squad.py` of google-research/bert.

    That code lets padding and the question take part in the softmax. To leave them out, give `mask_logits(...)`.
    """
    return (cross_entropy(start_logits, starts) + cross_entropy(end_logits, ends)) / 2


def mask_logits(logits: Float[Array, "*n C"], allowed: Bool[Array, "*n C"]) -> Float[Array, "*n C"]:
    """The logits, those of what is not allowed so low that a softmax gives it nothing."""
    return jnp.where(allowed, logits, MASKED_SCORE)
