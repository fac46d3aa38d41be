"""Samples compared with their expected probabilities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.decoding.sampling import sample
from tests.decoding import toys
from tests.decoding.toys import EOS, PAD, UNK, make_tables

MANY = 4000


def config(**changes):
    return toys.config(**{"method": "sampling", "n_best": 8, **changes})


@functools.partial(jax.jit, static_argnames="settings")
def draw(tables, seeds, minima, maxima, settings):
    states = jnp.zeros((len(tables), settings.n_best), jnp.int32)
    return sample(
        toys.reordered_step,
        lambda length: (jnp.asarray(tables), states),
        jax.vmap(jax.random.key)(seeds),
        start_ids=jnp.full(len(tables), toys.START),
        min_lengths=minima,
        max_lengths=maxima,
        config=settings,
        eos_id=EOS,
        pad_id=PAD,
        unk_id=UNK,
    )


def run(tables, seeds, minima, maxima, settings):
    limits = map(np.asarray, (seeds, minima, maxima))
    return jax.tree.map(np.asarray, draw(tables, *limits, settings))


def expected_probabilities(logits, settings, banned):
    """The probabilities of one token, computed from the definition."""
    logits = logits.astype(np.float64) / settings.temperature
    logits[list(banned)] = -np.inf
    order = np.argsort(-logits)
    logits[order[settings.top_k or len(order) :]] = -np.inf
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    smallest = next(n for n in range(1, len(order) + 1) if probabilities[order[:n]].sum() >= settings.top_p - 1e-9)
    probabilities[order[smallest:]] = 0
    return probabilities / probabilities.sum()


def check_frequencies(ids, probabilities):
    counts, expected = np.bincount(ids, minlength=len(probabilities)), len(ids) * probabilities
    assert (counts[probabilities == 0] == 0).all()
    common = expected >= 10  # counts of rare tokens are not normally distributed
    errors = np.sqrt(expected * (1 - probabilities))
    assert (np.abs(counts - expected)[common] <= 3 * errors[common] + 1e-6).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3, "forbid_unk": True},
        {"top_p": 0.8},
        {"top_k": 5, "top_p": 0.7, "temperature": 2.0},
    ],
)
def test_frequencies_of_the_first_two_tokens(changes):
    """Frequencies are within three standard errors. About one seed in ten has a token outside; this one has none."""
    settings = config(n_best=MANY, max_length=2, **changes)
    table = make_tables(0, 1, 8)
    ids = run(table, [0], [0], [2], settings).ids[0]
    banned = [PAD, UNK] if settings.forbid_unk else [PAD]
    check_frequencies(ids[:, 0], expected_probabilities(toys.logits_after(table[0], ()), settings, banned))
    best = int(np.argmax(np.bincount(ids[ids[:, 0] != EOS, 0])))
    after = ids[ids[:, 0] == best, 1]
    assert len(after) > 100
    check_frequencies(after, expected_probabilities(toys.logits_after(table[0], (best,)), settings, banned))


def test_temperature_0_is_greedy():
    tables = make_tables(1, 16, 9)
    settings = config(temperature=0.0, n_best=2)
    greedy = toys.search(tables, np.zeros(16, int), np.full(16, 6), toys.config(num_beams=1))
    ours = run(tables, range(16), [0] * 16, [6] * 16, settings)
    for each in range(2):
        np.testing.assert_array_equal(ours.ids[:, each], greedy.ids[:, 0])
        np.testing.assert_allclose(ours.scores[:, each], greedy.scores[:, 0], rtol=1e-5, atol=1e-5)


def test_the_first_token_is_given():
    """Its log-probability is 0."""
    tables, limits = make_tables(5, 2, 9), ([2, 0], [6, 6])
    drawn = run(tables, [0, 1], *limits, config(first_id=4, bad_words=((4,),)))
    assert (drawn.ids[:, :, 0] == 4).all() and len(set(drawn.scores[0].tolist())) > 1
    ended = run(tables, [0, 1], *limits, config(first_id=EOS))
    assert (ended.ids[:, :, :2] == [EOS, PAD]).all() and not ended.scores.any()


def test_samples_of_a_row_do_not_depend_on_its_batch():
    tables, limits = make_tables(2, 3, 9), ([0, 2, 0], [6, 4, 1])
    together = run(tables, [5, 6, 7], *limits, config())
    for row in range(3):
        one = slice(row, row + 1)
        alone = run(tables[one], [5, 6, 7][one], *(limit[one] for limit in limits), config())
        for field, expected in zip(alone, together, strict=True):
            np.testing.assert_array_equal(field[0], expected[row])
    assert (run(tables[:1], [8], [0], [6], config()).ids != together.ids[0]).any()


def test_samples_obey_lengths_padding_and_blocking():
    """Log-probabilities are those of the model."""
    tables = make_tables(3, 2, 7)
    tables[..., PAD] += 5
    settings = config(n_best=50, temperature=1.5, block_ngrams=2, max_length=8)
    drawn, minima, maxima = run(tables, [1, 2], [3, 0], [8, 5], settings), (3, 0), (8, 5)
    for row in range(2):
        for ids, length, log_probability, score in zip(*(field[row] for field in drawn), strict=True):
            ids, rest = ids[:length].tolist(), ids[length:]
            assert PAD not in ids
            assert EOS not in ids[:-1]
            assert (rest == PAD).all()
            assert ids[-1] == EOS or length == maxima[row]
            assert length - (ids[-1] == EOS) >= minima[row]
            assert not toys.has_repeat([toys.START, *ids], 2)
            each = [toys.log_softmax(toys.logits_after(tables[row], ids[:i]))[ids[i]] for i in range(length)]
            assert log_probability == pytest.approx(sum(each), rel=1e-4)
            assert score == log_probability
    assert len({tuple(ids) for ids in drawn.ids[0]}) > 10


def test_a_row_with_maximum_length_0_is_skipped():
    drawn = run(make_tables(4, 2, 7), [0, 0], [0, 0], [0, 3], config())
    assert (drawn.lengths[0] == 0).all()
    assert (drawn.ids[0] == PAD).all()
    assert (drawn.lengths[1] > 0).all()
