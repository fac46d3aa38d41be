"""Losses between the outputs of a teacher and of a student.

Shapes: B rows, S tokens of a row, N heads, D size of a head, R relation heads, W width, C classes.
"""

from typing import Any, cast

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
    return 1 - jnp.sum(_unit(teacher) * _unit(student), axis=-1)


def mean_cosine(vectors: Float[Array, "n W"], weights: Float[Array, " n"]) -> Float32[Array, ""]:
    """Returns the mean cosine of two different vectors among those of weight 1; others have weight 0."""
    count = jnp.sum(weights)
    total = jnp.sum(_unit(vectors) * weights[:, None], axis=0)
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


def heads(
    config: BertConfig, layer: int, params: Any, x: Float[Array, "B S H"]
) -> tuple[Float[Array, "B S N D"], Float[Array, "B S N D"], Float[Array, "B S N D"]]:
    """Returns queries, keys and values of a layer, before rotation; keys have their bias.

    Args:
      config: the encoder.
      layer: the number of the layer, from 0 on.
      params: the parameters of all layers.
      x: the layer's input.
    """
    kind = config.kind(layer)
    row = layer if kind.group is None else kind.group
    of_layer = jax.tree.map(lambda leaf: leaf[row], params)
    module = TransformerLayer(config, cross=False, kind=kind)
    return cast(tuple[Array, Array, Array], module.apply({"params": of_layer}, x, method="heads"))


def rotated(
    config: BertConfig,
    layer: int,
    query: Float[Array, "B S N D"],
    key: Float[Array, "B S N D"],
    position_ids: Int[Array, "B S"] | None,
) -> tuple[Float[Array, "B S N D"], Float[Array, "B S N D"]]:
    """Returns queries and keys as the scores of a layer multiply them."""
    query = query * config.query_scale
    base = config.kind(layer).rotary_base
    if not base:
        return query, key
    if position_ids is None:
        position_ids = jnp.broadcast_to(jnp.arange(query.shape[1]), query.shape[:2])
    return rotate(query, position_ids, base), rotate(key, position_ids, base)


def _unit(vectors: Float[Array, "*n W"]) -> Float32[Array, "*n W"]:
    vectors = vectors.astype(jnp.float32)
    # The square root of 0 would have an infinite slope.
    return vectors * jax.lax.rsqrt(jnp.maximum(jnp.sum(vectors**2, axis=-1, keepdims=True), 1e-24))
