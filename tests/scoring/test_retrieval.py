"""Metrics of retrieval computed by hand, and exact search."""

import numpy as np
import pytest

from bertjax.scoring import retrieval


def test_metrics_are_those_of_trec_eval():
    """Of random rankings with equal scores, grades below 0, and judged documents that are not found."""
    import pytrec_eval

    rng = np.random.default_rng(0)
    documents = [f"d{number}" for number in range(150)]
    scores = {f"q{i}": dict(zip(documents, rng.integers(0, 40, 150) / 7, strict=True)) for i in range(50)}
    relevant = {
        query: {name: int(grade) for name, grade in zip([*documents, "none"], rng.integers(-1, 3, 151), strict=True)}
        for query in scores
    }
    ranked = {query: retrieval.ranked(found) for query, found in scores.items()}
    theirs = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10", "recip_rank", "recall.10,100"}).evaluate(scores)
    for (query, their), our in zip(theirs.items(), retrieval.each_query(ranked, relevant), strict=True):
        first = their["recip_rank"] * any(relevant[query].get(name, 0) > 0 for name in ranked[query][:10])
        expected = {"ndcg@10": their["ndcg_cut_10"], "mrr@10": first}
        expected |= {f"recall@{count}": their[f"recall_{count}"] for count in (10, 100)}
        assert {name: our[name] for name in expected} == expected


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


SIZES = [(256, 512, 1 << 14, 64), (4, 8, 16, 3), (1, 1, 1, 1), (7, 33, 50, 2), (3, 90, 900, 5)]


@pytest.mark.parametrize("sizes", SIZES)
def test_equal_documents_have_equal_scores(monkeypatch, sizes):
    """A matrix product rounds the last columns of a block in another way."""
    for name, size in zip(("_QUERIES", "_FIRST", "_DOCUMENTS", "_OF_THREAD"), sizes, strict=True):
        monkeypatch.setattr(retrieval, name, size)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        queries, base = (rng.standard_normal((n, 1 + 4 * seed)).astype(np.float32) for n in (5, 50))
        documents = base[rng.integers(0, 50, 101)]
        products = retrieval.dot_products(queries, np.broadcast_to(documents, (5, *documents.shape)))
        scores, indices = retrieval.search(queries, documents, 17)
        expected = [sorted(range(101), key=lambda i: (-row[i], -i))[:17] for row in products]
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(scores, np.take_along_axis(products, indices, axis=1))
        np.testing.assert_array_equal(retrieval.search(queries, documents[::-1], 17)[0], scores)
        for count in (3, 7, 40):
            few, places = retrieval.search(queries, documents[:count], count)
            np.testing.assert_array_equal(few, np.take_along_axis(products, places, axis=1))


def test_more_ties_than_candidates(monkeypatch):
    """All documents are equal, so the search reads all of them again for those with the largest indices."""
    monkeypatch.setattr(retrieval, "_DOCUMENTS", 16)
    rng = np.random.default_rng(0)
    documents = np.broadcast_to(rng.standard_normal(64).astype(np.float16), (100, 64))
    scores, indices = retrieval.search(rng.standard_normal((3, 64)), documents, 5)
    np.testing.assert_array_equal(indices, [[99, 98, 97, 96, 95]] * 3)
    assert (scores == scores[:, :1]).all()
