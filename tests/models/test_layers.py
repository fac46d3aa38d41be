import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from bertjax.models.layers import Dropout, draw_levels


@functools.partial(jax.jit, static_argnums=0)
def apply(rate, x, key):
    return Dropout(rate).apply({}, x, deterministic=False, rngs={"dropout": key})


def drop(rate, x, seed=0):
    return np.asarray(apply(rate, x, jax.random.key(seed)))


@pytest.mark.parametrize(("rate", "shape"), [(0.1, (1000, 100)), (0.5, (11, 13, 701)), (0.9, (100_001,))])
def test_dropout_drops_a_fraction_and_preserves_the_mean(rate, shape):
    y = drop(rate, np.full(shape, 3, np.float32))
    dropped = (y == 0).mean()
    error = (rate * (1 - rate) / y.size) ** 0.5
    assert abs(dropped - rate) < 4 * error
    np.testing.assert_allclose(y[y != 0], 3 / (1 - rate), rtol=2e-4)
    assert abs(y.mean() / 3 - 1) < 4 * error / (1 - rate)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_the_draws_of_a_row_are_independent(impl):
    """With "threefry2x32", each quarter has one of the four draws of a counter; with "rbg", pairs share a word."""
    levels = np.asarray(draw_levels(jax.random.key(0, impl=impl), (400, 1000)))
    assert levels.min() < 10 and levels.max() > 2**16 - 10
    dropped = levels < 2**15
    pairs = [*itertools.combinations(np.split(dropped, 4, axis=1), 2), (dropped[:, ::2], dropped[:, 1::2])]
    for a, b in pairs:
        assert abs((a == b).mean() - 0.5) < 4 * (0.25 / 100_000) ** 0.5


def test_the_draws_of_an_element_depend_on_its_row_and_place_alone():
    """The counter of a draw is its row, whatever the axes of the rows, and its place in a quarter."""
    key = jax.random.key(3)
    levels = np.asarray(draw_levels(key, (2, 5, 22))).reshape(10, 22)
    np.testing.assert_array_equal(levels, draw_levels(key, (10, 22)))
    row, place = jnp.array([[7, 7], [2, 4]], jnp.uint32)
    words = threefry2x32_p.bind(*jax.random.key_data(key), row, place)
    expected = np.concatenate([half for word in words for half in (word & 0xFFFF, word >> 16)])
    np.testing.assert_array_equal(levels[7, [2, 4, 8, 10, 14, 16, 20]], expected[:7])


def test_without_dropout_the_input_is_unchanged_and_needs_no_key():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, deterministic=True), x)
    np.testing.assert_array_equal(Dropout(0.0).apply({}, x, deterministic=False), x)


def test_a_rate_near_zero_keeps_almost_all():
    y = drop(1e-6, np.ones((100, 100), np.float32))
    assert (y == 0).sum() <= 4
    np.testing.assert_allclose(y[y != 0], 1, rtol=1e-4)


def test_bfloat16_is_preserved():
    assert drop(0.5, np.ones((4, 33), jnp.bfloat16)).dtype == jnp.bfloat16
