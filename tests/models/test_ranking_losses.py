"""Losses of rerankers, compared with formulas for one query at a time."""

import numpy as np
import pytest

from bertjax.models.ranking_losses import OBJECTIVES

LOGITS, TARGETS = np.random.default_rng(0).random((2, 4, 3)).astype(np.float32)
COUNTS = (1, 2, 3, 2)  # texts of each query
FORMULAS = {
    "binary": lambda x, y: np.sum(-y * np.log(1 / (1 + np.exp(-x))) - (1 - y) * np.log(1 / (1 + np.exp(x)))),
    "regression": lambda x, y: np.sum((x - y) ** 2),
    "listwise": lambda x, y: -np.sum(y * np.log(np.exp(x) / np.exp(x).sum())),
    "distillation": lambda x, y: np.mean((x[0] - x[1:] - (y[0] - y[1:])) ** 2) if len(x) > 1 else 0.0,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_losses_of_queries_with_different_numbers_of_texts(name):
    present = np.arange(3) < np.array(COUNTS)[:, None]
    found = OBJECTIVES[name].loss(LOGITS, TARGETS, present)
    expected = [FORMULAS[name](x[:n], y[:n]) for x, y, n in zip(LOGITS, TARGETS, COUNTS, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
