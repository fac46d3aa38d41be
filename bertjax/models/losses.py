"""Losses and scores of single predictions. Callers mask, sum and average them."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.config import choice
from bertjax.models.attention.inputs import MASKED_SCORE

RANKS = ("accuracy@1", "mrr@10", "ndcg@10")  # the metrics of rankings


def cross_entropy(logits: Float[Array, "*n C"], labels: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns -log softmax(logits)[labels] for each prediction."""
    return jax.nn.logsumexp(logits, axis=-1) - _of_labels(logits.shape[-1], logits, labels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_labels(num_classes: int, logits: Float[Array, "*n C"], labels: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """The logits of the labels. Differentiating the lookup would store a gradient in float32 to scatter into it."""
    del num_classes
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def _of_labels_backward(num_classes: int, labels: Array, gradient: Array) -> tuple[Array, None]:
    return jnp.where(labels[..., None] == jnp.arange(num_classes), gradient[..., None], 0), None


_of_labels.defvjp(
    lambda num_classes, logits, labels: (_of_labels(num_classes, logits, labels), labels), _of_labels_backward
)


def binary_cross_entropy(
    logits: Float[Array, "*n C"], labels: Bool[Array, "*n C"], weights: Float[Array, " C"] | None = None
) -> Float[Array, "*n"]:
    """Returns the mean over the classes of -log sigmoid(logits) or, for classes that are absent, -log sigmoid(-logits).

    Args:
      logits: the logits of all classes.
      labels: whether each class is present.
      weights: the weight of each class where it is present, `pos_weight` of torch's BCEWithLogitsLoss; None for 1 each.
    """
    present = jax.nn.softplus(-logits) * (1.0 if weights is None else weights)
    return jnp.mean(jnp.where(labels, present, jax.nn.softplus(logits)), axis=-1)


def smoothed_cross_entropy(
    logits: Float[Array, "*n V"],
    labels: Int[Array, "*n"],
    smoothing: float,
    denominator: str,
    padding_id: int | None = None,
) -> Float[Array, "*n"]:
    """Returns the cross-entropy with label smoothing (Szegedy et al. 2016, section 7) for each prediction.

    The Kullback-Leibler divergence that other systems report is this minus the entropy of the smoothed label, which is
    constant.

    Args:
      logits: the logits of all words.
      labels: the correct words.
      smoothing: the probability that is spread over other words. At 0 this is `cross_entropy`.
      denominator: the words that share it equally. "V": all words including the label, as in torch; "V-1": all other
        words, as in fairseq and Flax's wmt example; "V-2": all other words except padding, as in the Annotated
        Transformer and PreSumm.
      padding_id: the word that gets no probability with "V-2".
    Raises:
      UserError: if the denominator is none of these.
    """
    picked = _of_labels(logits.shape[-1], logits, labels)
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
    """Whether the label is likelier than all other classes. Comparing is several times as fast as `argmax` on CPU."""
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    return jnp.sum(logits >= picked, axis=-1) == 1


def squared_error(predictions: Float[Array, "*n"], targets: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns (predictions - targets)^2 for each prediction."""
    return jnp.square(predictions - targets)


def span_cross_entropy(
    start_logits: Float[Array, "*n S"],
    end_logits: Float[Array, "*n S"],
    starts: Int[Array, "*n"],
    ends: Int[Array, "*n"],
) -> Float[Array, "*n"]:
    """Returns the mean cross-entropy of a span's first and last token, as in `run_squad.py` of google-research/bert.

    That code includes padding and the question in the softmax. To exclude them, pass logits through `mask_logits`.
    """
    return (cross_entropy(start_logits, starts) + cross_entropy(end_logits, ends)) / 2


def mask_logits(logits: Float[Array, "*n C"], allowed: Bool[Array, "*n C"]) -> Float[Array, "*n C"]:
    """Returns the logits, with a value that softmax maps to 0 for classes that are not allowed."""
    return jnp.where(allowed, logits, MASKED_SCORE)
