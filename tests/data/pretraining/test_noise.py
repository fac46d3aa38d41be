"""The noise of rows: rates that are spread over devices and micro-batches, causal rows, and the weighted bound."""

import itertools
import math

import numpy as np
import pytest

from bertjax.data.pretraining.masking import Draw, MaskingConfig, mask_tokens
from bertjax.data.pretraining.noise import most_predictions, row_noise
from bertjax.data.rows.packing import Packing
from bertjax.errors import UserError

ONLY_MASKS = {"mask_fraction": 1.0, "random_fraction": 0.0, "keep_fraction": 0.0}
BOUND = MaskingConfig(**ONLY_MASKS, distribution="uniform", loss_weight="inverse_rate")
ROWS = 64


@pytest.mark.parametrize("step", range(3))
def test_rates_are_spread_over_neighboring_rows_and_over_every_nth_row(step):
    rates = row_noise(BOUND, 7, step, np.arange(ROWS), ROWS).rates
    assert rates.min() > 0 and rates.max() <= 1
    for bits, stride_bits in itertools.product(range(7), range(7)):
        count, stride = 2**bits, 2**stride_bits
        for first in range(0, ROWS - count * stride + 1, count * stride):
            for offset in range(stride):
                rows = first + offset + stride * np.arange(count)
                assert sorted(np.ceil(rates[rows] * count)) == list(range(1, count + 1))
    part = row_noise(BOUND, 7, step, np.array([5, 40]), ROWS).rates  # a process computes its own rows alone
    np.testing.assert_array_equal(part, rates[[5, 40]])


def test_causal_rows_have_their_share_and_the_others_all_rates():
    config = MaskingConfig(**ONLY_MASKS, distribution="uniform", causal_share=0.25, rate_floor=0.2)
    noise = [row_noise(config, 0, step, np.arange(16), 16) for step in range(200)]
    assert all(np.add.reduceat(of_update.is_causal, [0, 4, 8, 12]).tolist() == [1] * 4 for of_update in noise)
    assert np.mean([of_update.is_causal for of_update in noise], axis=0) == pytest.approx(0.25, abs=0.12)
    rates = np.concatenate([of_update.rates[~of_update.is_causal] for of_update in noise])
    assert rates.min() > 0.2 and rates.mean() == pytest.approx(0.6, abs=0.01)


def test_the_place_of_a_row_says_nothing_about_its_noise():
    """With two sources in turn and half of the rows causal, each of four cells has a quarter of the rows."""
    config = MaskingConfig(causal_share=0.5)
    first_rows = np.zeros(16)
    for step in range(1000):
        is_causal = row_noise(config, 0, step, np.arange(16), 16).is_causal
        assert [is_causal[source::2].sum() for source in range(2)] == [4, 4]
        first_rows += is_causal
    np.testing.assert_allclose(first_rows, 500, atol=3 * math.sqrt(250))


@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
def test_the_predictions_of_rows_have_a_bound_that_is_little_above_the_mean(rows, share):
    size, shortest = 64, 8
    config = MaskingConfig(**ONLY_MASKS, distribution="uniform", causal_share=share)
    rng = np.random.default_rng(0)
    bound = most_predictions(config, Packing(size, size - 1, size // shortest, ()), rows)
    counts = []
    for step in range(1000):
        noise = row_noise(config, 1, step, np.arange(16), 16)
        lengths = rng.choice(np.array([(8,) * 8, (16,) * 4, (64,), (50, 8)], object), size=16)
        predicted = [
            sum(n - 1 if is_causal else math.ceil(rate * (n - 2)) for n in of_row)
            for of_row, rate, is_causal in zip(lengths, noise.rates, noise.is_causal, strict=True)
        ]
        counts += np.reshape(predicted, (-1, rows)).sum(axis=1).tolist()
    assert max(counts) <= bound <= rows * size
    if rows == 16:
        assert bound < 1.3 * np.mean(counts) and bound >= most_predictions(config, Packing(size, 0, 1, ()), rows)
    assert most_predictions(config, Packing(size, size - 1, 8, ()), 12) == 12 * size  # no power of two


SETS = [hidden for k in range(1, 7) for hidden in itertools.combinations(range(6), k)]


def test_every_set_of_hidden_tokens_is_as_likely_as_in_a_random_order():
    """The weighted loss is then the mean over all orders of the negative log-likelihood (Hoogeboom et al. 2022)."""
    count = 40_000
    rates = np.concatenate([row_noise(BOUND, 0, step, np.arange(ROWS), ROWS).rates for step in range(count // ROWS)])
    draw = Draw(0, 0, np.arange(count), np.zeros(count, np.int64))
    ids = np.tile(np.array([1, *range(10, 16), 2], np.int32), (count, 1))
    candidates = np.tile((ids[0] >= 10)[None], (count, 1))
    lengths = np.full(count, 8)
    arguments = {"is_continuation": np.zeros(20, bool), "mask_id": 3, "draw": draw, "rates": rates}
    masked = mask_tokens(ids, candidates, lengths, BOUND, **arguments)
    seen = [tuple((positions[weights > 0] - 1).tolist()) for positions, weights in zip(*masked[1::2], strict=True)]
    counts = np.array([seen.count(hidden) for hidden in SETS])
    expected = np.array([count / 6 / math.comb(6, len(hidden)) for hidden in SETS])
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 62 + 4 * math.sqrt(2 * 62)
    np.testing.assert_allclose(masked.weights.sum(axis=1), 6, rtol=1e-6)
    np.testing.assert_array_equal(masked.input_ids == 3, [[i - 1 in hidden for i in range(8)] for hidden in seen])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"distribution": "uniform", "mode": "static"}, "distribution"),
        ({"distribution": "uniform", "max_predictions": 20}, "distribution"),
        ({"distribution": "uniform", "final_rate": 0.3}, "distribution"),
        ({"loss_weight": "inverse_rate", **ONLY_MASKS}, "loss_weight"),
        ({"loss_weight": "inverse_rate", "distribution": "uniform"}, "loss_weight"),
        *(
            ({"loss_weight": "inverse_rate", "distribution": "uniform", **ONLY_MASKS, **change}, "loss_weight")
            for change in ({"whole_word": True}, {"max_span": 3})
        ),
        ({"rate_floor": 0.1}, "rate_floor"),
        ({"causal_stages": ((0.5, 2.0),)}, r"causal_stages\[0\]"),
        ({"causal_stages": ((0.5, 1.0), (0.5, 0.0))}, "causal_stages"),
    ],
)
def test_noise_that_is_no_bound_or_no_distribution_is_an_error(changes, key):
    with pytest.raises(UserError, match=f"config key masking.{key}: got"):
        MaskingConfig(**changes)


def test_causal_shares_follow_their_stages():
    config = MaskingConfig(causal_stages=((0.5, 1.0), (0.25, 0.5)))
    shares = [config.at(progress).causal_share for progress in (0.0, 0.49, 0.5, 0.74, 0.76, 1.0)]
    assert shares == [1, 1, 0.5, 0.5, 0, 0]
    assert not config.valid.is_mixed and config.is_mixed
