"""Sampling of hypotheses, with the same step functions as beam search.

Shapes: B batch, K samples of each row, T target length, V vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from bertjax.decoding import bad_words
from bertjax.decoding.config import DecodingConfig, check_first_id, check_special_ids
from bertjax.decoding.hypotheses import Hypotheses, Start, Step, run
from bertjax.decoding.ngram_blocking import block_tokens, extend_runs, with_start
from bertjax.decoding.top_k import top_k
from bertjax.models.decoder import Beams


class _State(NamedTuple):
    """The loop's state."""

    place: Array  # [] int32: the position of the token to draw, from 0
    tokens: Array  # [B, K] int32: the last token of each hypothesis
    drawn: Hypotheses  # the tokens so far; lengths no longer change after the end token
    runs: Array  # [B, K, T + 1] int32: see `ngram_blocking`, of the start token and `drawn`
    is_done: Array  # [B, K] bool
    cache: Any


def sample(
    step: Step,
    start: Start,
    keys: Key[Array, " B"],
    *,
    start_ids: Int[Array, " B"],
    min_lengths: Int[Array, " B"],
    max_lengths: Int[Array, " B"],
    config: DecodingConfig,
    eos_id: int,
    pad_id: int,
    unk_id: int | None = None,
) -> Hypotheses:
    """Returns `n_best` independent samples of each row. A pure function; call it inside `jax.jit`.

    Log-probabilities and scores are those of the model, independent of temperature, `top_k` and `top_p`. A hypothesis
    that reaches the maximum length is truncated. A forced first token has log-probability 0.

    Args:
      keys: one key per row, so that the samples of a row do not depend on other rows.
      config: the settings.
      step, start, start_ids, min_lengths, max_lengths, eos_id, pad_id, unk_id: as for `beam_search`, with K = `n_best`.
    Raises:
      UserError: as `beam_search`.
    """
    check_special_ids(eos_id, pad_id)
    max_lengths = jnp.minimum(max_lengths, config.max_length)
    banned = (pad_id, unk_id) if config.forbid_unk and unk_id is not None else (pad_id,)
    # Samples are never reordered, so each sample is its own parent.
    parents = jnp.broadcast_to(jnp.arange(config.n_best, dtype=jnp.int32), (len(start_ids), config.n_best))
    lineage = jnp.broadcast_to(parents[..., None], (*parents.shape, config.max_length))

    def advance(state: _State) -> _State:
        logits, cache = step(state.tokens, state.cache, Beams(state.place, parents, lineage))
        logits = logits.astype(jnp.float32)
        check_first_id(config, pad_id, logits.shape[-1])
        is_early = state.place < min_lengths
        allowed_logits = _mask_logits(config, state, logits, start_ids, is_early, eos_id, banned)
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, state.place)
        tokens = _draw(config, step_keys, allowed_logits)
        # Log-probabilities are those of the model, so they come from the logits before masking.
        token_logits = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
        log_probabilities = token_logits - jax.nn.logsumexp(logits, axis=-1)
        if config.first_id is not None:
            is_first = state.place == 0
            tokens = jnp.where(is_first, config.first_id, tokens)
            log_probabilities = jnp.where(is_first, 0, log_probabilities)
        drawn = _record(state, tokens, log_probabilities, pad_id)
        runs = state.runs
        if config.block_ngrams:
            runs = extend_runs(runs, with_start(start_ids, drawn.ids), state.place + 2)
        is_done = state.is_done | (tokens == eos_id) | (state.place + 1 >= max_lengths)[:, None]
        return _State(state.place + 1, tokens, drawn, runs, is_done, cache)

    state = _start(config, start_ids, max_lengths <= 0, pad_id)
    drawn = run(start, config.max_length, state, advance).drawn
    return drawn._replace(scores=drawn.log_probabilities)


def _start(config: DecodingConfig, start_ids: Int[Array, " B"], is_done: Bool[Array, " B"], pad_id: int) -> _State:
    """The initial state without cache."""
    shape = (len(start_ids), config.n_best)
    ids = jnp.full((*shape, config.max_length), pad_id, jnp.int32)
    zeros = jnp.zeros(shape, jnp.float32)
    return _State(
        place=jnp.zeros((), jnp.int32),
        tokens=jnp.broadcast_to(start_ids.astype(jnp.int32)[:, None], shape),
        drawn=Hypotheses(ids, jnp.zeros(shape, jnp.int32), zeros, zeros),
        runs=jnp.zeros_like(with_start(start_ids, ids)),
        is_done=jnp.broadcast_to(is_done[:, None], shape),
        cache=None,
    )


