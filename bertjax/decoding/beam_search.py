"""Beam search over any step function, as a compiled program that stops when every row is done.

Shapes: B batch, K beams, T target length, V vocabulary, M candidates of a step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.decoding import bad_words
from bertjax.decoding.config import DecodingConfig, check_first_id, check_special_ids
from bertjax.decoding.hypotheses import Hypotheses, Start, Step, run
from bertjax.decoding.length_penalties import length_penalty
from bertjax.decoding.ngram_blocking import block_tokens, extend_runs, repeats_words, with_start
from bertjax.decoding.top_k import top_k
from bertjax.models.decoder import Beams


class _Rules(NamedTuple):
    """The settings and limits of a search, which do not change between steps."""

    config: DecodingConfig
    min_lengths: Array  # [B] int32
    max_lengths: Array  # [B] int32
    eos_id: int
    pad_id: int
    unk_id: int | None  # None if the unknown token is allowed
    continues: Array | None  # [V] bool
    start_ids: Array  # [B] int32


class _Running(NamedTuple):
    """The unfinished hypotheses (beams), best first. A log-probability of -inf marks an unused beam."""

    tokens: Array  # [B, K] int32: the last token of each beam
    history: Array  # [B, K, T] int32: all tokens of each beam
    log_probabilities: Array  # [B, K] float32
    runs: Array  # [B, K, T + 1] int32: see `ngram_blocking`, of `_blocked`


class _Candidates(NamedTuple):
    """The M likeliest continuations of each row's beams, best first."""

    log_probabilities: Array  # [B, M] float32
    parents: Array  # [B, M] int32: the beam that each candidate continues
    tokens: Array  # [B, M] int32


class _State(NamedTuple):
    """The loop's state."""

    beams: Beams
    running: _Running
    finished: Hypotheses  # K per row, best first
    is_done: Array  # [B] bool: rows whose `finished` no longer changes
    cache: Any

    @property
    def place(self) -> Array:
        """The position of the next token, [] int32."""
        return self.beams.index


