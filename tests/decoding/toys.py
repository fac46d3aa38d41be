"""Toy models whose logits depend on the whole prefix, and searches over them in plain Python.

Each row has its own table. A prefix is hashed to one of `MIX` states, whose table entry is the logits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.decoding.beam_search import beam_search
from bertjax.decoding.config import DecodingConfig

PAD, EOS, START, UNK = 0, 1, 2, 3
MIX = 101


def config(**changes):
    values = {
        "method": "beam_search",
        "num_beams": 4,
        "length_penalty": "none",
        "alpha": 0.0,
        "count_eos": True,
        "max_length": 6,
        "max_ratio": 0.0,
        "max_extra": 6,
        "stopping": "exact",
    }
    return DecodingConfig(**{**values, **changes})


def make_tables(seed, rows, vocabulary):
    """Logits [B, MIX, V], with end tokens likely enough that hypotheses have many different lengths."""
    tables = np.random.default_rng(seed).normal(0, 2, (rows, MIX, vocabulary)).astype(np.float32)
    tables[..., EOS] += 1
    return tables


def mix(state, token):
    return (state * 31 + token * 17 + 5) % MIX


def logits_after(table, ids):
    return table[functools.reduce(mix, (START, *ids), 0)]


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - logits.max() - np.log(np.sum(np.exp(logits - logits.max())))


def reordered_step(tokens, cache, beams):
    """A step whose state is reordered by the parents, like that of an RNN."""
    tables, states = cache
    states = mix(jnp.take_along_axis(states, beams.parents, axis=1), tokens)
    return jax.vmap(lambda table, rows: table[rows])(tables, states), (tables, states)


def reordered_cache(tables, settings, length):
    return jnp.asarray(tables), jnp.zeros((len(tables), settings.num_beams), jnp.int32)


def lineage_step(tokens, cache, beams):
    """A step whose cache is not reordered, like a Transformer's keys. Each beam finds its tokens by its lineage."""
    tables, fed = cache  # [B, T, K]
    fed = fed.at[:, beams.index].set(tokens)
    own = jnp.take_along_axis(fed, jnp.swapaxes(beams.lineage[..., : fed.shape[1]], 1, 2), axis=2)  # [B, T, K]
    states = jnp.zeros(tokens.shape, jnp.int32)
    for place in range(fed.shape[1]):
        states = jnp.where(place <= beams.index, mix(states, own[:, place]), states)
    return jax.vmap(lambda table, rows: table[rows])(tables, states), (tables, fed)


def lineage_cache(tables, settings, length):
    return jnp.asarray(tables), jnp.zeros((len(tables), length, settings.num_beams), jnp.int32)


@functools.partial(jax.jit, static_argnames=("settings", "by_lineage"))
def _search(tables, minima, maxima, settings, continues, by_lineage):
    step, make_cache = (lineage_step, lineage_cache) if by_lineage else (reordered_step, reordered_cache)
    return beam_search(
        step,
        functools.partial(make_cache, tables, settings),
        start_ids=jnp.full(len(tables), START),
        min_lengths=minima,
        max_lengths=maxima,
        config=settings,
        eos_id=EOS,
        pad_id=PAD,
        unk_id=UNK,
        continues=continues,
    )


def search(tables, minima, maxima, settings, continues=None, by_lineage=False):
    """The hypotheses of a beam search, as NumPy arrays. Compiled once for each combination of settings and shapes."""
    limits = (np.asarray(limit, np.int32) for limit in (minima, maxima))
    return jax.tree.map(np.asarray, _search(tables, *limits, settings, continues, by_lineage))


def found(hypotheses, row):
    """The hypotheses of a row as [(ids, score)]."""
    fields = (field[row] for field in hypotheses)
    return [
        (tuple(ids[:length].tolist()), float(score)) for ids, length, _, score in zip(*fields, strict=True) if length
    ]


def penalty(settings, length):
    if settings.length_penalty == "gnmt":
        return ((5 + length) / 6) ** settings.alpha
    return max(length, 1) ** (settings.alpha if settings.length_penalty == "length" else 0)


def score(settings, ids, total):
    return total / penalty(settings, len(ids) - (ids[-1] == EOS and not settings.count_eos))


def has_repeat(items, n):
    grams = [tuple(items[i : i + n]) for i in range(len(items) - n + 1)]
    return len(set(grams)) < len(grams)


def continuations(table, ids, settings, minimum, maximum):
    """(token, log-probability) of all allowed next tokens."""
    if settings.force_eos and len(ids) + 1 == maximum:
        return [(EOS, 0.0)]
    if settings.first_id is not None and not ids:
        return [(settings.first_id, 0.0)]
    values = log_softmax(logits_after(table, ids))
    allowed = [token for token in range(len(values)) if token != PAD and (token != EOS or len(ids) >= minimum)]
    allowed = [token for token in allowed if token != UNK or not settings.forbid_unk]
    for word in settings.bad_words:
        allowed = [token for token in allowed if (START, *ids, token)[-len(word) :] != word]
    if settings.block_ngrams:
        allowed = [token for token in allowed if not has_repeat((START, *ids, token), settings.block_ngrams)]
    if settings.renormalize and allowed:
        values = values - np.log(np.sum(np.exp(values[allowed])))
    return [(token, values[token]) for token in allowed]


def plain_search(table, settings, minimum, maximum):
    """[(ids, score)] of the n best hypotheses that beam search finds."""
    width, running, done = settings.num_beams, [((), 0.0)], []
    for length in range(1, maximum + 1):
        grown = [
            ((*ids, token), total + value)
            for ids, total in running
            for token, value in continuations(table, ids, settings, minimum, maximum)
        ]
        grown = sorted(grown, key=lambda pair: -pair[1])[: 2 * width]
        ends = [ids[-1] == EOS or length == maximum for ids, _ in grown]
        done += [
            (ids, score(settings, ids, total)) for (ids, total), end in zip(grown[:width], ends, strict=False) if end
        ]
        done = sorted(done, key=lambda pair: -pair[1])[:width]
        running = [pair for pair, end in zip(grown, ends, strict=True) if not end][:width]
        if not running or is_over(settings, [value for _, value in done], running[0][1], length, maximum):
            break
    return done[: settings.n_best]


def is_over(settings, scores, best, length, maximum):
    needed = settings.n_best if settings.stopping == "exact" else settings.num_beams
    if len(scores) < needed:
        return False
    if settings.stopping == "hf_early" or settings.num_beams == 1:
        return True
    lengths = range(length, maximum + 1) if settings.stopping == "exact" else [length]
    return scores[needed - 1] >= max(best / penalty(settings, n) for n in lengths)
