"""Sampling of hidden tokens from a masked language model: some at each step, given those of earlier steps.

Shapes: B rows, S length, P hidden tokens, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Key

from bertjax.config import Constrained, Constraint, Count, Size, above, at_least, each, one_of

SAMPLERS = ("ancestral", "confidence", "margin", "entropy")
_LENGTH = Constraint("at least 1", lambda length: length >= 1)
_DRAWS = 8  # of the estimate of the likelihood
_FIRST_DRAW = 2**30  # the number of the step whose keys the first of these draws has


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenoisingConfig(Constrained, prefix="decoding"):
    """How hidden tokens are sampled.

    Attributes:
      sampler: which tokens are revealed first: "ancestral", in random order, as in masked diffusion (Sahoo et al. 2024)
        with fixed numbers of tokens per step; "confidence", those drawn with the highest probability (Nie et al. 2025,
        LLaDA); "margin", those whose likeliest token is farthest above the second; "entropy", those of the lowest
        entropy; or "none", to predict the likeliest tokens of each [MASK] instead.
      steps: the number of steps, over which tokens are spread evenly; 0 for one token in each step. A step that would
        reach into the next block ends with its own, so that blocks add steps.
      temperature: divisor of the logits; 0 takes the likeliest token.
      top_p: draws come from the smallest set of likeliest tokens with at least this total probability (Holtzman et al.
        2020); 1 for all.
      block_size: hidden tokens are revealed in blocks of this number, from left to right; 0 for a single block.
      num_samples: the number of samples of each input.
      seed: seed of the samples, which depend only on it and the text.
      lengths: the numbers of tokens that a text generated from an empty line may have, equally likely. Default for a
        run with uniform rates: 32 quantiles of those of its instances.
    """

    sampler: Annotated[str, one_of("none", *SAMPLERS)] = "none"
    steps: Count = 0
    temperature: Annotated[float, at_least(0, below=math.inf)] = 1.0
    top_p: Annotated[float, above(0, at_most=1)] = 1.0
    block_size: Count = 0
    num_samples: Size = 1
    seed: Count = 0
    lengths: Annotated[tuple[int, ...], each(_LENGTH)] | None = None


class Denoised(NamedTuple):
    """Samples of rows."""

    tokens: Array  # [B, P] int32
    log_bounds: Array  # [B] float32: estimates of a lower bound of their log-likelihood, given the other tokens


# (token ids [B, S]) -> (logits [B, P, V] float32 at the hidden tokens, -inf for tokens that may not be drawn)
Predict = Callable[[Array], Array]


def denoise(
    predict: Predict,
    ids: Int[Array, "B S"],
    positions: Int[Array, "B P"],
    is_hidden: Bool[Array, "B P"],
    keys: Key[Array, " B"],
    config: DenoisingConfig,
) -> Denoised:
    """Returns a sample of each row. A pure function; call it inside `jax.jit`.

    Draws have the highest precision of `jax.random`: with the usual 23 bits, tokens less likely than 1e-7 would never
    be drawn, which is a lower temperature than stated. A row's sample depends on its own tokens and key alone.

    Args:
      predict: the model.
      ids: the rows, with the mask token at the hidden positions.
      positions: the positions of the hidden tokens in the row, ascending.
      is_hidden: False for entries of `positions` that only pad.
      keys: a key per row.
      config: the sampler and its steps.
    """
    count = jnp.sum(is_hidden, axis=1, dtype=jnp.int32)
    steps = jnp.full_like(count, config.steps) if config.steps else count
    blocks = jnp.arange(positions.shape[1]) // (config.block_size or positions.shape[1])

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step, ids, is_left = state
        logits = predict(ids)
        token_keys, order_keys = _keys(keys, step, positions)
        tokens = _draw(logits, token_keys, config)
        preference = jnp.where(is_left, _preference(logits, tokens, order_keys, config.sampler), -jnp.inf)
        order = jnp.lexsort((-preference, jnp.broadcast_to(blocks, is_left.shape), ~is_left))
        ranks = jnp.argsort(order, axis=1)
        target = jnp.where(steps > 0, count * jnp.minimum(step + 1, steps) // jnp.maximum(steps, 1), 0)
        is_next = is_left & (ranks < (target - (count - jnp.sum(is_left, axis=1)))[:, None])
        is_next &= blocks == jnp.min(jnp.where(is_left, blocks, len(blocks)), axis=1, keepdims=True)
        return step + 1, _put(ids, positions, tokens, is_next), is_left & ~is_next

    state = jnp.zeros((), jnp.int32), ids, is_hidden
    _, revealed, _ = jax.lax.while_loop(lambda state: jnp.any(state[2]), advance, state)
    tokens = jnp.take_along_axis(revealed, positions, axis=1)
    return Denoised(tokens, _log_bounds(predict, ids, positions, is_hidden, keys, tokens))


def _keys(keys: Key[Array, " B"], step: Array | int, positions: Int[Array, "B P"]) -> tuple[Array, Array]:
    """Two keys [B, P] for each hidden token of a step, which do not depend on padding."""
    of_step = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
    by_token = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(of_step, positions)
    pairs = jax.vmap(jax.vmap(jax.random.split))(by_token)
    return pairs[..., 0], pairs[..., 1]


def _draw(logits: Float32[Array, "B P V"], keys: Key[Array, "B P"], config: DenoisingConfig) -> Int[Array, "B P"]:
    if config.temperature == 0:
        return jnp.argmax(logits, axis=-1)
    logits = logits / config.temperature
    if config.top_p < 1:
        descending = jnp.sort(logits, axis=-1, descending=True)
        probabilities = jax.nn.softmax(descending)
        is_kept = jnp.cumsum(probabilities, axis=-1) - probabilities < config.top_p
        least = jnp.min(jnp.where(is_kept, descending, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits >= least, logits, -jnp.inf)
    return jax.vmap(jax.vmap(lambda key, row: jax.random.categorical(key, row, mode="high")))(keys, logits)


def _preference(
    logits: Float32[Array, "B P V"], tokens: Int[Array, "B P"], keys: Key[Array, "B P"], sampler: str
) -> Float32[Array, "B P"]:
    """How early each token is revealed: the highest first."""
    if sampler == "ancestral":
        return jax.vmap(jax.vmap(jax.random.uniform))(keys)
    log_probabilities = jax.nn.log_softmax(logits)
    if sampler == "confidence":
        return jnp.take_along_axis(log_probabilities, tokens[..., None], axis=-1)[..., 0]
    probabilities = jnp.exp(log_probabilities)
    if sampler == "margin":
        best, _ = jax.lax.top_k(probabilities, 2)
        return best[..., 0] - best[..., 1]
    return jnp.sum(jnp.where(probabilities > 0, probabilities * log_probabilities, 0), axis=-1)


def _put(ids: Int[Array, "B S"], positions: Int[Array, "B P"], tokens: Array, where: Array) -> Int[Array, "B S"]:
    """Returns the rows with tokens at those of the positions where `where` is True."""
    places = jnp.where(where, positions, ids.shape[1])
    return jax.vmap(lambda row, place, token: row.at[place].set(token, mode="drop"))(ids, places, tokens)


def _log_bounds(
    predict: Predict,
    ids: Int[Array, "B S"],
    positions: Int[Array, "B P"],
    is_hidden: Bool[Array, "B P"],
    keys: Key[Array, " B"],
    tokens: Int[Array, "B P"],
) -> Float32[Array, " B"]:
    """Estimates as `tasks.likelihood`: hides k of the n tokens, with k spread over 1..n, and weights them by n / k."""
    count = jnp.sum(is_hidden, axis=1)
    shift = jax.vmap(jax.random.uniform)(jax.vmap(jax.random.fold_in, (0, None))(keys, _FIRST_DRAW - 1))

    def estimate(draw: Array) -> Array:
        token_keys, _ = _keys(keys, _FIRST_DRAW + draw, positions)
        order = jnp.where(is_hidden, jax.vmap(jax.vmap(jax.random.uniform))(token_keys), jnp.inf)
        ranks = jnp.argsort(jnp.argsort(order, axis=1), axis=1)
        hidden_count = jnp.ceil((draw + 1 - shift) / _DRAWS * count)
        is_scored = is_hidden & (ranks < hidden_count[:, None])
        log_probabilities = jax.nn.log_softmax(predict(_put(ids, positions, tokens, is_hidden & ~is_scored)))
        of_tokens = jnp.take_along_axis(log_probabilities, tokens[..., None], axis=-1)[..., 0]
        return jnp.sum(jnp.where(is_scored, of_tokens, 0), axis=1) * count / jnp.maximum(hidden_count, 1)

    return jnp.mean(jax.lax.map(estimate, jnp.arange(_DRAWS)), axis=0)
