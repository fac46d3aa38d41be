"""Comparison of trees of arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def assert_equal(tree: Any, reference: Any) -> None:
    """Checks that two trees have the same structure and the same arrays."""
    jax.tree.map(np.testing.assert_array_equal, tree, reference)


def specs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The shape and type of each array, or of each announced one."""
    return {name: (array.shape, array.dtype) for name, array in batch.items()}


def distance(tree: Any, reference: Any) -> float:
    """The norm of the difference of two trees, divided by the norm of the second."""

    def norm(tree: Any) -> float:
        return np.sqrt(sum(float(np.sum(np.float64(leaf) ** 2)) for leaf in jax.tree.leaves(tree)))

    return norm(jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), tree, reference)) / norm(reference)
