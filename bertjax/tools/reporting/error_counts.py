"""The counts of an error analysis: confusions, scores of classes, calibration, and errors of entities."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

BINS = 15  # of the calibration


class ClassScores(NamedTuple):
    """The scores of C classes, from a confusion matrix. A score without examples is 0, as in scikit-learn."""

    precision: Float64[np.ndarray, " C"]
    recall: Float64[np.ndarray, " C"]
    f1: Float64[np.ndarray, " C"]


def confusion(gold: Sequence[int], predicted: Sequence[int], num_classes: int) -> Int64[np.ndarray, "C C"]:
    """Returns the number of examples of each gold class (rows) and predicted class (columns)."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (np.asarray(gold, int), np.asarray(predicted, int)), 1)
    return counts


def class_scores(counts: Int64[np.ndarray, "C C"]) -> ClassScores:
    """Returns precision, recall and F1 of each class of a confusion matrix."""
    return scores_of(np.diag(counts), counts.sum(axis=0), counts.sum(axis=1))


def set_scores(gold: Bool[np.ndarray, "N C"], predicted: Bool[np.ndarray, "N C"]) -> ClassScores:
    """Returns the scores of classes of which an example has any number."""
    return scores_of((gold & predicted).sum(axis=0), predicted.sum(axis=0), gold.sum(axis=0))


def scores_of(right: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> ClassScores:
    """Returns the scores from the numbers of right predictions, of predictions and of those in the data."""
    right = right.astype(np.float64)
    f1 = 2 * right / np.maximum(predicted + gold, 1)
    return ClassScores(right / np.maximum(predicted, 1), right / np.maximum(gold, 1), f1)


class Calibration(NamedTuple):
    """The predictions in bins of equal width by their probability; the means of an empty bin are 0."""

    counts: Int64[np.ndarray, " bins"]
    confidence: Float64[np.ndarray, " bins"]  # the mean probability
    accuracy: Float64[np.ndarray, " bins"]
    error: float  # the expected calibration error (Guo et al. 2017): the mean gap, weighted by the counts


def calibration(probabilities: Sequence[float], are_right: Sequence[bool]) -> Calibration:
    """Returns the calibration of predictions by their probabilities, in 15 bins (low, high]."""
    of_predictions = np.asarray(probabilities, np.float64)
    bins = np.clip(np.ceil(of_predictions * BINS).astype(int) - 1, 0, BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    fewest = np.maximum(counts, 1)
    confidence = np.bincount(bins, of_predictions, BINS) / fewest
    accuracy = np.bincount(bins, np.asarray(are_right, np.float64), BINS) / fewest
    error = float(np.sum(counts * abs(confidence - accuracy)) / max(1, len(of_predictions)))
    return Calibration(counts, confidence, accuracy, error)


def span_errors(gold: Sequence[Sequence[Any]], predicted: Sequence[Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Yields the type and the kind of error of each entity (type, first word, last word).

    For an entity of the data, "right", "type", "boundary" or "missed"; for a prediction, "predicted" and, if it
    overlaps no entity, "false".
    """
    for kind, first, last in gold:
        overlapping = [span for span in predicted if span[1] <= last and span[2] >= first]
        if [kind, first, last] in map(list, overlapping):
            yield kind, "right"
        elif any(list(span[1:]) == [first, last] for span in overlapping):
            yield kind, "type"
        else:
            yield kind, "boundary" if overlapping else "missed"
    for kind, first, last in predicted:
        yield kind, "predicted"
        if not any(span[1] <= last and span[2] >= first for span in gold):
            yield kind, "false"


def mcnemar(ours: int, theirs: int) -> float:
    """Returns the two-sided p-value of McNemar's exact test, a binomial test with probability 1/2.

    Args:
      ours: the examples that only the first predicts right.
      theirs: those that only the second predicts right.
    """
    total = ours + theirs
    tail = sum(math.comb(total, count) for count in range(min(ours, theirs) + 1))
    return min(1.0, 2 * tail / 2**total)
