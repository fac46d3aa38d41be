"""Clusters of vectors by k-means, and their agreement with classes (v-measure)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64

RESTARTS = 10  # clusterings from different first centers; the best one is returned
_MOST_STEPS = 300


class Agreement(NamedTuple):
    """The agreement of clusters with classes (Rosenberg and Hirschberg 2007), each number between 0 and 1.

    Attributes:
      homogeneity: 1 if each cluster has texts of one class only.
      completeness: 1 if each class is in one cluster only.
      v_measure: their harmonic mean.
    """

    homogeneity: float
    completeness: float
    v_measure: float


def v_measure(classes: Sequence[object], clusters: Sequence[object]) -> Agreement:
    """Returns the agreement of clusters with classes."""
    labelings = [np.unique(np.asarray(names), return_inverse=True)[1] for names in (classes, clusters)]
    table = np.zeros([numbers.max() + 1 for numbers in labelings])
    np.add.at(table, tuple(labelings), 1)
    class_entropy = _entropy(table.sum(axis=1))
    cluster_entropy = _entropy(table.sum(axis=0))
    shared = max(class_entropy + cluster_entropy - _entropy(table.ravel()), 0.0)
    homogeneity, completeness = (shared / entropy if entropy else 1.0 for entropy in (class_entropy, cluster_entropy))
    both = homogeneity + completeness
    return Agreement(homogeneity, completeness, 2 * homogeneity * completeness / both if both else 0.0)


def _entropy(counts: Float64[np.ndarray, " N"]) -> float:
    """The entropy in nats of a distribution, given as counts."""
    shares = counts[counts > 0] / counts.sum()
    return float(max(-np.sum(shares * np.log(shares)), 0.0))


def k_means(vectors: Float[np.ndarray, "N D"], count: int, seed: int) -> Int64[np.ndarray, " N"]:
    """Returns the cluster of each vector: the best of `RESTARTS` clusterings by Lloyd's algorithm.

    The best one has the smallest sum of squared distances to the centers. First centers are drawn by k-means++ (Arthur
    and Vassilvitskii 2007).

    Args:
      vectors: the vectors.
      count: the number of clusters, at most N.
      seed: the seed of the first centers.
    """
    vectors = np.asarray(vectors, np.float64)
    rng = np.random.default_rng(seed)
    clusterings = [_lloyd(vectors, _first_centers(vectors, count, rng)) for _ in range(RESTARTS)]
    return min(clusterings, key=lambda clustering: clustering[0])[1]


def _first_centers(vectors: Float64[np.ndarray, "N D"], count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws vectors far from each other, each with a probability in proportion to its squared distance."""
    centers = [vectors[rng.integers(len(vectors))]]
    nearest = np.full(len(vectors), np.inf)
    while len(centers) < count:
        nearest = np.minimum(nearest, np.square(vectors - centers[-1]).sum(axis=1))
        total = nearest.sum()
        shares = nearest / total if total else None  # all vectors are centers
        centers.append(vectors[rng.choice(len(vectors), p=shares)])
    return np.stack(centers)


def _lloyd(
    vectors: Float64[np.ndarray, "N D"], centers: Float64[np.ndarray, "K D"]
) -> tuple[float, Int64[np.ndarray, " N"]]:
    """Returns the sum of squared distances and the clusters. A center without vectors moves to the farthest one."""
    squares = np.square(vectors).sum(axis=1)
    clusters: np.ndarray = np.full(len(vectors), -1)
    for _ in range(_MOST_STEPS):
        distances = squares[:, None] - 2 * vectors @ centers.T + np.square(centers).sum(axis=1)
        before = clusters
        clusters = distances.argmin(axis=1)
        nearest = distances[np.arange(len(vectors)), clusters]
        counts = np.bincount(clusters, minlength=len(centers))
        empty = np.flatnonzero(counts == 0)
        for center, place in zip(empty, np.argsort(-nearest), strict=False):
            clusters[place] = center
        if np.array_equal(before, clusters):
            break
        sums = np.zeros_like(centers)
        np.add.at(sums, clusters, vectors)
        counts = np.bincount(clusters, minlength=len(centers))
        centers = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
    return float(nearest.sum()), clusters
