import functools

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models import losses

LOGITS = np.float32([[[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]], [[5.0, 1.0, 5.0], [-40.0, 60.0, 0.0]]])
cross_entropy = jax.jit(losses.cross_entropy)
is_best = jax.jit(losses.is_best)
smoothed_cross_entropy = jax.jit(losses.smoothed_cross_entropy, static_argnames=("denominator", "padding_id"))


def test_cross_entropy():
    values = cross_entropy(LOGITS, np.array([[1, 2], [0, 0]]))
    expected = [
        [-np.log(np.exp(3) / np.exp([1, 3, 2]).sum()), np.log(3)],
        [-np.log(np.exp(5) / np.exp([5, 1, 5]).sum()), 100],
    ]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_is_best_is_false_for_ties():
    assert is_best(LOGITS, np.array([[1, 0], [0, 1]])).tolist() == [[True, False], [False, True]]
    assert is_best(LOGITS, np.array([[0, 1], [2, 2]])).tolist() == [[False, False], [False, False]]


def test_squared_error():
    assert losses.squared_error(np.array([1.0, -2.0]), np.array([3.5, -2.0])).tolist() == [6.25, 0]


def test_span_cross_entropy_is_the_mean_of_both_ends():
    start, end = LOGITS[:, 0], LOGITS[:, 1]
    values = jax.jit(losses.span_cross_entropy)(start, end, np.array([0, 2]), np.array([1, 1]))
    first = -np.log(np.exp(1) / np.exp([1, 3, 2]).sum())
    second = -np.log(np.exp(5) / np.exp([5, 1, 5]).sum())
    np.testing.assert_allclose(values, [(first + np.log(3)) / 2, second / 2], rtol=1e-6)


def test_masked_logits_get_no_probability_and_no_gradient():
    logits, allowed = LOGITS[:, 0], np.array([[True, False, True], [True, True, True]])
    labels = np.array([2, 1])

    def masked(logits):
        values = cross_entropy(losses.mask_logits(logits, allowed), labels)
        return values.sum(), values

    gradient, values = jax.jit(jax.grad(masked, has_aux=True))(logits)
    expected = [-np.log(np.exp(2) / np.exp([1, 2]).sum()), -np.log(np.exp(1) / np.exp([5, 1, 5]).sum())]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert gradient[0, 1] == 0
    assert np.isfinite(gradient).all()


def smoothed_label(label, smoothing, denominator, padding_id, num_words=5):
    """The distribution of a smoothed label, computed from the definition."""
    others = [i for i in range(num_words) if denominator == "V" or i != label]
    others = [i for i in others if denominator != "V-2" or i != padding_id]
    assert len(others) == num_words - {"V": 0, "V-1": 1, "V-2": 2}[denominator]
    target = np.zeros(num_words)
    target[others] = smoothing / len(others)
    target[label] += 1 - smoothing
    return target


SMOOTHED = np.random.default_rng(0).normal(0, 2, (2, 3, 5)).astype(np.float32)
LABELS = np.array([[1, 2, 4], [3, 1, 2]])


@pytest.mark.parametrize("denominator", ["V", "V-1", "V-2"])
def test_smoothed_cross_entropy_is_the_cross_entropy_with_smoothed_labels(denominator):
    """Compares the value, its gradient (softmax - target) and the divergence with sums over all words."""

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def smoothed(logits):
        values = smoothed_cross_entropy(logits, LABELS, 0.2, denominator=denominator, padding_id=0)
        return values.sum(), values

    target = np.stack([[smoothed_label(label, 0.2, denominator, 0) for label in row] for row in LABELS])
    probability = np.exp(SMOOTHED.astype(np.float64))
    probability /= probability.sum(-1, keepdims=True)
    gradient, values = smoothed(SMOOTHED)
    np.testing.assert_allclose(values, -(target * np.log(probability)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(gradient, probability - target, atol=1e-6)
    logs = np.log(np.where(target > 0, target, 1))
    divergence = (target * (logs - np.log(probability))).sum(-1)
    assert np.ptp(np.asarray(values) - divergence) < 1e-5  # they differ by a constant


def test_an_unknown_denominator_is_a_user_error():
    with pytest.raises(UserError, match=r"smoothing_denominator: got 'V-3'; expected one of V, V-1, V-2"):
        losses.smoothed_cross_entropy(SMOOTHED, LABELS, 0.1, "V-3")
