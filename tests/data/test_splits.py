"""Holding out rows."""

import numpy as np
import pytest

from bertjax.data.splits import check_split, held_out, is_held_out
from bertjax.errors import UserError


def test_a_fraction_is_held_out_and_the_same_one_each_time():
    out = held_out(np.arange(10_000), 0.1, 0, "a.tsv")
    assert out.mean() == pytest.approx(0.1, abs=0.01)
    np.testing.assert_array_equal(out[:100], held_out(np.arange(100), 0.1, 0, "a.tsv"))
    assert (out != held_out(np.arange(10_000), 0.1, 1, "a.tsv")).any()


def test_a_group_stays_together():
    groups = np.repeat(np.arange(200), 3)
    out = held_out(groups, 0.3, 0, "a.json").reshape(200, 3)
    assert (out == out[:, :1]).all()
    np.testing.assert_array_equal(out[:, 0], held_out(np.arange(200), 0.3, 0, "a.json"))


def test_both_sides_need_rows():
    with pytest.raises(UserError, match=r"data.valid_fraction=1e-06: got 0 of 3 rows of a.tsv held out; .*some to"):
        held_out(np.arange(3), 1e-6, 0, "a.tsv")


def test_texts_are_held_out_by_what_they_say():
    texts = [f"text {number}" for number in range(10_000)]
    out = [is_held_out(text, 0.1, 0) for text in texts]
    assert np.mean(out) == pytest.approx(0.1, abs=0.01)
    assert [number for number in range(50) if out[number]] == [4, 35, 41, 42]  # as in runs that have begun
    assert not any(is_held_out(text, 0.0, 0) for text in texts) and all(is_held_out(text, 1.0, 0) for text in texts)
    assert out != [is_held_out(text, 0.1, 1) for text in texts]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_fraction_is_needed_where_there_is_no_source(fraction):
    with pytest.raises(UserError, match=r"config key data.valid_fraction: got .*above 0 and below 1.*Fix: use 0.1"):
        check_split("", fraction)
    check_split("dev.tsv", fraction)
