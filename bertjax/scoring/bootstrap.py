"""Confidence intervals and tests for means over documents, by bootstrap resampling (Efron, 1979).

The draws are those of ROUGE-1.5.5 with Perl 5.20 or newer: resample r draws documents by the 48-bit generator drand48,
seeded with r. So draws depend only on the number of documents. The spread of the resamples' means is correct. For fewer
than 100 documents, the mean of these means deviates up to three times as much as with independent draws.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from bertjax.errors import UserError

RESAMPLES = 1000
CONFIDENCE = 95  # percent

_MULTIPLIER = 0x5DEECE66D
_INCREMENT = 0xB
_MODULUS = 1 << 48
_SEED_END = 0x330E


class Interval(NamedTuple):
    """The 95 % confidence interval of a mean over documents."""

    low: float
    high: float
    mean: float  # the mean of the resamples' means, which ROUGE-1.5.5 prints as the average


class Comparison(NamedTuple):
    """The first system's mean minus the second's over the same documents, with its 95 % confidence interval."""

    difference: float
    low: float
    high: float
    p: float  # two-sided p-value


def resampled_means(values: Float64[np.ndarray, "D M"]) -> Float64[np.ndarray, "R M"]:
    """Returns the means of M metrics over each of R resamples of the D documents, drawn with replacement.

    Raises:
      UserError: if there are no documents.
    """
    if not len(values):
        raise UserError("resampling", got="no documents", expected="at least one", fix="score some documents first")
    counts = (np.bincount(row, minlength=len(values)) for row in _draws(len(values)))
    return np.stack([row @ values for row in counts]) / len(values)


def interval(means: Float64[np.ndarray, " R"]) -> Interval:
    """Returns the confidence interval of one metric, from the means of all resamples."""
    ranked = np.sort(means)
    outside = len(ranked) * (100 - CONFIDENCE) // 200
    return Interval(float(ranked[outside]), float(ranked[-outside - 1]), float(ranked.mean()))


def compare(ours: Float64[np.ndarray, " D"], theirs: Float64[np.ndarray, " E"]) -> Comparison:
    """Compares two systems by a paired bootstrap test over the same documents.

    The p-value is the fraction of resamples whose difference is at least as far from the resamples' mean as the
    observed difference is from 0. This is the shift method (Noreen, 1989), with the documents themselves as an
    additional resample.

    Args:
      ours: the first system's score of each document.
      theirs: the second system's scores, in the same order.
    Raises:
      UserError: if there are no documents, or if the numbers of documents differ.
    """
    if len(ours) != len(theirs):
        got = f"scores of {len(ours)} and {len(theirs)} documents"
        fix = "score both systems on the same file"
        raise UserError("comparison of two systems", got=got, expected="the same documents in the same order", fix=fix)
    differences = ours - theirs
    means = resampled_means(differences[:, None])[:, 0]
    difference = float(differences.mean())
    low, high, middle = interval(means)
    as_far = int(np.sum(np.abs(means - middle) >= abs(difference)))
    return Comparison(difference, low, high, (as_far + 1) / (len(means) + 1))


def _draws(size: int) -> Iterator[Int64[np.ndarray, " {size}"]]:
    """Yields the indices of the documents of each resample, drawn from `size` documents."""
    # After k + 1 steps from a state, the next one is multipliers[k] * state + increments[k], modulo 2**48.
    multipliers = np.empty(size, np.uint64)
    increments = np.empty(size, np.uint64)
    multiplier = 1
    increment = 0
    for step in range(size):
        multiplier = multiplier * _MULTIPLIER % _MODULUS
        increment = (increment * _MULTIPLIER + _INCREMENT) % _MODULUS
        multipliers[step], increments[step] = multiplier, increment
    for resample in range(RESAMPLES):
        # This wraps at 2**64, a multiple of the modulus.
        states = (multipliers * np.uint64((resample << 16) + _SEED_END)) + increments
        yield ((states & np.uint64(_MODULUS - 1)) / _MODULUS * size).astype(np.int64)
