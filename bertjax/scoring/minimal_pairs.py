"""Accuracy on minimal pairs: how often a model prefers the acceptable sentence (Warstadt et al. 2020)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from bertjax.scoring.bootstrap import interval, resampled_means

METRICS = ("pairs/accuracy", "pairs/per_token_accuracy")
_TOLERANCE = 1e-6  # relative; two scores that are closer are a tie, because they differ by float32 rounding alone


class ScoredPair(NamedTuple):
    """The log-likelihoods of the two sentences of a pair.

    Attributes:
      groups: the phenomenon and the paradigm; "" where the pair has none.
      sums: the log-likelihood of the good and of the bad sentence.
      counts: the numbers of their tokens.
    """

    groups: tuple[str, str]
    sums: tuple[float, float]
    counts: tuple[int, int]


def outcomes(good: Float64[np.ndarray, " N"], bad: Float64[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
    """Returns 1 for each pair whose good sentence has the higher score, 0.5 for each tie, and otherwise 0."""
    return np.where(np.isclose(good, bad, rtol=_TOLERANCE, atol=0), 0.5, good > bad)


def accuracies(pairs: Sequence[ScoredPair]) -> dict[str, float]:
    """Returns the accuracies of all pairs, of each phenomenon and of each paradigm, with 95 % confidence intervals.

    "accuracy" compares the log-likelihoods of the sentences, "per_token_accuracy" their means per token. Names are
    "pairs/accuracy", "pairs/PHENOMENON/accuracy" and "pairs/PHENOMENON/PARADIGM/accuracy", each also with "_low" and
    "_high". Every pair has equal weight.
    """
    sums, counts = (np.array([getattr(pair, name) for pair in pairs], np.float64) for name in ("sums", "counts"))
    values = np.stack([outcomes(*sums.T), outcomes(*(sums / counts).T)], axis=1)
    members: dict[str, list[int]] = {}
    for i, pair in enumerate(pairs):
        path = ["pairs", *filter(None, pair.groups)]
        for length in range(1, len(path) + 1):
            members.setdefault("/".join(path[:length]), []).append(i)
    result: dict[str, float] = {}
    for name, indices in sorted(members.items(), key=lambda item: item[0].count("/")):
        resampled = resampled_means(values[indices])
        for column, kind in enumerate(("accuracy", "per_token_accuracy")):
            low, high, _ = interval(resampled[:, column])
            own = {"": float(values[indices, column].mean()), "_low": low, "_high": high}
            result |= {f"{name}/{kind}{end}": value for end, value in own.items()}
    return result
