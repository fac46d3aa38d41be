"""How far a difference over a few pairs can be trusted: the paired t-test (Student, 1908)."""

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
    mean = float(apart.mean())
    if len(apart) == 1:
        return Difference(mean, math.nan, math.nan, math.nan)
    if not apart.std():  # which has no t
        return Difference(mean, mean, mean, float(mean == 0))
    # scipy is imported where intervals are computed, not wherever summaries are predicted. The distribution function is
    # all that is needed of it: scipy.stats takes far longer to import.
    from scipy import special

    freedom, error = len(apart) - 1, float(apart.std(ddof=1)) / math.sqrt(len(apart))
    reach = error * float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 200))
    p = 2 * float(special.stdtr(freedom, -abs(mean) / error))
    return Difference(mean, mean - reach, mean + reach, p)
