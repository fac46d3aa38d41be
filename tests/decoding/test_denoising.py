"""Samplers of hidden tokens: their distribution, their order, and what a sample depends on."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bertjax.decoding.denoising import SAMPLERS, DenoisingConfig, denoise

MASK, WORDS, SIZE = 3, 3, 3  # ids 0, 1 and 2 are words
RNG = np.random.default_rng(0)
TABLE = jnp.asarray(RNG.normal(size=(SIZE + 1, MASK + 1, SIZE + 1, WORDS)), jnp.float32)


def model(ids):
    """Logits [B, S, V] that depend on all other tokens of a row, of at most 4."""
    size = ids.shape[1]
    effects = sum(TABLE[i][ids[:, i]] for i in range(size))[:, :size]
    return jnp.pad(effects, ((0, 0), (0, 0), (0, 1)), constant_values=-jnp.inf)


def predict_at(positions):
    return lambda ids: jnp.take_along_axis(model(ids), positions[..., None], axis=1)


def sample(ids, config, seed=0, positions=None, is_hidden=None, predict=None):
    ids = jnp.asarray(ids, jnp.int32)
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        is_hidden = ids == MASK
    keys = jax.random.split(jax.random.key(seed), len(ids))
    return jax.jit(lambda ids: denoise(predict or predict_at(positions), ids, positions, is_hidden, keys, config))(ids)


def probability(text, order):
    """The probability of a text whose tokens are drawn in the order of groups of positions."""
    ids = np.full((1, SIZE), MASK)
    total = 1.0
    for group in order:
        distribution = np.asarray(jax.nn.softmax(model(ids)))[0]
        for place in group:
            total *= float(distribution[place, text[place]])
        ids[0, list(group)] = [text[place] for place in group]
    return total


TEXTS = list(itertools.product(range(WORDS), repeat=SIZE))
ORDERS = list(itertools.permutations(range(SIZE)))


@pytest.mark.parametrize(
    ("changes", "orders"),
    [
        ({}, [[[a], [b], [c]] for a, b, c in ORDERS]),
        ({"steps": 1}, [[[0, 1, 2]]]),
        ({"steps": 2}, [[[a], [b, c]] for a, b, c in ORDERS]),
        ({"block_size": 1}, [[[0], [1], [2]]]),
        ({"block_size": 2, "steps": 2}, [[[0], [1], [2]], [[1], [0], [2]]]),  # no step reaches into the next block
    ],
)
def test_samples_have_the_distribution_of_the_mean_over_orders(changes, orders):
    count = 20_000
    tokens = np.asarray(sample(np.full((count, SIZE), MASK), DenoisingConfig(sampler="ancestral", **changes)).tokens)
    expected = count * np.array([np.mean([probability(text, order) for order in orders]) for text in TEXTS])
    assert expected.sum() == pytest.approx(count)
    expected *= count / expected.sum()  # float32 rounds probabilities
    observed = np.bincount(tokens @ [9, 3, 1], minlength=27)
    is_rare = expected < 5
    groups = np.where(is_rare, 27, np.arange(27))  # those expected fewer than 5 times are pooled
    observed, expected = (np.bincount(groups, weights=counts) for counts in (observed, expected))
    assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-3


@pytest.mark.parametrize("sampler", SAMPLERS[1:])
def test_without_temperature_the_surest_tokens_come_first_and_samples_are_deterministic(sampler):
    first, second = (
        np.asarray(sample([[MASK] * SIZE], DenoisingConfig(sampler=sampler, temperature=0.0), seed).tokens)
        for seed in (0, 1)
    )
    ids = np.full((1, SIZE), MASK)
    for _ in range(SIZE):
        distribution = np.asarray(jax.nn.softmax(model(ids)))[0][:, :WORDS]
        ordered = np.sort(distribution)
        entropies = -(distribution * np.log(distribution)).sum(axis=1)
        sureness = {"confidence": ordered[:, -1], "margin": ordered[:, -1] - ordered[:, -2], "entropy": -entropies}
        place = np.argmax(np.where(ids[0] == MASK, sureness[sampler], -np.inf))
        ids[0, place] = distribution[place].argmax()
    np.testing.assert_array_equal(first, ids)
    np.testing.assert_array_equal(first, second)


def test_a_sample_depends_neither_on_other_rows_nor_on_padding_and_keeps_given_tokens():
    config = DenoisingConfig(sampler="ancestral", steps=2)
    ids = jnp.array([[MASK, 1, MASK], [2, MASK, 0]], jnp.int32)
    positions = jnp.array([[0, 2, 0], [1, 0, 0]])
    is_hidden = jnp.array([[True, True, False], [True, False, False]])
    keys = jax.random.split(jax.random.key(0), 2)
    both = denoise(predict_at(positions), ids, positions, is_hidden, keys, config)
    for row, count in enumerate((2, 1)):
        places = positions[row : row + 1, :count]
        one = slice(row, row + 1)
        alone = denoise(predict_at(places), ids[one], places, is_hidden[one, :count], keys[one], config)
        np.testing.assert_array_equal(alone.tokens, both.tokens[one, :count])
        np.testing.assert_allclose(alone.log_bounds, both.log_bounds[one], rtol=1e-5)
    assert (both.tokens[:, 0] < WORDS).all()


def test_the_log_bound_is_the_likelihood_where_tokens_are_independent():
    uniform = lambda ids: jnp.zeros((*ids.shape, 5))  # noqa: E731
    samples = sample([[MASK] * 4, [MASK, 1, 1, MASK]], DenoisingConfig(sampler="confidence"), predict=uniform)
    np.testing.assert_allclose(samples.log_bounds, [-4 * math.log(5), -2 * math.log(5)], rtol=1e-6)


def test_top_p_draws_from_the_smallest_sufficient_set():
    logits = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
    flat = lambda ids: jnp.broadcast_to(logits, (*ids.shape, 4))  # noqa: E731
    tokens = sample(np.full((400, 2), MASK), DenoisingConfig(sampler="ancestral", top_p=0.7), predict=flat).tokens
    assert set(np.unique(tokens)) == {0, 1}


def test_the_bound_hides_every_number_of_tokens_equally_often():
    """Each of n hidden tokens, k of them at a time, has the loss k/n: the bound is -(n + 1) / 2."""
    size = 16
    words = 50

    def predict(ids):
        share = jnp.maximum(jnp.sum(ids == MASK, axis=1), 1) / size
        logits = jnp.zeros((*ids.shape, words))
        return logits.at[..., 0].set((jnp.log(words - 1) - jnp.log(jnp.expm1(share)))[:, None])

    config = DenoisingConfig(sampler="ancestral", temperature=0.0)
    bounds = sample(np.full((128, size), MASK), config, predict=predict).log_bounds
    assert float(bounds.mean()) == pytest.approx(-(size + 1) / 2, abs=0.15)
