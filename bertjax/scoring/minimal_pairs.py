"""Accuracy on minimal pairs: how often a model prefers the acceptable sentence (Warstadt et al. 2020)."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

METRICS = ("pairs/accuracy", "pairs/per_token_accuracy")
_QUANTILE = NormalDist().inv_cdf(0.975)
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
    """Returns the accuracies of all pairs, of each phenomenon and of each paradigm, with Wilson's 95 % intervals.

    "accuracy" compares the log-likelihoods of the sentences, "per_token_accuracy" their means per token. Names are
    "pairs/accuracy", "pairs/PHENOMENON/accuracy" and "pairs/PHENOMENON/PARADIGM/accuracy", each also with "_low" and
    "_high". "total" is the number of pairs, and "shorter_accuracy" the accuracy of always choosing the sentence with
    fewer tokens: the baseline of "accuracy", because each token lowers a log-likelihood. Every pair has equal weight.
    """
    sums, counts = (np.array([getattr(pair, name) for pair in pairs], np.float64) for name in ("sums", "counts"))
    values = np.stack([outcomes(*scores.T) for scores in (sums, sums / counts, -counts)], axis=1)
    members: dict[str, list[int]] = {}
    for i, pair in enumerate(pairs):
        path = ["pairs", *filter(None, pair.groups)]
        for length in range(1, len(path) + 1):
            members.setdefault("/".join(path[:length]), []).append(i)
    result: dict[str, float] = {}
    for name, indices in sorted(members.items(), key=lambda item: item[0].count("/")):
        *accuracies, shorter = values[indices].mean(axis=0).tolist()
        for kind, accuracy in zip(("accuracy", "per_token_accuracy"), accuracies, strict=True):
            low, high = wilson(accuracy, len(indices))
            result |= {f"{name}/{kind}": accuracy, f"{name}/{kind}_low": low, f"{name}/{kind}_high": high}
        result |= {f"{name}/shorter_accuracy": shorter, f"{name}/total": float(len(indices))}
    return result


def wilson(share: float, count: int) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a share of `count` trials (Wilson 1927)."""
    square = _QUANTILE**2 / count
    center = share + square / 2
    half = _QUANTILE * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return (center - half) / (1 + square), (center + half) / (1 + square)
