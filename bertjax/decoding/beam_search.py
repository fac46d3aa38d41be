"""Beam search over any step function, as one compiled loop that ends as soon as every row is done.

Shapes: B batch, K beams, T target length, V vocabulary, M candidates of a step, C candidates of one beam.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.decoding.config import DecodingConfig, check_special_ids
from bertjax.decoding.hypotheses import Hypotheses, Step
from bertjax.decoding.length_penalties import length_penalty
from bertjax.decoding.ngram_blocking import block_tokens, extend_runs, repeats_words
from bertjax.decoding.top_k import top_k
from bertjax.models.decoder import Beams


class _Rules(NamedTuple):
    """What stays the same through a search."""

    config: DecodingConfig
    min_lengths: Array  # [B] int32
    max_lengths: Array  # [B] int32
    eos_id: int
    pad_id: int
    unk_id: int | None  # None if it is allowed
    continues: Array | None  # [V] bool


class _Running(NamedTuple):
    """The hypotheses that are followed, best first; those of log-probability -inf are none."""

    tokens: Array  # [B, K] int32: the last one of each
    history: Array  # [B, K, T] int32: all of them
    log_probabilities: Array  # [B, K] float32
    runs: Array  # [B, K, T] int32: see `ngram_blocking`; all 0 if nothing is blocked


class _Candidates(NamedTuple):
    """The M likeliest continuations of each row's beams, best first."""

    log_probabilities: Array  # [B, M] float32
    parents: Array  # [B, M] int32: the beam that each continues
    tokens: Array  # [B, M] int32


class _State(NamedTuple):
    """What the loop carries."""

    beams: Beams
    running: _Running
    finished: Hypotheses  # K, best first
    is_done: Array  # [B] bool: `finished` changes no more
    cache: Any


def beam_search(
    step: Step,
    cache: Any,
    *,
    start_ids: Int[Array, " B"],
    min_lengths: Int[Array, " B"],
    max_lengths: Int[Array, " B"],
    config: DecodingConfig,
    eos_id: int,
    pad_id: int,
    unk_id: int | None = None,
    continues: Bool[Array, " V"] | None,
) -> Hypotheses:
    """Returns the `n_best` hypotheses of each row, best first. Pure: jit the whole of it.

    Each step takes the 2K likeliest continuations of a row's K beams. Those of the first K that end are finished:
    scored, put aside, and never touched again. The K likeliest that do not end go on. Under "presumm" only K
    are taken, and all of them go on.

    Args:
      step: feeds one token of each beam and gives the logits of the next, see `Step`; it reads `beams` to follow the
        beams in its cache. Beams of rows that are done, and beams that are none, are fed all the same.
      cache: what `step` starts from, made for K = `num_beams` and T = `max_length`.
      start_ids: the first token fed, no part of the hypotheses.
      min_lengths: the least tokens before the end token.
      max_lengths: the most tokens, with the end token; above T counts as T, and 0 leaves a row out.
      eos_id: the end token.
      pad_id: what ids are filled with after the end; never a hypothesis's token.
      unk_id: the token of unknown characters, which `forbid_unk` is about; None if there is none.
      continues: for each id, whether it continues the word before it. If given, `block_ngrams` counts words, and does
        as PreSumm: a beam whose last n words have come before goes no further, unless that is true of all of its row.
    Raises:
      UserError: an end token that is the padding.
    """
    check_special_ids(eos_id, pad_id)
    max_lengths = jnp.minimum(max_lengths, config.max_length)
    forbidden = unk_id if config.forbid_unk else None
    rules = _Rules(config, min_lengths, max_lengths, eos_id, pad_id, forbidden, continues)

    def advance(state: _State) -> _State:
        logits, cache = step(state.running.tokens, state.cache, state.beams)
        return _advance(rules, state, logits.astype(jnp.float32), cache)

    state = _start(rules, start_ids.astype(jnp.int32), cache)
    finished = jax.lax.while_loop(lambda state: ~jnp.all(state.is_done), advance, state).finished
    return Hypotheses(*(field[:, : config.n_best] for field in finished))


