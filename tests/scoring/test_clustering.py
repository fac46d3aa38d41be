"""k-means, the v-measure and linear probes, on data whose answer is known; and the choice of hard negatives."""

import numpy as np
import pytest

from bertjax.scoring import clustering, negatives, probing

# Computed by scikit-learn 1.9.1: homogeneity_completeness_v_measure, and LogisticRegression(tol=1e-12).
CLASSES, CLUSTERS = [0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 1, 2, 2, 0]
EXPECTED = (0.5588730382170324, 0.5588730382170324, 0.5588730382170324)
PROBES = {2: (0.43162, 2.3184), 3: (-0.19442, 0.77839)}  # the first weight and the bias of the last class


def points(count=3, rows=90, size=4):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, count, rows)
    return (3 * rng.standard_normal((count, size)))[labels] + rng.standard_normal((rows, size)), labels


def test_v_measure():
    assert clustering.v_measure(CLASSES, CLUSTERS) == pytest.approx(EXPECTED, abs=1e-12)
    assert clustering.v_measure(["a", "b"], [1, 0]) == pytest.approx((1, 1, 1))
    assert clustering.v_measure(["a", "b"], [0, 0]) == (0, 1, 0)


def test_k_means_finds_separate_clusters_and_repeats():
    vectors, labels = points()
    found = clustering.k_means(20 * labels[:, None] + vectors, 3, seed=1)
    assert clustering.v_measure(labels.tolist(), found.tolist()).v_measure == pytest.approx(1)
    np.testing.assert_array_equal(clustering.k_means(vectors, 5, 0), clustering.k_means(vectors, 5, 0))
    assert sorted(clustering.k_means(vectors[:4], 4, 0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [2, 3])
def test_a_probe_has_the_weights_of_scikit_learn(count):
    probe = probing.fit(*points(count), count)
    np.testing.assert_allclose([probe.weights[0, -1], probe.biases[-1]], PROBES[count], atol=2e-4)


def chosen(**values):
    config = {"num_negatives": 2, "up_to": 4, "skip": 0, "margin": None, "relative_margin": None, "sampling": "top"}
    scores, is_positive = np.array([0.9, 0.8, 0.75, 0.7, 0.5, 0.4]), np.array([False, True, False, False, False, False])
    rng = np.random.default_rng(0)
    found = negatives.choose(scores, is_positive, 0.8, negatives.MiningConfig(**{**config, **values}), rng)
    return found.tolist()


def test_negatives_are_in_the_range_of_ranks_and_outside_the_margin():
    assert chosen() == [0, 2]
    assert chosen(skip=1) == [2, 3]
    assert chosen(margin=0.1) == [3, 4]
    assert chosen(relative_margin=0.2) == [4]
    assert chosen(margin=0.1, skip=1) == [4]
    assert {tuple(chosen(sampling="random", num_negatives=1)) for _ in range(3)} == {(4,)}
