"""The paired t-test (Student, 1908), for comparisons over a few pairs such as seeds."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from bertjax.errors import UserError

CONFIDENCE = 95  # percent


class Difference(NamedTuple):
    """A mean difference over pairs with its confidence interval."""

    mean: float
    low: float  # lower end of the 95 % interval; NaN for a single pair
    high: float  # upper end of the interval; NaN for a single pair
    p: float  # two-sided p-value; NaN for a single pair

    @property
    def covers_zero(self) -> bool:
        """Whether the interval contains 0; True for a single pair."""
        return not (self.low > 0 or self.high < 0)


def difference(ours: Float64[np.ndarray, " N"], theirs: Float64[np.ndarray, " M"]) -> Difference:
    """Returns the mean of `ours` minus `theirs` over pairs.

    Args:
      ours: the first value of each pair, for example a metric of each seed.
      theirs: the second value of each pair.
    Raises:
      UserError: if there are no pairs, or if the numbers of values differ.
    """
    if len(ours) != len(theirs) or not len(ours):
        expected = "equal numbers, at least one"
        fix = "compare runs with the same seeds"
        raise UserError("comparison of pairs", got=f"{len(ours)} and {len(theirs)} values", expected=expected, fix=fix)
    differences = ours - theirs
    mean = float(differences.mean())
    if len(differences) == 1:
        return Difference(mean, math.nan, math.nan, math.nan)
    if not differences.std():  # t is undefined
        return Difference(mean, mean, mean, float(mean == 0))
    # Imported here, because only sweeps compute intervals. scipy.stats would take far longer to import.
    from scipy import special

    freedom = len(differences) - 1
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    reach = error * float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 200))
    p = 2 * float(special.stdtr(freedom, -abs(mean) / error))
    return Difference(mean, mean - reach, mean + reach, p)
