import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models import losses

LOGITS = jnp.asarray([[[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]], [[5.0, 1.0, 5.0], [-40.0, 60.0, 0.0]]])


def test_cross_entropy_is_that_of_each():
    values = losses.cross_entropy(LOGITS, jnp.asarray([[1, 2], [0, 0]]))
    expected = [
        [-np.log(np.exp(3) / np.exp([1, 3, 2]).sum()), np.log(3)],
        [-np.log(np.exp(5) / np.exp([5, 1, 5]).sum()), 100],
    ]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_is_best_has_no_ties():
    assert losses.is_best(LOGITS, jnp.asarray([[1, 0], [0, 1]])).tolist() == [[True, False], [False, True]]
    assert losses.is_best(LOGITS, jnp.asarray([[0, 1], [2, 2]])).tolist() == [[False, False], [False, False]]


def test_squared_error():
    assert losses.squared_error(jnp.asarray([1.0, -2.0]), jnp.asarray([3.5, -2.0])).tolist() == [6.25, 0]


def test_span_cross_entropy_is_the_mean_of_both_ends():
    start, end = LOGITS[:, 0], LOGITS[:, 1]
    values = losses.span_cross_entropy(start, end, jnp.asarray([0, 2]), jnp.asarray([1, 1]))
    first = -np.log(np.exp(1) / np.exp([1, 3, 2]).sum())
    second = -np.log(np.exp(5) / np.exp([5, 1, 5]).sum())
    np.testing.assert_allclose(values, [(first + np.log(3)) / 2, second / 2], rtol=1e-6)


def test_what_is_masked_takes_no_part():
    logits, allowed = LOGITS[:, 0], jnp.asarray([[True, False, True], [True, True, True]])
    labels = jnp.asarray([2, 1])
    values = losses.cross_entropy(losses.mask_logits(logits, allowed), labels)
    expected = [-np.log(np.exp(2) / np.exp([1, 2]).sum()), -np.log(np.exp(1) / np.exp([5, 1, 5]).sum())]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    gradient = jax.grad(lambda x: losses.cross_entropy(losses.mask_logits(x, allowed), labels).sum())(logits)
    assert gradient[0, 1] == 0
    assert np.isfinite(gradient).all()


def smoothed_label(label, smoothing, denominator, padding_id, num_words=5):
    """The distribution that a smoothed label is, by hand."""
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
def test_smoothed_cross_entropy_is_that_with_a_mixed_label(denominator):
    """The value, its gradient softmax - target, and the divergence, against sums over all words."""

    def smoothed(logits):
        return losses.smoothed_cross_entropy(logits, jnp.asarray(LABELS), 0.2, denominator, padding_id=0)

    target = np.stack([[smoothed_label(label, 0.2, denominator, 0) for label in row] for row in LABELS])
    probability = np.exp(SMOOTHED.astype(np.float64))
    probability /= probability.sum(-1, keepdims=True)
    values = smoothed(jnp.asarray(SMOOTHED))
    np.testing.assert_allclose(values, -(target * np.log(probability)).sum(-1), rtol=1e-5)
    gradient = jax.grad(lambda logits: smoothed(logits).sum())(jnp.asarray(SMOOTHED))
    np.testing.assert_allclose(gradient, probability - target, atol=1e-6)
    logs = np.log(np.where(target > 0, target, 1))
    divergence = (target * (logs - np.log(probability))).sum(-1)
    assert np.ptp(np.asarray(values) - divergence) < 1e-5  # they differ by a constant


def test_smoothed_cross_entropy_is_torchs():
    import torch

    logits = torch.tensor(SMOOTHED.reshape(-1, 5), requires_grad=True)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none")
    values = loss(logits, torch.tensor(LABELS.reshape(-1)))
    (values**2).sum().backward()

    def ours(logits):
        return losses.smoothed_cross_entropy(logits, jnp.asarray(LABELS.reshape(-1)), 0.1, "V")

    flat = jnp.asarray(SMOOTHED.reshape(-1, 5))
    np.testing.assert_allclose(ours(flat), values.detach().numpy(), rtol=1e-5)
    gradient = jax.grad(lambda logits: (ours(logits) ** 2).sum())(flat)
    np.testing.assert_allclose(gradient, logits.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize("denominator", ["V", "V-1", "V-2"])
def test_without_smoothing_it_is_the_cross_entropy(denominator):
    logits, labels = jnp.asarray(SMOOTHED), jnp.asarray(LABELS)
    values = losses.smoothed_cross_entropy(logits, labels, 0.0, denominator, padding_id=0)
    np.testing.assert_array_equal(values, losses.cross_entropy(logits, labels))


def test_another_denominator_is_a_user_error():
    with pytest.raises(UserError, match=r"smoothing_denominator: got 'V-3'; expected one of V, V-1, V-2"):
        losses.smoothed_cross_entropy(jnp.asarray(SMOOTHED), jnp.asarray(LABELS), 0.1, "V-3")
