"""Losses between the outputs of a teacher and of a student. A term that compares layers is a record of `TERMS`.

Shapes: B rows, S tokens of a row, n compared layers, N heads, D size of a head, R relation heads, W width, C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from bertjax.models.attention.rotary import rotate
from bertjax.models.bert import BertConfig
from bertjax.models.transformer import TransformerLayer


def divergence(
    teacher: Float[Array, "*n C"], student: Float[Array, "*n C"], temperature: float = 1.0
) -> Float32[Array, "*n"]:
    """Returns KL(teacher || student) of the softmax of logits divided by the temperature T, times T^2.

    With this factor the gradient keeps its scale at any T (Hinton et al. 2015, section 2).
    """
    expected = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    log_probabilities = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    # A masked class has log-probability -inf in both; the product would be NaN.
    differences = jnp.where(jnp.isneginf(expected), 0.0, expected - log_probabilities)
    return jnp.sum(jnp.exp(expected) * differences, axis=-1) * temperature**2


def flag_divergence(
    teacher: Float[Array, "*n C"], student: Float[Array, "*n C"], temperature: float = 1.0
) -> Float32[Array, "*n"]:
    """Returns the mean of `divergence` over independent flags, whose probabilities are sigmoids of the logits."""
    expected, actual = (jnp.stack([logits, jnp.zeros_like(logits)], axis=-1) for logits in (teacher, student))
    return jnp.mean(divergence(expected, actual, temperature), axis=-1)


def squared_distance(teacher: Float[Array, "*n W"], student: Float[Array, "*n W"]) -> Float32[Array, "*n"]:
    """Returns the mean squared difference of the elements of vectors."""
    return jnp.mean((teacher.astype(jnp.float32) - student.astype(jnp.float32)) ** 2, axis=-1)


def cosine_distance(teacher: Float[Array, "*n W"], student: Float[Array, "*n W"]) -> Float32[Array, "*n"]:
    """Returns 1 minus the cosine of vectors (Sanh et al. 2019, section 2)."""
    return 1 - jnp.sum(unit(teacher) * unit(student), axis=-1)


def mean_cosine(vectors: Float[Array, "n W"], weights: Float[Array, " n"]) -> Float32[Array, ""]:
    """Returns the mean cosine of two different vectors among those of weight 1; others have weight 0."""
    count = jnp.sum(weights)
    total = jnp.sum(unit(vectors) * weights[:, None], axis=0)
    return (jnp.sum(total**2) - count) / jnp.maximum(count * (count - 1), 1)


def are_related(segment_ids: Int[Array, "B S"]) -> Bool[Array, "B S S"]:
    """Returns which pairs of tokens are of the same instance; padding is of none."""
    return (segment_ids[:, :, None] == segment_ids[:, None]) & (segment_ids != 0)[:, None]


def scores(query: Float[Array, "B S N D"], key: Float[Array, "B S N D"]) -> Float32[Array, "B N S S"]:
    """Returns the products of queries and keys, divided by the square root of D."""
    products = jnp.einsum("BSND,BTND->BNST", query, key, preferred_element_type=jnp.float32)
    return products / query.shape[-1] ** 0.5


def relation_divergence(
    teacher: Float[Array, "B S W"], student: Float[Array, "B S V"], heads: int, segment_ids: Int[Array, "B S"]
) -> Float32[Array, "B S"]:
    """Returns the divergence of the relations of each token to those of its instance, the mean over `heads`.

    The relations of vectors, such as the queries of all heads of a layer, concatenated and split into R = `heads` parts
    that divide both widths, are the softmax of their scaled products (Wang et al. 2021, MiniLMv2, section 3.1).
    """
    allowed = are_related(segment_ids)[:, None]
    logits = []
    for vectors in (teacher, student):
        parts = vectors.reshape(*vectors.shape[:2], heads, -1)
        logits.append(jnp.where(allowed, scores(parts, parts), -jnp.inf))
    # Padding has no relations; any finite logits do, because its divergence has no weight.
    is_token = jnp.any(allowed, axis=-1, keepdims=True)
    expected, actual = (jnp.where(is_token, of_model, 0.0) for of_model in logits)
    return jnp.mean(divergence(expected, actual), axis=1)


Representations = Mapping[str, Array]  # what a term compares, by name, with the rows on axis 0
Losses = Callable[[Representations, Representations, Array, int], Array]


class Encoded(NamedTuple):
    """An encoder, and what it computed for the rows of a batch.

    Attributes:
      config: the encoder's.
      layers: the parameters of all its layers.
      states: the embeddings and the output of each layer [L + 1, B, S, H].
      position_ids: the positions [B, S]; None if they count from 0 on.
      compared: the numbers of the layers to compare, from 1 on.
      relation_layer: that of the layer whose relations are compared.
    """

    config: BertConfig
    layers: Any
    states: Array
    position_ids: Array | None
    compared: Sequence[int]
    relation_layer: int


class Term(NamedTuple):
    """A comparison of layers.

    Attributes:
      representations: returns what is compared.
      losses: returns the losses of tokens [B, S] or of pairs of tokens [B, S, S], given the representations of the
        teacher and of the student, `segment_ids` and the number of relation heads.
      is_of_pairs: whether they are those of pairs.
      is_projected: whether a learned map projects vectors of the student that have another width.
    """

    representations: Callable[[Encoded], Representations]
    losses: Losses
    is_of_pairs: bool = False
    is_projected: bool = False


def _queries_and_keys(encoded: Encoded) -> Representations:
    """Returns those of the compared layers [B, n, S, N, D], as their scores multiply them."""
    pairs = [_rotated(encoded, number) for number in encoded.compared]
    queries, keys = (jnp.stack(of_layers, axis=1) for of_layers in zip(*pairs, strict=True))
    return {"queries": queries, "keys": keys}


def _vectors_of_relations(encoded: Encoded) -> Representations:
    """Returns queries, keys and values [B, S, N * D]."""
    vectors = _heads(encoded, encoded.relation_layer)
    names = ("queries", "keys", "values")
    return {name: x.reshape(*x.shape[:2], -1) for name, x in zip(names, vectors, strict=True)}


def _state_losses(distance: Callable[[Array, Array], Array]) -> Losses:
    """Returns the mean over layers of a distance of states [B, n, S, H]."""
    return lambda teacher, student, *_: jnp.mean(distance(teacher["states"], student["states"]), axis=1)


def _score_losses(teacher: Representations, student: Representations, *_: Any) -> Array:
    """Returns the mean over layers and heads of the squared difference of scores."""
    total = jnp.zeros(())
    count = teacher["queries"].shape[1]
    for layer in range(count):
        ours, theirs = (scores(side["queries"][:, layer], side["keys"][:, layer]) for side in (student, teacher))
        total += jnp.mean((theirs - ours) ** 2, axis=1)
    return total / count


def _relation_losses(teacher: Representations, student: Representations, segment_ids: Array, heads: int) -> Array:
    """Returns the sum over queries, keys and values."""
    divergences = [relation_divergence(teacher[part], student[part], heads, segment_ids) for part in student]
    return jnp.sum(jnp.stack(divergences), axis=0)


TERMS: Mapping[str, Term] = {
    "hidden": Term(
        lambda encoded: {"states": jnp.stack([encoded.states[number] for number in encoded.compared], axis=1)},
        _state_losses(squared_distance),
        is_projected=True,
    ),
    "embeddings": Term(
        lambda encoded: {"states": encoded.states[0][:, None]}, _state_losses(squared_distance), is_projected=True
    ),
    "attention": Term(_queries_and_keys, _score_losses, is_of_pairs=True),
    "relations": Term(_vectors_of_relations, _relation_losses),
    "cosine": Term(
        lambda encoded: {"states": encoded.states[-1][:, None]}, _state_losses(cosine_distance), is_projected=True
    ),
}


def _heads(encoded: Encoded, number: int) -> tuple[Array, Array, Array]:
    """Returns queries, keys and values [B, S, N, D] of a layer, before rotation; keys have their bias."""
    kind = encoded.config.kind(number - 1)
    row = number - 1 if kind.group is None else kind.group
    of_layer = jax.tree.map(lambda leaf: leaf[row], encoded.layers)
    module = TransformerLayer(encoded.config, cross=False, kind=kind)
    vectors = module.apply({"params": of_layer}, encoded.states[number - 1], method="heads")
    return cast(tuple[Array, Array, Array], vectors)


def _rotated(encoded: Encoded, number: int) -> tuple[Array, Array]:
    """Returns queries and keys as the scores of a layer multiply them."""
    query, key, _ = _heads(encoded, number)
    query = query * encoded.config.query_scale
    base = encoded.config.kind(number - 1).rotary_base
    if not base:
        return query, key
    position_ids = encoded.position_ids
    if position_ids is None:
        position_ids = jnp.broadcast_to(jnp.arange(query.shape[1]), query.shape[:2])
    return rotate(query, position_ids, base), rotate(key, position_ids, base)


def unit(vectors: Float[Array, "*n W"]) -> Float32[Array, "*n W"]:
    """Returns vectors of length 1; of zeros, zeros."""
    vectors = vectors.astype(jnp.float32)
    # The square root of 0 would have an infinite slope.
    return vectors * jax.lax.rsqrt(jnp.maximum(jnp.sum(vectors**2, axis=-1, keepdims=True), 1e-24))
