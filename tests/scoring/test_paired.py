"""The paired t-test compared with SciPy's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertjax.errors import UserError
from bertjax.scoring import paired


@given(st.lists(st.tuples(*[st.floats(-100, 100)] * 2), min_size=2, max_size=12))
def test_it_matches_scipy(pairs):
    ours, theirs = np.array(pairs).T
    found = paired.difference(ours, theirs)
    if np.std(ours - theirs) < 1e-6:
        return
    expected = stats.ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert found == pytest.approx((np.mean(ours - theirs), interval.low, interval.high, expected.pvalue), abs=1e-9)
    assert found.covers_zero == (interval.low <= 0 <= interval.high)


def test_a_single_pair_has_no_interval():
    found = paired.difference(np.array([3.0]), np.array([1.0]))
    assert found.mean == 2.0 and all(map(math.isnan, found[1:])) and found.covers_zero


@pytest.mark.parametrize(("apart", "p", "covers"), [(0.0, 1.0, True), (2.0, 0.0, False)])
def test_equal_differences(apart, p, covers):
    theirs = np.array([1.0, 2.0, 4.0])
    found = paired.difference(theirs + apart, theirs)
    assert (found, found.covers_zero) == ((apart, apart, apart, p), covers)


@pytest.mark.parametrize(("ours", "theirs"), [((), ()), ((1.0,), (1.0, 2.0))])
def test_values_that_are_no_pairs(ours, theirs):
    with pytest.raises(UserError, match=rf"got {len(ours)} and {len(theirs)} values; expected equal numbers"):
        paired.difference(np.array(ours), np.array(theirs))
