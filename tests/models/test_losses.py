import jax
import jax.numpy as jnp
import numpy as np

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
