"""How far a mean over documents can be trusted: bootstrap resampling (Efron, 1979), for figures of any kind.

The draws are those of ROUGE-1.5.5 under Perl 5.20 or newer: resample r takes its documents by the 48-bit generator
drand48, seeded with r. So they depend on nothing but the number of documents. The means of all resamples spread as they
should; the mean of those means strays up to three times as far as with independent draws, for less than 100 documents.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from bertjax.errors import UserError

RESAMPLES = 1000
CONFIDENCE = 95  # percent

_MULTIPLIER, _INCREMENT, _MODULUS, _SEED_END = 0x5DEECE66D, 0xB, 1 << 48, 0x330E


class Interval(NamedTuple):
    """Where the mean of new documents would be, in units of the figures."""

    low: float
    high: float
    mean: float  # of the resamples' means: what ROUGE-1.5.5 prints as the average


class Comparison(NamedTuple):
    """The first system's mean less the second's, over the same documents."""

    difference: float
    low: float
    high: float
    p: float  # how often chance alone makes a difference as large, to either side


def resampled_means(figures: Float64[np.ndarray, "D M"]) -> Float64[np.ndarray, "R M"]:
    """Returns the means of M figures over each of R resamples of the D documents, drawn with replacement.

    Raises:
      UserError: no documents.
    """
    if not len(figures):
        raise UserError("resampling", got="no documents", expected="at least one", fix="score some documents first")
    counts = (np.bincount(row, minlength=len(figures)) for row in _draws(len(figures)))
    return np.stack([row @ figures for row in counts]) / len(figures)


def interval(means: Float64[np.ndarray, " R"]) -> Interval:
    """Returns what the means of all resamples say of one figure."""
    ranked = np.sort(means)
    outside = len(ranked) * (100 - CONFIDENCE) // 200
    return Interval(float(ranked[outside]), float(ranked[-outside - 1]), float(ranked.mean()))


def compare(ours: Float64[np.ndarray, " D"], theirs: Float64[np.ndarray, " E"]) -> Comparison:
    """Returns how much better the first system is, by a paired bootstrap test over the same documents.

    p is how often a resample's difference is at least as far from the resamples' mean as the difference is from 0: the
    shift method (Noreen, 1989), with the documents themselves as one resample more.

    Args:
      ours: a figure of each document for the first system.
      theirs: the same of the second system, in the same order.
    Raises:
      UserError: no documents, or not as many of both.
    """
    if len(ours) != len(theirs):
        raise UserError(
            "comparison of two systems",
            got=f"figures of {len(ours)} and {len(theirs)} documents",
            expected="the same documents in the same order",
            fix="score both systems on the same file",
        )
    differences = ours - theirs
    means = resampled_means(differences[:, None])[:, 0]
    difference = float(differences.mean())
    low, high, middle = interval(means)
    as_far = int(np.sum(np.abs(means - middle) >= abs(difference)))
    return Comparison(difference, low, high, (as_far + 1) / (len(means) + 1))


def _draws(size: int) -> Iterator[Int64[np.ndarray, " {size}"]]:
    """Yields for each resample which of `size` documents it draws."""
    # After k + 1 steps from a state, the next one is multipliers[k] * state + increments[k], modulo 2**48.
    multipliers, increments = np.empty(size, np.uint64), np.empty(size, np.uint64)
    multiplier, increment = 1, 0
    for step in range(size):
        multiplier = multiplier * _MULTIPLIER % _MODULUS
        increment = (increment * _MULTIPLIER + _INCREMENT) % _MODULUS
        multipliers[step], increments[step] = multiplier, increment
    for resample in range(RESAMPLES):
        states = (multipliers * np.uint64((resample << 16) + _SEED_END)) + increments  # wraps at 2**64: no harm
        yield ((states & np.uint64(_MODULUS - 1)) / _MODULUS * size).astype(np.int64)