def beam_search(
    step: Step,
    start: Start,
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
    """Returns the `n_best` hypotheses of each row, best first. A pure function; call it inside `jax.jit`.

    Each step takes the 2K likeliest continuations of a row's K beams. Those of the first K that end are finished: they
    are scored and do not change any more. The K likeliest that do not end continue. With stopping "presumm", only K
    continuations are taken, and all of them continue.

    Args:
      step: feeds one token of each beam and returns the logits of the next token, see `Step`. It finds the history of
        each beam in its cache by `beams`. Unused beams and beams of rows that are done are fed as well.
      start: returns the initial cache of `step`, for K = `num_beams`.
      start_ids: the first token to feed; not part of the hypotheses.
      min_lengths: the minimum number of tokens before the end token.
      max_lengths: the maximum number of tokens, including the end token. Values above T count as T; 0 skips the row.
      config: the settings.
      eos_id: the end token.
      pad_id: the padding after the end token. Hypotheses never contain it.
      unk_id: the unknown token, which `forbid_unk` excludes; None if the vocabulary has none.
      continues: for each id, whether it continues the previous word. If given, `block_ngrams` counts words as PreSumm
        does: a beam whose last n words occurred before is dropped, unless this is true of all beams of its row.
    Raises:
      UserError: if the end token or `first_id` is the padding, or `first_id` is not in the vocabulary.
    """
    check_special_ids(eos_id, pad_id)
    max_lengths = jnp.minimum(max_lengths, config.max_length)
    forbidden = unk_id if config.forbid_unk else None
    start_ids = start_ids.astype(jnp.int32)
    rules = _Rules(config, min_lengths, max_lengths, eos_id, pad_id, forbidden, continues, start_ids)

    def advance(state: _State) -> _State:
        logits, cache = step(state.running.tokens, state.cache, state.beams)
        return _advance(rules, state, logits.astype(jnp.float32), cache)

    finished = run(start, config.max_length, _start(rules), advance).finished
    return Hypotheses(*(field[:, : config.n_best] for field in finished))


def _start(rules: _Rules) -> _State:
    """The initial state without cache: the first of the K beams is the empty hypothesis, and the others are unused."""
    shape = (len(rules.start_ids), rules.config.num_beams)
    beam_numbers = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
    blank = jnp.zeros((*shape, rules.config.max_length), jnp.int32)
    none = jnp.full(shape, -jnp.inf, jnp.float32)
    return _State(
        beams=Beams(jnp.zeros((), jnp.int32), beam_numbers, blank.at[..., 0].set(beam_numbers)),
        running=_Running(
            tokens=jnp.broadcast_to(rules.start_ids[:, None], shape),
            history=blank + rules.pad_id,
            log_probabilities=none.at[:, 0].set(0),
            runs=jnp.zeros_like(_blocked(rules, blank)),
        ),
        finished=Hypotheses(blank + rules.pad_id, jnp.zeros(shape, jnp.int32), none, none),
        is_done=rules.max_lengths <= 0,
        cache=None,
    )


def _advance(rules: _Rules, state: _State, logits: Float[Array, "B K V"], cache: Any) -> _State:
    """Updates beams and finished hypotheses after one step of the model."""
    config = rules.config
    index = state.beams.index
    candidates = _find_candidates(rules, state, logits)
    is_end = (candidates.tokens == rules.eos_id) | (index + 1 >= rules.max_lengths)[:, None]
    finished = _update_finished(rules, state, candidates, is_end)
    if config.stopping == "presumm":
        continuing = candidates
    else:
        logprobs = jnp.where(is_end, -jnp.inf, candidates.log_probabilities)
        _, chosen = jax.lax.top_k(logprobs, config.num_beams)
        continuing = _Candidates(*(_pick(field, chosen) for field in candidates._replace(log_probabilities=logprobs)))
    is_done = state.is_done | _is_done(rules, index, continuing.log_probabilities, is_end, finished)
    return _State(
        _next_beams(state.beams, continuing.parents), _extend(rules, state, continuing), finished, is_done, cache
    )


def _find_candidates(rules: _Rules, state: _State, logits: Float[Array, "B K V"]) -> _Candidates:
    """The M likeliest continuations of each row: the likeliest of each beam, and the best of these."""
    config = rules.config
    index = state.beams.index
    check_first_id(config, rules.pad_id, logits.shape[-1])
    so_far, allowed = _block(rules, state, logits)
    num = config.num_beams * (1 if config.stopping == "presumm" else 2)
    # Two more for each beam, since padding and the end token may be excluded below.
    values, tokens = top_k(allowed, min(num + 2, logits.shape[-1]))
    is_early = (index < rules.min_lengths)[:, None, None]
    if config.renormalize:
        ids = jnp.arange(logits.shape[-1])
        is_out = (ids == rules.pad_id) | ((ids == rules.eos_id) & is_early)
        logits = jnp.where(is_out, -jnp.inf, allowed)
    # If no logit was excluded, the largest is known. This saves a pass over all logits.
    largest = values[..., :1] if allowed is logits else jnp.max(logits, axis=-1, keepdims=True)
    largest = jnp.maximum(largest, jnp.finfo(jnp.float32).min)  # all tokens may be excluded
    normalizers = largest + jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1, keepdims=True))
    log_probabilities = jnp.where(values == -jnp.inf, -jnp.inf, so_far[..., None] + (values - normalizers))
    is_banned = (tokens == rules.pad_id) | ((tokens == rules.eos_id) & is_early)
    log_probabilities = jnp.where(is_banned, -jnp.inf, log_probabilities)
    # A forced token is the only continuation of a beam. As in transformers, the end token precedes the first token.
    forced = jnp.where(jnp.arange(tokens.shape[-1]) == 0, so_far[..., None], -jnp.inf)
    if config.first_id is not None:
        log_probabilities = jnp.where(index == 0, forced, log_probabilities)
        tokens = jnp.where(index == 0, config.first_id, tokens)
    if config.force_eos:
        is_last = (index + 1 >= rules.max_lengths)[:, None, None]
        log_probabilities = jnp.where(is_last, forced, log_probabilities)
        tokens = jnp.where(is_last, rules.eos_id, tokens)

    rows = len(tokens)
    width = tokens.shape[-1]
    flat = log_probabilities.reshape(rows, -1)
    best, places = jax.lax.top_k(flat, min(num, flat.shape[-1]))
    return _Candidates(best, places // width, _pick(tokens.reshape(rows, -1), places))


def _block(
    rules: _Rules, state: _State, logits: Float[Array, "B K V"]
) -> tuple[Float[Array, "B K"], Float[Array, "B K V"]]:
    """The beams' log-probabilities and logits, with -inf for excluded words and repeated n-grams."""
    n = rules.config.block_ngrams
    running = state.running
    so_far = running.log_probabilities
    if rules.unk_id is not None:
        logits = logits.at[..., rules.unk_id].set(-jnp.inf)
    if words := rules.config.bad_words:
        logits = bad_words.exclude(logits, running.history, state.beams.index, rules.start_ids, words)
    if not n:
        return so_far, logits
    if rules.continues is None:
        history = _blocked(rules, running.history)
        return so_far, block_tokens(logits, running.runs, history, state.beams.index + 1, n)
    is_out = repeats_words(running.runs, running.history, state.beams.index, n, rules.continues)
    is_out &= ~jnp.all(is_out | (so_far == -jnp.inf), axis=1, keepdims=True)
    return jnp.where(is_out, -jnp.inf, so_far), logits


def _blocked(rules: _Rules, history: Int[Array, "B K T"]) -> Int[Array, "B K ..."]:
    """The tokens whose n-grams may not occur twice: with the start token, except in blocking of words."""
    return history if rules.continues is not None else with_start(rules.start_ids, history)


def _update_finished(rules: _Rules, state: _State, candidates: _Candidates, is_end: Bool[Array, "B M"]) -> Hypotheses:
    """The K best of the hypotheses that finished before or in this step. Rows that are done do not change."""
    config = rules.config
    index = state.beams.index
    first = _Candidates(*(field[:, : config.num_beams] for field in candidates))
    finishes = is_end[:, : config.num_beams] & ~state.is_done[:, None]
    log_probabilities = jnp.where(finishes, first.log_probabilities, -jnp.inf)
    counted = index + 1 - (first.tokens == rules.eos_id) * (not config.count_eos)
    ids = _append(_pick(state.running.history, first.parents), first.tokens, index)
    ids, lengths = _truncate(ids, index + 1, rules)
    new = Hypotheses(ids, lengths, log_probabilities, log_probabilities / length_penalty(config, counted))
    both = Hypotheses(*(jnp.concatenate(pair, axis=1) for pair in zip(state.finished, new, strict=True)))
    # `top_k` prefers the first of equal scores: unused entries (-inf) come from `state.finished`, where they are blank.
    _, chosen = jax.lax.top_k(both.scores, config.num_beams)
    return Hypotheses(*(_pick(field, chosen) for field in both))


def _truncate(
    ids: Int[Array, "B K T"], count: Int[Array, ""], rules: _Rules
) -> tuple[Int[Array, "B K T"], Int[Array, "B K"]]:
    """The ids up to the first end token, and their number. Only with stopping "presumm" do beams continue after it."""
    ends = ids == rules.eos_id
    is_after = jnp.cumsum(ends, axis=-1) - ends > 0
    is_real = ~is_after & (jnp.arange(ids.shape[-1]) < count)
    return jnp.where(is_real, ids, rules.pad_id), jnp.sum(is_real, axis=-1)


def _is_done(
    rules: _Rules, index: Int[Array, ""], running: Float[Array, "B K"], is_end: Bool[Array, "B M"], finished: Hypotheses
) -> Bool[Array, " B"]:
    """Whether each row is done after this step.

    Args:
      rules: the settings.
      index: the step.
      running: the log-probabilities of the beams that continue, best first.
      is_end: which candidates end.
      finished: the finished hypotheses, including those of this step.
    """
    config = rules.config
    best = running[:, 0]
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
    # Log-probabilities only fall and penalties are monotone, so the best possible score is at the shortest or the
    # longest remaining length.
    bound = jnp.maximum(bound, best / length_penalty(config, rules.max_lengths))
    return is_dead | (finished.scores[:, config.n_best - 1] >= bound)


def _extend(rules: _Rules, state: _State, continuing: _Candidates) -> _Running:
    """The beams extended by their new tokens."""
    running = state.running
    index = state.beams.index
    history = _append(_pick(running.history, continuing.parents), continuing.tokens, index)
    runs = running.runs
    if rules.config.block_ngrams:
        tokens = _blocked(rules, history)
        count = index + 1 + tokens.shape[-1] - history.shape[-1]
        runs = extend_runs(_pick(runs, continuing.parents), tokens, count)
    return _Running(continuing.tokens, history, continuing.log_probabilities, runs)


def _next_beams(beams: Beams, parents: Int[Array, "B K"]) -> Beams:
    """The `Beams` of the next step."""
    index = beams.index + 1
    num_beams, length = beams.lineage.shape[1:]
    beam_numbers = jnp.arange(num_beams)[:, None]
    lineage = jnp.where(jnp.arange(length) == index, beam_numbers, _pick(beams.lineage, parents))
    return Beams(index, parents, lineage)


def _append(history: Int[Array, "B K T"], tokens: Int[Array, "B K"], index: Int[Array, ""]) -> Int[Array, "B K T"]:
    return jax.lax.dynamic_update_slice_in_dim(history, tokens[..., None], index, axis=-1)


def _pick(field: Array, chosen: Int[Array, "B n"]) -> Array:
    """Returns `field[b, chosen[b, i]]` for all b and i."""
    return jax.vmap(lambda row, places: row[places])(field, chosen)
