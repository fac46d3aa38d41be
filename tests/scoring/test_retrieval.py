"""Metrics of retrieval computed by hand, and exact search."""

import math

import numpy as np

from bertjax.scoring import retrieval

FOUND = ["d3", "d1", "d7", "d2"]
RELEVANT = {"d1": 2, "d2": 1, "d9": 1, "d3": 0, "d7": -1}


def test_metrics_of_a_ranking():
    ideal = 2 + 1 / math.log2(3) + 1 / 2
    assert retrieval.ndcg(FOUND, RELEVANT, 10) == (2 / math.log2(3) + 1 / math.log2(5)) / ideal
    assert retrieval.ndcg(FOUND, RELEVANT, 1) == 0
    assert retrieval.reciprocal_rank(FOUND, RELEVANT, 10) == 1 / 2
    assert retrieval.reciprocal_rank(FOUND, RELEVANT, 1) == 0
    assert retrieval.recall(FOUND, RELEVANT, 2) == 1 / 3


def test_equal_scores_are_in_descending_order_of_names():
    assert retrieval.ranked({"a": 1.0, "c": 1.0, "b": 2.0}) == ["b", "c", "a"]


def test_queries_without_relevant_documents_have_no_metrics():
    relevant = {"q1": {"d1": 1}, "q2": {"d1": 0}, "q3": {"d2": 1}}
    first, second = retrieval.each_query({"q1": ["d1"]}, relevant)
    assert (first["ndcg@10"], second["mrr@10"]) == (1.0, 0.0)


def test_search_is_exact(monkeypatch):
    """Many scores are equal: then documents with larger indices come first, also at the last rank."""
    for name, size in {"_QUERIES": 4, "_FIRST": 8, "_DOCUMENTS": 16, "_OF_THREAD": 3}.items():
        monkeypatch.setattr(retrieval, name, size)
    rng = np.random.default_rng(0)
    queries, documents = (rng.integers(-2, 3, (n, 4)).astype(np.float32) for n in (6, 100))
    for count in (1, 10, 200):
        scores, indices = retrieval.search(queries, documents, count)
        expected = [sorted(range(100), key=lambda i: (-documents[i] @ query, -i))[:count] for query in queries]
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(scores, np.take_along_axis(queries @ documents.T, indices, axis=1))
    assert retrieval.search(queries, documents[:0], 10)[1].shape == (6, 0)
