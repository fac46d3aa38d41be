"""Losses of vectors of texts, compared with float64 formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.embedding_losses import OBJECTIVES, LossConfig, Texts, total

B, D, SCALE = 5, 7, 20.0


def vectors(num_texts):
    return np.random.default_rng(num_texts).standard_normal((B, num_texts, D))


def texts(num_texts, scores=(), **changes):
    present = np.ones((B, num_texts), bool)
    scores = np.array(scores, np.float32).reshape(B, -1)
    numbers = np.arange(B * num_texts).reshape(B, num_texts)
    return Texts(present, numbers, scores, np.ones(B, np.float32))._replace(**changes)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def log_sum(x):
    return np.log(np.sum(np.exp(x)))


def ranking(x, is_negative, symmetric=False):
    """The mean of both directions, from whether document j of column t is a negative of query i: [B, T - 1, B]."""
    x, losses = unit(x), []
    for i in range(B):
        similar = SCALE * np.einsum("D,jtD->tj", x[i, 0], x[:, 1:])
        candidates = is_negative[i].copy()
        candidates[0, i] = True
        forward = log_sum(similar[candidates]) - similar[0, i]
        queries = SCALE * x[:, 0] @ x[i, 1]
        losses.append((forward + log_sum(queries) - queries[i]) / 2 if symmetric else forward)
    return np.mean(losses)


def found(name, x, of_texts, **changes):
    value = total(name, jnp.asarray(x, jnp.float32), of_texts, jnp.float32(SCALE), LossConfig(**changes))
    return float(value)


@pytest.mark.parametrize(("num_texts", "symmetric"), [(2, False), (4, False), (3, True)])
def test_ranking(num_texts, symmetric):
    x, every = vectors(num_texts), np.ones((B, num_texts - 1, B), bool)
    np.testing.assert_allclose(
        found("ranking", x, texts(num_texts), symmetric=symmetric), ranking(x, every, symmetric), rtol=1e-5
    )


def test_equal_texts_and_missing_ones_are_no_negatives():
    x, of_texts = vectors(3), texts(3)
    of_texts.numbers[2, 1] = of_texts.numbers[0, 1]  # two queries have one positive
    of_texts.numbers[4, 0] = of_texts.numbers[3, 0]  # a query has two positives
    of_texts.numbers[1, 2] = of_texts.numbers[3, 1]  # the negative of one query is the positive of another
    of_texts.present[2, 2] = False
    negative = np.ones((B, 2, B), bool)
    negative[:, 1, 2] = False
    negative[2, 0, 0] = negative[0, 0, 2] = negative[4, 0, 3] = negative[3, 0, 4] = negative[3, 1, 1] = False
    np.testing.assert_allclose(found("ranking", x, of_texts), ranking(x, negative), rtol=1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_text_is_no_negative_of_itself(symmetric):
    """Also where it is the query or the positive of another example, or a negative of its own example."""
    x, of_texts = vectors(3)[:2], jax.tree.map(lambda leaf: leaf[:2], texts(3))
    of_texts.numbers[:] = [[0, 1, 1], [1, 0, 1]]
    assert found("ranking", x, of_texts, symmetric=symmetric) == pytest.approx(0, abs=1e-6)


def test_more_similar_documents_than_the_positive_are_no_negatives():
    x = vectors(2)
    similar = np.einsum("iD,jtD->itj", unit(x)[:, 0], unit(x)[:, 1:])
    negative = similar <= np.einsum("iti->it", similar)[:, :1, None] + 0.1
    assert not negative.all()
    np.testing.assert_allclose(
        found("ranking", x, texts(2), false_negative_margin=0.1), ranking(x, negative), rtol=1e-5
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_examples_that_fill_a_batch_change_nothing(name):
    x, scores = vectors(3), np.random.default_rng(3).random((B, 2))
    x[3:] = 0  # equal vectors have distance 0 and no direction
    of_texts = texts(3, scores, weights=np.array([1, 1, 1, 0, 0], np.float32))

    def loss(x, of_texts):
        return total(name, x, of_texts, jnp.float32(SCALE), LossConfig(symmetric=True))

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(x, jnp.float32), of_texts)
    few = jax.tree.map(lambda leaf: leaf[:3], of_texts)
    expected, few_gradient = jax.value_and_grad(loss)(jnp.asarray(x[:3], jnp.float32), few)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient[:3], few_gradient, atol=1e-6)
    np.testing.assert_array_equal(gradient[3:], 0)
