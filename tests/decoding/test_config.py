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
    ("key", "value", "expected"),
    [
        ("num_beams", 0, "at least 1"),
        ("n_best", 5, "1 to num_beams=4"),
        ("n_best", 0, "at least 1"),
        ("length_penalty", "wu", "one of none, gnmt, length"),
        ("stopping", "never", "one of exact, hf, hf_early, presumm"),
        ("alpha", math.nan, "a finite number"),
        ("block_ngrams", -1, "at least 0"),
        ("max_length", 0, "at least 1"),
        ("max_ratio", -0.5, "at least 0 and finite"),
        ("min_ratio", math.inf, "at least 0 and finite"),
        ("min_extra", -1, "at least 0"),
        ("max_extra", 0, "at least 1 with decoding.max_ratio=0"),
        ("min_extra", 500, "less than the maximum of 6 tokens of a hypothesis"),
    ],
)
def test_invalid_values_of_a_beam_search(key, value, expected):
    with pytest.raises(UserError) as error:
        config(**{key: value})
    assert f"config key decoding.{key}: got " in str(error.value)
    assert f"; expected {expected}. Fix: " in str(error.value)


def test_presumm_requires_n_best_1():
    with pytest.raises(UserError, match=r"n_best: got 2; expected 1 with decoding.stopping=presumm. Fix: change"):
        config(stopping="presumm", n_best=2)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("n_best", 0, "at least 1"),
        ("temperature", -0.1, "at least 0 and finite"),
        ("temperature", math.nan, "at least 0 and finite"),
        ("top_k", -1, "at least 0"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.5, "above 0 and at most 1"),
        ("block_ngrams", -1, "at least 0"),
        ("max_length", 0, "at least 1"),
    ],
)
def test_invalid_values_of_sampling(key, value, expected):
    with pytest.raises(UserError) as error:
        config(method="sampling", **{key: value})
    assert f"config key decoding.{key}: got {value}; expected {expected}. Fix: change" in str(error.value)


def test_invalid_methods():
    with pytest.raises(
        UserError, match=r"decoding\.method: got 'greedy'; expected one of beam_search, sampling, forced"
    ):
        config(method="greedy")
    with pytest.raises(UserError, match=r"n_best: got 2; expected 1 with decoding\.method=forced"):
        config(method="forced", n_best=2)


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
