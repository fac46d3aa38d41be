import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.scoring.bootstrap import RESAMPLES, compare, resampled_means


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
