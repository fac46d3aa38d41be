"""`top_k` compared with NumPy's stable sort."""

import jax
import numpy as np
import pytest

from bertjax.decoding.top_k import top_k


def check(x, k):
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    values, places = jax.jit(top_k, static_argnums=1)(x, k)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=-1))


@pytest.mark.parametrize("size", [640, 1280, 1343, 3000])
def test_indices_and_values(size):
    check(np.random.default_rng(size).standard_normal((2, 3, size)).astype(np.float32), 10)


def test_equal_values_are_ordered_by_index():
    x = np.random.default_rng(0).integers(0, 4, (50, 2000)).astype(np.float32)
    x[:2] = 0
    check(x, 6)


def test_rows_with_mostly_minus_infinity():
    x = np.full((4, 2000), -np.inf, np.float32)
    x[1, 1999] = x[2, 70] = x[3, 64:68] = 1
    check(x, 5)


@pytest.mark.parametrize("start", [0, 64, 1900, 1990])
def test_all_largest_values_in_one_block_or_after_the_last_block(start):
    x = np.random.default_rng(1).standard_normal((1, 2000)).astype(np.float32)
    x[:, start : start + 10] += 100
    check(x, 10)