def row_keys(
    seed: int, ids: Int[Array, "B S"], segments: Int[Array, "B S"], numbers: UInt32[Array, " B"] | None
) -> Key[Array, " B"]:
    """Returns a key per row that depends only on its tokens and its number, not on the batch or the padding.

    Args:
      seed: the seed.
      ids: the tokens.
      segments: 0 at padding.
      numbers: numbers that tell equal rows apart; None for equal keys of equal rows.
    """
    # A polynomial hash modulo 2^32. Powers of an odd number are invertible, so every change of one token changes the
    # hash. Adding 1 makes id 0 count.
    powers = np.cumprod(np.full(ids.shape[1], 0x9E3779B1, np.uint32), dtype=np.uint32)
    terms = (ids + 1).astype(jnp.uint32) * powers
    digests = jnp.sum(jnp.where(segments != 0, terms, 0), axis=1, dtype=jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), digests)
    return keys if numbers is None else jax.vmap(jax.random.fold_in)(keys, numbers)


def _mask_logits(
    config: DecodingConfig,
    state: _State,
    logits: Float[Array, "B K V"],
    start_ids: Int[Array, " B"],
    is_early: Bool[Array, " B"],
    eos_id: int,
    banned: tuple[int, ...],
) -> Float[Array, "B K V"]:
    """The logits, with -inf for tokens that are not allowed."""
    vocabulary = jnp.arange(logits.shape[-1])
    is_banned = jnp.isin(vocabulary, jnp.array(banned)) | ((vocabulary == eos_id) & is_early[:, None])
    logits = jnp.where(is_banned[:, None], -jnp.inf, logits)
    ids = state.drawn.ids
    if config.block_ngrams:
        history = with_start(start_ids, ids)
        logits = block_tokens(logits, state.runs, history, state.place + 1, config.block_ngrams)
    return bad_words.exclude(logits, ids, state.place, start_ids, config.bad_words) if config.bad_words else logits


def _draw(config: DecodingConfig, keys: Key[Array, " B"], logits: Float[Array, "B K V"]) -> Int[Array, "B K"]:
    """Draws the next token of each hypothesis. The samples of a row share a key, which gives each its own draw."""
    if config.temperature == 0:
        return jnp.argmax(logits, axis=-1)
    logits = logits / config.temperature
    vocab_size = logits.shape[-1]
    if not config.top_k and config.top_p == 1:
        return jax.vmap(_categorical)(keys, logits)
    # Logits and ids of the k likeliest tokens, [B, K, k], in descending order.
    likeliest, ids = top_k(logits, min(config.top_k or vocab_size, vocab_size))
    if config.top_p < 1:
        probabilities = jax.nn.softmax(likeliest, axis=-1)
        # A token is kept if the total probability of the likelier tokens is below `top_p`; the first is always kept.
        likelier_total = jnp.cumsum(probabilities, axis=-1) - probabilities
        likeliest = jnp.where(likelier_total < config.top_p, likeliest, -jnp.inf)
    ranks = jax.vmap(_categorical)(keys, likeliest)
    return jnp.take_along_axis(ids, ranks[..., None], axis=-1)[..., 0]


def _categorical(key: Key[Array, ""], logits: Float[Array, "K V"]) -> Int[Array, " K"]:
    """Draws with noise of the full range: with the usual 23 bits, tokens less likely than 1e-7 are never drawn."""
    return jax.random.categorical(key, logits, mode="high")


def _record(
    state: _State, tokens: Int[Array, "B K"], log_probabilities: Float[Array, "B K"], pad_id: int
) -> Hypotheses:
    """Appends a token to each hypothesis that has not ended."""
    drawn = state.drawn
    is_done = state.is_done
    tokens = jnp.where(is_done, pad_id, tokens)[..., None]
    return drawn._replace(
        ids=jax.lax.dynamic_update_slice_in_dim(drawn.ids, tokens, state.place, axis=-1),
        lengths=drawn.lengths + ~is_done,
        log_probabilities=drawn.log_probabilities + jnp.where(is_done, 0, log_probabilities),
    )
