import jax
import numpy as np
import pytest

from bertjax.models import distillation

SEGMENTS = np.array([[1, 1, 1, 0, 0], [1, 1, 2, 2, 0]])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax(logits):
    exponentials = np.exp(logits.astype(np.float64) - logits.max())
    return exponentials / exponentials.sum()


def kl(teacher, student, temperature=1.0):
    expected = softmax(teacher / temperature)
    actual = softmax(student / temperature)
    return float(np.sum(expected * np.log(expected / actual))) * temperature**2


def test_divergence():
    teacher = draw(2, 3, 7)
    student = draw(2, 3, 7, seed=1)
    for temperature in (1.0, 2.0):
        values = jax.jit(distillation.divergence)(teacher, student, temperature)
        expected = [[kl(teacher[i, j], student[i, j], temperature) for j in range(3)] for i in range(2)]
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    flags = jax.jit(distillation.flag_divergence)(teacher, student, 2.0)
    pairs = [
        [kl(np.array([a, 0]), np.array([b, 0]), 2.0) for a, b in zip(x, y, strict=True)]
        for x, y in zip(teacher.reshape(6, 7), student.reshape(6, 7), strict=True)
    ]
    np.testing.assert_allclose(flags.ravel(), np.mean(pairs, axis=1), rtol=1e-5)


def test_the_gradient_of_logits_keeps_its_scale_at_any_temperature():
    """At high temperatures it is the difference of centered logits over C (Hinton et al. 2015, section 2.1)."""
    teacher = draw(7)
    student = draw(7, seed=1)
    gradient = jax.grad(lambda logits: distillation.divergence(teacher, logits, 1e3))(student)
    difference = student - student.mean() - (teacher - teacher.mean())
    np.testing.assert_allclose(gradient, difference / 7, atol=1e-3)


def test_distances():
    teacher = draw(2, 5, 6)
    student = draw(2, 5, 6, seed=1)
    squared = np.mean((teacher.astype(np.float64) - student) ** 2, axis=-1)
    np.testing.assert_allclose(distillation.squared_distance(teacher, student), squared, rtol=1e-5)
    norms = np.linalg.norm(teacher, axis=-1) * np.linalg.norm(student, axis=-1)
    cosines = np.sum(teacher.astype(np.float64) * student, axis=-1) / norms
    np.testing.assert_allclose(distillation.cosine_distance(teacher, student), 1 - cosines, atol=1e-6)
    slope = jax.grad(lambda x: distillation.cosine_distance(teacher, x).sum())(np.zeros_like(student))
    assert np.isfinite(slope).all()


def test_mean_cosine_is_that_of_different_texts():
    vectors = draw(4, 6)
    unit = vectors[:3] / np.linalg.norm(vectors[:3], axis=1, keepdims=True)
    pairs = (unit @ unit.T)[~np.eye(3, dtype=bool)]
    weights = np.array([1.0, 1.0, 1.0, 0.0], np.float32)
    assert distillation.mean_cosine(vectors, weights) == pytest.approx(pairs.mean(), abs=1e-6)


def test_relations_by_hand():
    """Two heads of width 2, which are not those of the model: its one head of width 4 is split anew."""
    teacher = np.array([[[1.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 1.0]]], np.float32)
    student = np.zeros((1, 2, 2), np.float32)
    # The products of the first half: [[1, 0], [0, 1]], and of the second: [[4, 0], [0, 1]], over the root of 2.
    halves = np.array([[[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 1.0]]]) / np.sqrt(2)
    expected = [np.mean([kl(half[token], np.zeros(2)) for half in halves]) for token in range(2)]
    values = jax.jit(distillation.relation_divergence, static_argnums=2)(teacher, student, 2, np.ones((1, 2), int))
    np.testing.assert_allclose(values, [expected], rtol=1e-5)


def test_relations_are_those_of_the_tokens_of_an_instance():
    teacher = draw(2, 5, 8)
    student = draw(2, 5, 4, seed=1)
    divergence = jax.jit(distillation.relation_divergence, static_argnums=2)
    values = divergence(teacher, student, 2, SEGMENTS)
    for row, places in ((0, slice(0, 3)), (1, slice(0, 2)), (1, slice(2, 4))):
        alone = divergence(
            teacher[row : row + 1, places], student[row : row + 1, places], 2, SEGMENTS[row : row + 1, places]
        )
        np.testing.assert_allclose(values[row, places], alone[0], rtol=1e-5)

    def total(student):
        return (divergence(teacher, student, 2, SEGMENTS) * (SEGMENTS != 0)).sum()

    gradient = jax.grad(total)(student)
    assert np.isfinite(gradient).all()
    assert not gradient[SEGMENTS == 0].any()
    assert (abs(gradient[SEGMENTS != 0]).sum(axis=-1) > 0).all()


def test_scores_are_scaled_products():
    query = draw(2, 5, 2, 3)
    key = draw(2, 5, 2, 3, seed=1)
    expected = np.einsum("BSND,BTND->BNST", query.astype(np.float64), key) / np.sqrt(3)
    np.testing.assert_allclose(distillation.scores(query, key), expected, atol=1e-5)
    related = distillation.are_related(SEGMENTS)
    assert related.sum(axis=(1, 2)).tolist() == [9, 8]
    assert not related[0, 3:].any() and not related[0, :, 3:].any()