def _start(rules: _Rules, start_ids: Int[Array, " B"], cache: Any) -> _State:
    """K beams, of which the first is the empty hypothesis and the others none."""
    shape = (len(start_ids), rules.config.num_beams)
    own = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
    blank = jnp.zeros((*shape, rules.config.max_length), jnp.int32)
    none = jnp.full(shape, -jnp.inf, jnp.float32)
    return _State(
        beams=Beams(jnp.zeros((), jnp.int32), own, blank.at[..., 0].set(own)),
        running=_Running(
            tokens=jnp.broadcast_to(start_ids[:, None], shape),
            history=blank + rules.pad_id,
            log_probabilities=none.at[:, 0].set(0),
            runs=blank,
        ),
        finished=Hypotheses(blank + rules.pad_id, jnp.zeros(shape, jnp.int32), none, none),
        is_done=rules.max_lengths <= 0,
        cache=cache,
    )


def _advance(rules: _Rules, state: _State, logits: Float[Array, "B K V"], cache: Any) -> _State:
    """One step, once the model has said what may follow."""
    config, index = rules.config, state.beams.index
    candidates = _find_candidates(rules, state, logits)
    is_end = (candidates.tokens == rules.eos_id) | (index + 1 >= rules.max_lengths)[:, None]
    finished = _put_aside(rules, state, candidates, is_end)
    if config.stopping == "presumm":
        going_on = candidates
    else:
        left = jnp.where(is_end, -jnp.inf, candidates.log_probabilities)
        _, chosen = jax.lax.top_k(left, config.num_beams)
        going_on = _Candidates(*(_pick(field, chosen) for field in candidates._replace(log_probabilities=left)))
    is_done = state.is_done | _is_done(rules, index, going_on.log_probabilities, is_end, finished)
    return _State(_follow(state.beams, going_on.parents), _extend(rules, state, going_on), finished, is_done, cache)


