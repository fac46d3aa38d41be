"""The noise of the rows of an update: the share of its tokens that each hides, or that it is read left to right.

Each row has a place in [0, 1), and places are spread evenly over rows that are computed together: any 2^a rows that are
neighbors in an aligned block, as those of a device, or every 2^b-th of them, as those of a micro-batch, have one place
in each 2^a-th of [0, 1). The second dimension of Sobol's sequence has this property; with the first, van der Corput's,
two micro-batches of every second row would hide 0.25 and 0.75 of their tokens. The number of hidden tokens of a device
then has a bound that is little above its mean, so shapes are static and nothing is dropped.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from bertjax.data import random
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.rows.packing import Packing


class RowNoise(NamedTuple):
    """The noise of rows."""

    rates: Float64[np.ndarray, " n"] | None  # the share of tokens to hide, in (0, 1]; None for a constant rate
    is_causal: Bool[np.ndarray, " n"]  # whether every token predicts the next one, and nothing is hidden


def row_noise(masking: MaskingConfig, seed: int, step: int, rows: Int64[np.ndarray, " n"], batch_size: int) -> RowNoise:
    """Returns the noise of rows of an update, a pure function of its arguments.

    Places are permuted by random bits of the update, so that the number of a row says nothing about its noise, and
    shifted by one uniform number of the update, so that rates are continuous. The rows at the lowest places are causal.

    Args:
      masking: the distribution of rates, and a share of causal rows that `BatchConfig` accepts.
      seed: the seed of the draws.
      step: the update.
      rows: the numbers of the rows in the batch.
      batch_size: the rows of the whole batch.
    """
    num_bits = (batch_size - 1).bit_length()
    scramble, shift = random.bits(seed, random.Stream.RATES, 0, np.array([step]), 2).T
    places = _sobol(rows, num_bits) ^ (scramble.astype(np.int64) >> (32 - num_bits))
    first = round(masking.causal_share * 2**num_bits)  # the places below it are those of causal rows
    if masking.distribution == "constant":
        return RowNoise(None, places < first)
    rates = (places - first + 1 - random.uniform(shift)) / max(2**num_bits - first, 1)
    return RowNoise(masking.rate_floor + (1 - masking.rate_floor) * rates, places < first)


def most_predictions(masking: MaskingConfig, capacity: Packing, rows: int) -> int:
    """Returns the most tokens that `rows` rows of a device and micro-batch can predict.

    With 2^a rows, S tokens in each and a uniform rate it is about S (2^a + 1) / 2; otherwise, all tokens. An instance
    has a special token at least, so one of n tokens hides at most u (n - 1) + 1 of them at the rate u.
    """
    size = capacity.tokens
    if not is_power_of_two(rows):
        return rows * size
    return max(
        sum(_most_of_row(masking, share, capacity, (row / rows, (row + 1) / rows)) for row in range(rows))
        for share in masking.causal_shares
    )


def is_power_of_two(count: int) -> bool:
    """Returns whether a number from 1 on is a power of two."""
    return not count & (count - 1)


def _most_of_row(masking: MaskingConfig, share: float, capacity: Packing, places: tuple[float, float]) -> int:
    low, high = places
    size = capacity.tokens
    if low < share:
        return size
    if masking.distribution == "constant":
        return min(capacity.predictions, size)
    rate = masking.rate_floor + (1 - masking.rate_floor) * (high - share) / (1 - share)
    return min(int(rate * (size - capacity.segments)) + capacity.segments, size)


def _sobol(rows: Int64[np.ndarray, " n"], num_bits: int) -> Int64[np.ndarray, " n"]:
    """Returns the second dimension of Sobol's sequence, times 2^num_bits: Pascal's matrix modulo 2, applied to bits."""
    direction = 2**num_bits >> 1
    places = np.zeros_like(rows)
    for bit in range(num_bits):
        places ^= (rows >> bit & 1) * direction
        direction ^= direction >> 1
    return places
