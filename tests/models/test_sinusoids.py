import math

import numpy as np

from bertjax.models.embeddings import sinusoids


def test_interleaved_matches_the_formula_of_the_paper():
    table = sinusoids(70, 6, "interleaved")
    assert table.dtype == np.float32
    for position in range(70):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            expected = math.sin(angle), math.cos(angle)
            np.testing.assert_allclose(table[position, 2 * i : 2 * i + 2], expected, atol=1e-7)


def test_half_split_matches_the_formula_of_tensor2tensor():
    table = sinusoids(70, 8, "half_split")
    for position in range(70):
        for i in range(4):
            angle = position * math.exp(-i * math.log(10_000) / 3)
            np.testing.assert_allclose(table[position, i], math.sin(angle), atol=1e-7)
            np.testing.assert_allclose(table[position, 4 + i], math.cos(angle), atol=1e-7)


def test_deinterleaved_reorders_interleaved():
    table = sinusoids(70, 8, "interleaved")
    np.testing.assert_array_equal(sinusoids(70, 8, "deinterleaved"), np.concatenate([table[:, ::2], table[:, 1::2]], 1))


def test_the_smallest_size_of_half_split():
    np.testing.assert_allclose(sinusoids(3, 2, "half_split")[2], [math.sin(2), math.cos(2)], atol=1e-7)
