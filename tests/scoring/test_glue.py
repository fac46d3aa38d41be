import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.scoring import glue

CLASS_METRICS = ("accuracy", "f1", "macro_f1", "matthews_correlation")
NUMBER_METRICS = ("pearson", "spearman")
KINDS = ("micro", "macro")
CLASSES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=30)


def columns(rows, dtype):
    return tuple(np.array(column, dtype) for column in zip(*rows, strict=True))


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "value"),
    [
        ("accuracy", [2, 1, 0, 2], [2, 1, 1, 0], 0.5),
        ("f1", [1, 1, 1, 0, 0], [1, 1, 0, 1, 1], 2 * 2 / 7),
        ("f1", [0, 0], [0, 0], 0.0),
        ("f1", [0, 2], [1, 1], 0.0),
        # F1 of class 0: 2/3; of class 1: 0; of class 2, never predicted: 0; class 3 does not occur.
        ("macro_f1", [0, 0, 1], [0, 2, 0], (1 / 2) / 3),
        ("macro_f1", [3, 3], [3, 3], 1.0),
        # 3 true positives, 3 true negatives, 1 false positive, 1 false negative: (9 - 1) / sqrt(4 * 4 * 4 * 4).
        ("matthews_correlation", [1, 1, 1, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 1, 1, 0], 0.5),
        ("matthews_correlation", [1, 0, 1], [0, 1, 0], -1.0),
        ("matthews_correlation", [1, 1, 1], [0, 1, 1], 0.0),
        ("matthews_correlation", [0, 1, 1], [1, 1, 1], 0.0),
        ("matthews_correlation", [1, 1, 1], [1, 1, 1], 0.0),
        # Gorodkin's correlation: 4 rows, 3 correct; sum of predicted times present 5; (12 - 5) / sqrt(10 * 10).
        ("matthews_correlation", [0, 1, 2, 2], [0, 1, 2, 0], 7 / 10),
        ("pearson", [1.0, 2.0, 3.0], [1.0, 2.0, 4.0], 3 / math.sqrt(2 * 14 / 3)),
        ("pearson", [1.0, 2.0, 3.0], [7.0, 5.0, 3.0], -1.0),
        ("f1_from_3", [3.0, 2.9, 4.0, 5.0], [2.9, 3.0, 3.0, 5.0], 2 * 2 / 6),
        ("spearman", [1.0, 20.0, 300.0], [0.1, 0.2, 0.25], 1.0),
        # The ranks are 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
        ("spearman", [0.0, 5.0, 5.0, 6.0], [0.0, 1.0, 2.0, 3.0], 4.5 / math.sqrt(4.5 * 5)),
    ],
)
def test_worked_examples(metric, predictions, references, value):
    got = glue.score([metric], np.array(predictions), np.array(references))
    assert got == {metric: pytest.approx(value, abs=1e-12)}


def test_label_sets_have_the_scores_of_scikit_learn():
    from sklearn import metrics

    rng = np.random.default_rng(0)
    references, probabilities = rng.random((50, 4)) < 0.3, rng.random((50, 4)).round(1)
    references[:, 3], probabilities[:, 3] = False, 0  # a class that is neither predicted nor present
    predicted = probabilities >= 0.7
    of_classes = metrics.f1_score(references, predicted, average=None, zero_division=0)
    averages = {f"{kind}_f1": metrics.f1_score(references, predicted, average=kind, zero_division=0) for kind in KINDS}
    expected = {"accuracy": metrics.accuracy_score(references, predicted), **averages}
    expected |= {f"f1_{name}": score for name, score in zip("abcd", of_classes, strict=True)}
    assert glue.score_label_sets(probabilities, references, 0.7, tuple("abcd")) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(UserError, match=r"predictions, row 1 \(from 0\): got nan"):
        glue.score_label_sets(np.array([[0.5], [np.nan]]), np.ones((2, 1), bool), 0.5, ("a",))


@pytest.mark.parametrize("constant", [0.1, 1e300, 0.0, -5e-324])
@pytest.mark.parametrize("metric", NUMBER_METRICS)
def test_the_correlation_of_a_constant_is_0(metric, constant):
    constants, values = np.full(7, constant), np.arange(7.0)
    assert glue.METRICS[metric](constants, values) == 0.0
    assert glue.METRICS[metric](values, constants) == 0.0
    assert glue.METRICS[metric](constants, constants) == 0.0


@given(CLASSES)
def test_metrics_of_classes_are_finite_and_in_range(rows):
    for name, value in glue.score(CLASS_METRICS, *columns(rows, np.int64)).items():
        assert type(value) is float
        assert (-1 if name == "matthews_correlation" else 0) <= value <= 1


@given(NUMBERS)
def test_correlations_are_finite_and_in_range(rows):
    for value in glue.score(NUMBER_METRICS, *columns(rows, np.float64)).values():
        assert type(value) is float
        assert -1 <= value <= 1


def test_correlations_are_computed_in_float64():
    predictions, references = np.array([4096, 4097, 4099], np.float32), np.array([0, 1, 3], np.float32)
    assert glue.pearson(predictions, references) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "message"),
    [
        ("bleu", [1], [1], "metric: got 'bleu'; expected one of accuracy, f1, macro_f1, matthews_correlation, pearson"),
        ("accuracy", [], [], "scoring: got no rows; expected at least one"),
        ("pearson", [1, np.nan, np.inf], [1, 2, 3], r"predictions, row 1 \(from 0\): got nan \(2 of 3 values are not"),
        ("spearman", [1.0, 2.0], [1.0, -np.inf], r"references, row 1 \(from 0\): got -inf \(1 of 2 values are not"),
    ],
)
def test_invalid_input(metric, predictions, references, message):
    with pytest.raises(UserError, match=message):
        glue.score([metric], np.array(predictions), np.array(references))
