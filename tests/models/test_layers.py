import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.layers import Dropout


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


def test_the_two_halves_of_a_word_are_independent():
    dropped = drop(0.5, np.ones((400, 1000), np.float32)) == 0
    assert abs((dropped[:, 0::2] == dropped[:, 1::2]).mean() - 0.5) < 4 * (0.25 / 200_000) ** 0.5


def test_draws_are_determined_by_the_key():
    x = np.ones((4, 33), np.float32)
    np.testing.assert_array_equal(drop(0.5, x, seed=1), drop(0.5, x, seed=1))
    assert (drop(0.5, x, seed=1) != drop(0.5, x, seed=2)).any()


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
