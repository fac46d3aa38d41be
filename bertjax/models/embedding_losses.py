"""Losses of vectors of texts. They couple the examples of a batch, so they are computed on the whole global batch.

Shapes: B examples, T texts of an example (the query, its positive, and T - 2 negatives), D size of a vector.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.models.attention.inputs import MASKED_SCORE
from bertjax.models.losses import RANKS

_LEAST_NORM = 1e-12  # as in torch.nn.functional.normalize
_LEAST_SQUARE = 1e-12  # keeps the gradient of a distance of 0 finite


class Texts(NamedTuple):
    """The texts of a batch of examples, apart from their vectors."""

    present: Bool[Array, "B T"]  # whether an example has this text
    numbers: Int[Array, "B T"]  # equal for texts that are equal, or of one class
    scores: Float[Array, "B K"]  # what the examples state: a similarity, or K = T - 1 scores of a teacher; or nothing
    weights: Float[Array, " B"]  # 1, or 0 for an example that only fills the batch


class LossConfig(NamedTuple):
    """What the losses need; see `configs/embeddings.py`."""

    symmetric: bool = False
    false_negative_margin: float | None = None
    triplet_margin: float = 5.0


Vectors = Float[Array, "B T D"]
Scale = Float[Array, ""]
# From vectors, texts, scale and config to the loss of each example [B], or of the whole batch [].
Loss = Callable[[Vectors, Texts, Scale, LossConfig], Array]


def ranking(vectors: Vectors, texts: Texts, scale: Scale, config: LossConfig) -> Float[Array, " B"]:
    """The cross-entropy of choosing the positive of a query among the documents of the whole batch.

    Henderson et al. 2017, "Efficient natural language response suggestion for Smart Reply", section 4.4;
    `MultipleNegativesRankingLoss` of sentence-transformers, whose `symmetric` form also chooses the query of a positive
    among all queries, and takes the mean of both. Unlike there, documents with the text of the query or of its
    positive, and the positives of equal queries, are not negatives; nor are documents that are more similar to the
    query than its positive plus `false_negative_margin`, if it is set.
    """
    unit = _normalized(vectors)
    queries, documents = unit[:, 0], unit[:, 1:].swapaxes(0, 1).reshape(-1, unit.shape[-1])  # column after column
    similar = _products(queries, documents)  # [B, (T - 1) B]
    matching = jnp.diagonal(similar)
    numbers = texts.numbers[:, 1:].T.ravel()
    present = (texts.present & (texts.weights > 0)[:, None])[:, 1:].T.ravel()
    same_query = texts.numbers[:, :1] == texts.numbers[:, 0]  # [B, B]
    is_other = (numbers != texts.numbers[:, 1:2]) & (numbers != texts.numbers[:, :1])
    is_positive_of_same = jnp.pad(same_query, ((0, 0), (0, len(numbers) - len(matching))))
    negative = present & is_other & ~is_positive_of_same
    if config.false_negative_margin is not None:
        negative &= jax.lax.stop_gradient(similar <= matching[:, None] + config.false_negative_margin)
    forward = _chosen(scale * similar, negative)
    if not config.symmetric:
        return forward
    same_positive = texts.numbers[:, 1:2] == texts.numbers[:, 1]
    is_positive = texts.numbers[:, 0] == texts.numbers[:, 1:2]
    others = (texts.weights > 0) & ~same_positive & ~same_query & ~is_positive
    return (forward + _chosen(scale * similar[:, : len(matching)].T, others)) / 2


def cosine(vectors: Vectors, texts: Texts, scale: Scale, config: LossConfig) -> Float[Array, " B"]:
    """The squared error of the cosine of two texts as a prediction of their score; `CosineSimilarityLoss`."""
    return jnp.square(_cosines(vectors)[:, 0] - texts.scores[:, 0])


def cosent(vectors: Vectors, texts: Texts, scale: Scale, config: LossConfig) -> Float[Array, ""]:
    """log(1 + the sum of exp(scale (c_i - c_j))) over all i and j where the score of pair i is lower (CoSENT).

    Huang et al. 2024, "CoSENT: Consistent sentence embedding via similarity ranking"; `CoSENTLoss`.
    """
    cosines = scale * _cosines(vectors)[:, 0]
    scores = texts.scores[:, 0]
    real = texts.weights > 0
    is_lower = (scores[:, None] < scores) & real[:, None] & real
    differences = jnp.where(is_lower, cosines[:, None] - cosines, MASKED_SCORE)
    return jax.nn.logsumexp(jnp.append(differences.ravel(), 0.0))


def triplet(vectors: Vectors, texts: Texts, scale: Scale, config: LossConfig) -> Float[Array, " B"]:
    """How much less than `triplet_margin` a negative is farther from the query than the positive is; `TripletLoss`.

    The distance is Euclidean (Schroff et al. 2015). Several negatives have equal weight.
    """
    squares = jnp.sum(jnp.square(vectors[:, :1] - vectors[:, 1:]), axis=-1)
    distances = jnp.sqrt(jnp.maximum(squares, _LEAST_SQUARE))
    return _mean_of_negatives(jax.nn.relu(distances[:, :1] - distances + config.triplet_margin), texts)


def margin(vectors: Vectors, texts: Texts, scale: Scale, config: LossConfig) -> Float[Array, " B"]:
    """The squared error of the difference of two dot products as a prediction of a teacher's; `MarginMSELoss`.

    Hofstaetter et al. 2020, "Improving efficient neural ranking models with cross-architecture knowledge distillation".
    The scores of the example are those of the teacher for the positive and each negative.
    """
    products = jnp.einsum("BD,BTD->BT", vectors[:, 0], vectors[:, 1:], precision="highest")
    errors = (products[:, :1] - products) - (texts.scores[:, :1] - texts.scores)
    return _mean_of_negatives(jnp.square(errors), texts)


CORRELATIONS = ("spearman", "pearson")


class Objective(NamedTuple):
    """A loss, and the rows that it is computed on.

    Attributes:
      loss: the loss.
      scores: the scores that a row states: "" for none, "pair" for the similarity of its two texts, "teacher" for one
        of each document.
      score_range: the smallest and the largest score that a row may state; None for any.
      needs_negatives: whether rows have negatives.
      allows_classes: whether rows may have a class in place of a positive.
      metrics: the validation metrics, `RANKS` of positives or `CORRELATIONS` of cosines with the scores of pairs.
    """

    loss: Loss
    scores: str = ""
    score_range: tuple[float, float] | None = None
    needs_negatives: bool = False
    allows_classes: bool = False
    metrics: Sequence[str] = RANKS


OBJECTIVES = {
    "ranking": Objective(ranking, allows_classes=True),
    "cosine": Objective(cosine, "pair", (-1, 1), metrics=CORRELATIONS),
    "cosent": Objective(cosent, "pair", metrics=CORRELATIONS),
    "triplet": Objective(triplet, needs_negatives=True),
    "margin": Objective(margin, "teacher", needs_negatives=True),
}


def total(
    name: str, vectors: Vectors, texts: Texts, scale: Scale, config: LossConfig, sizes: Sequence[int] = ()
) -> Float[Array, ""]:
    """Returns the mean of a loss over the examples of the whole batch that have a weight.

    With `sizes`, it is the sum of the losses of the first numbers of the vectors, for each size and for the whole
    vectors, all of them normalized (Kusupati et al. 2022; `MatryoshkaLoss` of sentence-transformers).
    """
    if sizes:
        parts = [_normalized(vectors[..., :size]) for size in (*sizes, vectors.shape[-1])]
        return sum((total(name, part, texts, scale, config) for part in parts), jnp.zeros(()))
    losses = OBJECTIVES[name].loss(vectors, texts, scale, config)
    if not losses.ndim:
        return losses
    return jnp.sum(jnp.where(texts.weights > 0, losses, 0)) / jnp.maximum(jnp.sum(texts.weights), 1)


def _normalized(vectors: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, _LEAST_NORM**2))


def _products(a: Float[Array, "M D"], b: Float[Array, "N D"]) -> Float[Array, "M N"]:
    return jnp.einsum("MD,ND->MN", a, b, precision="highest")


def _cosines(vectors: Vectors) -> Float[Array, "B documents"]:
    unit = _normalized(vectors)
    return jnp.einsum("BD,BTD->BT", unit[:, 0], unit[:, 1:], precision="highest")


def _chosen(logits: Float[Array, "B N"], negative: Bool[Array, "B N"]) -> Float[Array, " B"]:
    """The cross-entropy of choosing entry i of row i among itself and the negatives of the row."""
    candidates = negative | jnp.eye(negative.shape[0], negative.shape[1], dtype=bool)
    return jax.nn.logsumexp(jnp.where(candidates, logits, MASKED_SCORE), axis=1) - jnp.diagonal(logits)


def _mean_of_negatives(values: Float[Array, "B documents"], texts: Texts) -> Float[Array, " B"]:
    negative = texts.present[:, 2:]
    total = jnp.sum(jnp.where(negative, values[:, 1:], 0), axis=1)
    return total / jnp.maximum(jnp.sum(negative, axis=1), 1)