def _find_candidates(rules: _Rules, state: _State, logits: Float[Array, "B K V"]) -> _Candidates:
    """The M likeliest of all continuations: those of each beam first, and then the best of these."""
    config, index = rules.config, state.beams.index
    so_far, allowed = _block(rules, state, logits)
    num = config.num_beams * (1 if config.stopping == "presumm" else 2)
    # Two more of each beam, as padding and the end token may have to be left out.
    values, tokens = top_k(allowed, min(num + 2, logits.shape[-1]))
    # The largest is known already, if none was left out: a pass over all logits less.
    largest = values[..., :1] if allowed is logits else jnp.max(logits, axis=-1, keepdims=True)
    normalizers = largest + jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1, keepdims=True))
    log_probabilities = so_far[..., None] + (values - normalizers)
    is_early = (index < rules.min_lengths)[:, None, None]
    is_banned = (tokens == rules.pad_id) | ((tokens == rules.eos_id) & is_early)
    log_probabilities = jnp.where(is_banned, -jnp.inf, log_probabilities)
    if config.force_eos:
        is_last = (index + 1 >= rules.max_lengths)[:, None, None]
        ended = jnp.where(jnp.arange(tokens.shape[-1]) == 0, so_far[..., None], -jnp.inf)
        log_probabilities = jnp.where(is_last, ended, log_probabilities)
        tokens = jnp.where(is_last, rules.eos_id, tokens)

    rows, width = len(tokens), tokens.shape[-1]
    flat = log_probabilities.reshape(rows, -1)
    best, places = jax.lax.top_k(flat, min(num, flat.shape[-1]))
    return _Candidates(best, places // width, _pick(tokens.reshape(rows, -1), places))


def _block(
    rules: _Rules, state: _State, logits: Float[Array, "B K V"]
) -> tuple[Float[Array, "B K"], Float[Array, "B K V"]]:
    """The beams' log-probabilities and their logits, -inf for unknown characters and for n-grams not to come again."""
    n, running, so_far = rules.config.block_ngrams, state.running, state.running.log_probabilities
    if rules.unk_id is not None:
        logits = logits.at[..., rules.unk_id].set(-jnp.inf)
    if not n:
        return so_far, logits
    if rules.continues is None:
        return so_far, block_tokens(logits, running.runs, running.history, state.beams.index, n)
    is_out = repeats_words(running.runs, running.history, state.beams.index, n, rules.continues)
    is_out &= ~jnp.all(is_out | (so_far == -jnp.inf), axis=1, keepdims=True)
    return jnp.where(is_out, -jnp.inf, so_far), logits


def _put_aside(rules: _Rules, state: _State, candidates: _Candidates, is_end: Bool[Array, "B M"]) -> Hypotheses:
    """The K best of those that finished before and those that finish now; a row that is done keeps what it has."""
    config, index = rules.config, state.beams.index
    first = _Candidates(*(field[:, : config.num_beams] for field in candidates))
    finishes = is_end[:, : config.num_beams] & ~state.is_done[:, None]
    log_probabilities = jnp.where(finishes, first.log_probabilities, -jnp.inf)
    counted = index + 1 - (first.tokens == rules.eos_id) * (not config.count_eos)
    ids = _append(_pick(state.running.history, first.parents), first.tokens, index)
    ids, lengths = _cut(ids, index + 1, rules)
    new = Hypotheses(ids, lengths, log_probabilities, log_probabilities / length_penalty(config, counted))
    both = Hypotheses(*(jnp.concatenate(pair, axis=1) for pair in zip(state.finished, new, strict=True)))
    # Of equal scores the first stays: places that nothing came to are filled from those of before, which are blank.
    _, chosen = jax.lax.top_k(both.scores, config.num_beams)
    return Hypotheses(*(_pick(field, chosen) for field in both))


def _cut(
    ids: Int[Array, "B K T"], count: Int[Array, ""], rules: _Rules
) -> tuple[Int[Array, "B K T"], Int[Array, "B K"]]:
    """The ids up to the first end token and how many they are; only PreSumm's beams go on after it."""
    ends = ids == rules.eos_id
    is_after = jnp.cumsum(ends, axis=-1) - ends > 0
    is_real = ~is_after & (jnp.arange(ids.shape[-1]) < count)
    return jnp.where(is_real, ids, rules.pad_id), jnp.sum(is_real, axis=-1)


def _is_done(
    rules: _Rules,
    index: Int[Array, ""],
    running: Float[Array, "B K"],
    is_end: Bool[Array, "B M"],
    finished: Hypotheses,
) -> Bool[Array, " B"]:
    """Whether a row stops after this step; `running` are the log-probabilities of the beams to go on, best first."""
    config, best = rules.config, running[:, 0]
    is_dead = best == -jnp.inf
    if config.stopping == "presumm":
        return is_dead | is_end[:, 0]
    if config.num_beams == 1:
        return is_dead | (finished.lengths[:, 0] > 0)
    if config.stopping == "hf_early":
        return is_dead | (finished.lengths[:, -1] > 0)
    bound = best / length_penalty(config, index + 1)
    if config.stopping == "hf":
        return is_dead | (finished.scores[:, -1] >= bound)
    # Sums only fall, and penalties are monotone: at one end of the lengths to come, a score is at its best.
    bound = jnp.maximum(bound, best / length_penalty(config, rules.max_lengths))
    return is_dead | (finished.scores[:, config.n_best - 1] >= bound)


def _extend(rules: _Rules, state: _State, going_on: _Candidates) -> _Running:
    """The beams with their new tokens."""
    running, index = state.running, state.beams.index
    history = _append(_pick(running.history, going_on.parents), going_on.tokens, index)
    runs = running.runs
    if rules.config.block_ngrams:
        runs = extend_runs(_pick(runs, going_on.parents), history, index + 1)
    return _Running(going_on.tokens, history, going_on.log_probabilities, runs)


def _follow(beams: Beams, parents: Int[Array, "B K"]) -> Beams:
    """What the next step is told."""
    index, (num_beams, length) = beams.index + 1, beams.lineage.shape[1:]
    own = jnp.arange(num_beams)[:, None]
    lineage = jnp.where(jnp.arange(length) == index, own, _pick(beams.lineage, parents))
    return Beams(index, parents, lineage)


def _append(history: Int[Array, "B K T"], tokens: Int[Array, "B K"], index: Int[Array, ""]) -> Int[Array, "B K T"]:
    return jax.lax.dynamic_update_slice_in_dim(history, tokens[..., None], index, axis=-1)


def _pick(field: Array, chosen: Int[Array, "B n"]) -> Array:
    """`field[b, chosen[b, i]]`, for all."""
    return jax.vmap(lambda row, places: row[places])(field, chosen)
