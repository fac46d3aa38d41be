import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.scoring.bootstrap import RESAMPLES, compare, interval, resampled_means


def perl_draws(seed, size):
    """The draws of drand48, computed step by step."""
    state = (seed << 16) + 0x330E
    for _ in range(size):
        state = (0x5DEECE66D * state + 0xB) % 2**48
        yield int(size * (state / 2**48))


@pytest.mark.parametrize("size", [1, 7, 300])
def test_draws_match_perl(size):
    figures = np.eye(size)
    means = resampled_means(figures)
    assert means.shape == (RESAMPLES, size)
    for seed in (0, 1, 999):
        counts = np.bincount(list(perl_draws(seed, size)), minlength=size)
        np.testing.assert_allclose(means[seed] * size, counts, atol=1e-9)


def test_the_interval_excludes_25_of_1000_on_each_side():
    low, high, middle = interval(np.arange(1000.0)[::-1])
    assert (low, high, middle) == (25.0, 974.0, 499.5)


def test_comparison():
    rng = np.random.default_rng(1)
    theirs = rng.normal(30, 10, 400)
    better = compare(theirs + rng.normal(1, 2, 400), theirs)
    assert better.low < better.difference < better.high
    assert better.low > 0
    assert better.p == pytest.approx(1 / (RESAMPLES + 1))
    same = compare(theirs + rng.normal(0, 2, 400), theirs)
    assert same.low < 0 < same.high
    assert same.p > 0.05
    assert compare(theirs, theirs) == (0.0, 0.0, 0.0, 1.0)


def test_invalid_input():
    with pytest.raises(UserError, match="resampling: got no documents; expected at least one"):
        resampled_means(np.zeros((0, 2)))
    with pytest.raises(UserError, match="got scores of 2 and 3 documents; expected the same documents in the same ord"):
        compare(np.zeros(2), np.zeros(3))
