"""How far a difference over a few pairs can be trusted: the paired t-test (Student, 1908), as scipy.stats.ttest_rel."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from bertjax.errors import UserError

CONFIDENCE = 95  # percent


class Difference(NamedTuple):
    """A mean difference over pairs, and where its true value would be."""

    mean: float
    low: float  # of the interval of `CONFIDENCE`; not a number for a single pair
    high: float
    p: float  # how often chance alone makes a mean as far from 0, to either side; not a number for a single pair

    @property
    def covers_zero(self) -> bool:
        """Whether nothing may be behind it; so it is of a single pair."""
        return not (self.low > 0 or self.high < 0)


def difference(ours: Float64[np.ndarray, " N"], theirs: Float64[np.ndarray, " M"]) -> Difference:
    """Returns ours less theirs, pair by pair.

    Args:
      ours: a figure of each pair, for example of each seed.
      theirs: the other figure of the same pair.
    Raises:
      UserError: no pairs, or not as many of both.
    """
    if len(ours) != len(theirs) or not len(ours):
        raise UserError(
            "comparison of pairs",
            got=f"{len(ours)} figures and {len(theirs)}",
            expected="as many of both, and at least one",
            fix="compare runs of the same seeds",
        )
    apart = ours - theirs
    mean, freedom = float(apart.mean()), len(apart) - 1
    if not freedom:
        return Difference(mean, math.nan, math.nan, math.nan)
    error = float(apart.std(ddof=1)) / math.sqrt(len(apart))
    if not error:
        return Difference(mean, mean, mean, float(mean == 0))
    reach = t_quantile(CONFIDENCE / 100, freedom) * error
    return Difference(mean, mean - reach, mean + reach, 1 - t_within(abs(mean) / error, freedom))


def t_within(t: float, freedom: int) -> float:
    """Returns how likely Student's t is between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    >>> round(t_within(12.706, 1), 4)
    0.95
    """
    angle = math.atan(t / math.sqrt(freedom))
    # Terms of cos, cos^3, ... or of 1, cos^2, ..., each the one before by cos^2 and a fraction of neighbors.
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * power / (power + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def t_quantile(probability: float, freedom: int) -> float:
    """Returns the t that `t_within` gives a probability for."""
    low, high = 0.0, 1.0
    while t_within(high, freedom) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, freedom) < probability else (low, middle)
    return high
