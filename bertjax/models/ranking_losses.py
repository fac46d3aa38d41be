"""Losses of the scores that a reranker gives the texts of a query.

Shapes: B queries, C texts of a query: its positive, then its negatives. Each loss takes logits [B, C], targets [B, C]
and whether a query has each text, [B, C], and returns the loss of each query, [B].
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.models.losses import RANKS, mask_logits, squared_error

Scores = Float[Array, "B C"]
Present = Bool[Array, "B C"]


def binary(logits: Scores, targets: Scores, present: Present) -> Float[Array, " B"]:
    """The sum of the cross-entropies of probabilities, the sigmoids of logits; `BinaryCrossEntropyLoss`.

    It and the other names are those of sentence-transformers, where a loss is a mean instead of a sum.
    """
    return _sum(jax.nn.softplus(logits) - logits * targets, present)


def regression(logits: Scores, targets: Scores, present: Present) -> Float[Array, " B"]:
    """The sum of the squared errors; `MSELoss`."""
    return _sum(squared_error(logits, targets), present)


def listwise(logits: Scores, targets: Scores, present: Present) -> Float[Array, " B"]:
    """The cross-entropy of choosing a text with the probabilities `targets`.

    With one positive, it is `MultipleNegativesRankingLoss` with the row's own negatives, scale 1 and no activation.
    With the softmax of scores, it is `ListNetLoss` (Cao et al. 2007, "Learning to rank: from pairwise approach to
    listwise approach").
    """
    return -_sum(targets * jax.nn.log_softmax(mask_logits(logits, present)), present)


def distillation(logits: Scores, targets: Scores, present: Present) -> Float[Array, " B"]:
    """The mean of the squared errors of how much higher the positive scores than each negative; `MarginMSELoss`.

    Hofstaetter et al. 2020, "Improving efficient neural ranking models with cross-architecture knowledge distillation".
    """
    errors = (logits[:, :1] - logits) - (targets[:, :1] - targets)
    return _sum(jnp.square(errors), present) / jnp.maximum(jnp.sum(present[:, 1:], axis=1), 1)


CORRELATIONS = ("pearson", "spearman")
PRECISION = ("average_precision",)


class Objective(NamedTuple):
    """A loss, and the rows that it is computed on.

    Attributes:
      loss: the loss.
      compares: whether it compares the texts of a row, which then needs a negative.
      needs_scores: whether rows must state the scores of their texts.
      is_probability: whether scores are from 0 to 1, and those of predictions are sigmoids of logits.
      is_distribution: whether targets are the softmax of the scores of a row, if rows state scores.
      metrics: the validation metrics if rows state scores: `RANKS` of positives, `CORRELATIONS` with the scores, or
        `PRECISION` of the texts whose score is 0.5 or more. Rows without scores have `RANKS`.
    """

    loss: Callable[[Scores, Scores, Present], Float[Array, " B"]]
    compares: bool = False
    needs_scores: bool = False
    is_probability: bool = False
    is_distribution: bool = False
    metrics: Sequence[str] = RANKS


OBJECTIVES = {
    "listwise": Objective(listwise, compares=True, is_distribution=True),
    "binary": Objective(binary, is_probability=True, metrics=PRECISION),
    "regression": Objective(regression, needs_scores=True, metrics=CORRELATIONS),
    "distillation": Objective(distillation, compares=True, needs_scores=True),
}


def _sum(values: Scores, present: Present) -> Float[Array, " B"]:
    return jnp.sum(jnp.where(present, values, 0), axis=1)
