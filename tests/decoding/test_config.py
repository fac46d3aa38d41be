"""Invalid decoding configs, length limits and length penalties."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.decoding.config import check_special_ids, length_limits
from bertjax.decoding.length_penalties import length_penalty
from bertjax.errors import UserError
from tests.decoding.toys import config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_best": 5}, "n_best: got 5; expected 1 to num_beams=4"),
        ({"stopping": "presumm", "n_best": 2}, "n_best: got 2; expected 1 with decoding.stopping=presumm"),
        ({"method": "forced", "n_best": 2}, "n_best: got 2; expected 1 with decoding.method=forced"),
        ({"alpha": math.nan}, "alpha: got nan; expected a finite number"),
        ({"max_extra": 0}, "max_extra: got 0; expected at least 1 with decoding.max_ratio=0"),
        ({"min_extra": 500}, "min_extra: got 500; expected less than the maximum of 6 tokens of a hypothesis"),
    ],
)
def test_values_that_contradict_each_other(changes, message):
    with pytest.raises(UserError) as error:
        config(**changes)
    assert f"config key decoding.{message}. Fix: " in str(error.value)


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        ({"max_ratio": 1.0, "max_extra": 50}, [0, 0, 0, 0], [50, 51, 60, 100]),
        ({"max_ratio": 1.2, "max_extra": 0}, [0, 0, 0, 0], [1, 1, 12, 100]),
        ({"max_ratio": 2.0, "max_extra": -3}, [0, 0, 0, 0], [1, 1, 17, 100]),
        ({"max_extra": 20, "min_ratio": 0.5, "min_extra": 2}, [2, 2, 7, 19], [20] * 4),
    ],
)
def test_length_limits_depend_on_the_source(changes, least, most):
    ours = length_limits(config(max_length=100, **changes), jnp.array([0, 1, 10, 200]))
    assert [limit.tolist() for limit in ours] == [least, most]


def test_length_penalties():
    lengths = jnp.array([0, 1, 7])
    penalties = [
        length_penalty(config(length_penalty=name, alpha=alpha), lengths)
        for name, alpha in (("none", 0.6), ("gnmt", 2.0), ("length", 2.0), ("length", -1.0))
    ]
    expected = [[1, 1, 1], [25 / 36, 1, 4], [1, 1, 49], [1, 1, 1 / 7]]
    np.testing.assert_allclose(penalties, expected, rtol=1e-6)


def test_the_end_token_must_not_be_the_padding():
    check_special_ids(1, 0)
    with pytest.raises(UserError, match=r"end token: got id 3, which is also the padding; expected two different"):
        check_special_ids(3, 3)
