"""GLUE's metrics for sentence classification and regression (Wang et al., 2019, table 1).

Values are fractions from 0 to 1, or correlations from -1 to 1. They are always finite, so that they can be written as
JSON. An undefined metric is 0.0; the docstrings say when.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float64, Integer, Num

from bertjax.errors import UserError

Classes = Integer[np.ndarray, " n"]
Numbers = Num[np.ndarray, " n"]
Columns = Num[np.ndarray, "n k"] | Bool[np.ndarray, "n k"]


def accuracy(predictions: Classes, references: Classes) -> float:
    """Returns the fraction of rows with the correct class."""
    return int((predictions == references).sum()) / len(references)


def f1(predictions: Classes, references: Classes) -> float:
    """Returns the F1 of class 1; 0.0 if class 1 occurs in neither predictions nor references."""
    return _f1(predictions == 1, references == 1)


def macro_f1(predictions: Classes, references: Classes) -> float:
    """Returns the unweighted mean of the F1 of all classes in predictions or references."""
    classes = np.union1d(predictions, references)
    return sum(_f1(predictions == c, references == c) for c in classes) / len(classes)


def matthews_correlation(predictions: Classes, references: Classes) -> float:
    """Returns Matthews' correlation, with Gorodkin's (2004) extension to more than two classes.

    It is 0.0 if all predictions or all references have the same class.
    """
    classes = np.union1d(predictions, references)
    return _correlation(predictions[:, None] == classes, references[:, None] == classes)


def pearson(predictions: Numbers, references: Numbers) -> float:
    """Returns Pearson's correlation of the values; 0.0 if one side is constant, for which SciPy returns NaN."""
    return _correlation(predictions[:, None], references[:, None])


def spearman(predictions: Numbers, references: Numbers) -> float:
    """Returns Spearman's rank correlation. Equal values get their mean rank; 0.0 if one side is constant."""
    return pearson(ranks(predictions), ranks(references))


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = MappingProxyType(
    {
        "accuracy": accuracy,
        "f1": f1,
        "macro_f1": macro_f1,
        "matthews_correlation": matthews_correlation,
        "pearson": pearson,
        "spearman": spearman,
    }
)


# The metrics of multi-label classification; see `score_label_sets`.
MULTI_LABEL = ("accuracy", "micro_f1", "macro_f1")


def score(metrics: Sequence[str], predictions: Numbers, references: Numbers) -> dict[str, float]:
    """Returns the value of each metric.

    >>> score(["accuracy", "f1"], np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0]))
    {'accuracy': 0.75, 'f1': 0.6666666666666666}

    Args:
      metrics: names in `METRICS`.
      predictions: classes, or numbers for `pearson` and `spearman`.
      references: the correct classes or numbers, in the same order.
    Raises:
      UserError: if a metric is unknown, if there are no rows, or if a value is not finite (of a diverged model).
    """
    assert predictions.shape == references.shape, (predictions.shape, references.shape)
    for name in metrics:
        if name not in METRICS:
            raise UserError(
                "metric", got=repr(name), expected="one of " + ", ".join(METRICS), fix="choose one of these"
            )
    if not len(references):
        raise UserError("scoring", got="no rows", expected="at least one", fix="check the evaluated file")
    for side, values in (("predictions", predictions), ("references", references)):
        _check_finite(side, values)
    return {name: METRICS[name](predictions, references) for name in metrics}


def score_label_sets(
    probabilities: Float64[np.ndarray, "n C"],
    references: Bool[np.ndarray, "n C"],
    threshold: float,
    names: Sequence[str],
) -> dict[str, float]:
    """Returns the metrics of rows with any number of classes, as in scikit-learn with `zero_division=0`.

    `accuracy` is the fraction of rows with exactly the correct classes. `micro_f1` is the F1 of all pairs of a row and
    a class, `f1_NAME` that of a class, and `macro_f1` the unweighted mean over all classes. F1 is 0.0 if nothing is
    predicted or present.

    >>> references = np.array([[True, False], [True, False]])
    >>> score_label_sets(np.array([[0.9, 0.5], [0.6, 0.4]]), references, 0.5, ("a", "b"))
    {'accuracy': 0.5, 'micro_f1': 0.8, 'macro_f1': 0.5, 'f1_a': 1.0, 'f1_b': 0.0}

    Args:
      probabilities: the probability of each class for each of at least one row.
      references: whether each row has each class.
      threshold: the lowest probability of a class that is predicted.
      names: the classes.
    Raises:
      UserError: if a probability is not finite (of a diverged model).
    """
    _check_finite("predictions", probabilities.sum(axis=1))
    predictions = probabilities >= threshold
    class_f1 = [_f1(*columns) for columns in zip(predictions.T, references.T, strict=True)]
    return {
        "accuracy": float((predictions == references).all(axis=1).mean()),
        "micro_f1": _f1(predictions.ravel(), references.ravel()),
        "macro_f1": sum(class_f1) / len(class_f1),
        **{f"f1_{name}": value for name, value in zip(names, class_f1, strict=True)},
    }


def _check_finite(side: str, values: Numbers) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        got = f"{values[bad[0]]} ({len(bad)} of {len(values)} values are not finite)"
        fix = "find the step at which training diverged, or check this row of the file"
        raise UserError(f"{side}, row {bad[0]} (from 0)", got=got, expected="finite numbers", fix=fix)


def _f1(predicted: Bool[np.ndarray, " n"], present: Bool[np.ndarray, " n"]) -> float:
    either = predicted.sum() + present.sum()
    return float(2 * (predicted & present).sum() / either) if either else 0.0


def _correlation(x: Columns, y: Columns) -> float:
    """Returns the correlation of all columns together: covariances and variances are summed over the k columns."""
    # Rounding errors of the mean would otherwise give a constant a nonzero variance.
    if (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    return float(np.clip(np.vdot(_unit(x), _unit(y)), -1, 1))


def _unit(x: Columns) -> Float64[np.ndarray, "n k"]:
    """Returns the columns, centered, as one vector of length 1."""
    scaled = x.astype(np.float64)
    scaled /= np.abs(scaled).max()  # prevents overflow and underflow of squares
    centered = scaled - scaled.mean(axis=0)
    return centered / np.linalg.norm(centered)


def ranks(values: Numbers) -> Float64[np.ndarray, " n"]:
    """Returns the rank of each value, from 1; equal values get their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]
