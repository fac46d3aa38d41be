"""Metrics of retrieval (as `trec_eval` computes them), and exact search.

Documents with the same score are in descending order of their identifiers, as in `trec_eval`.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float, Float64, Int64

# The queries and documents whose scores are in memory together. Early blocks have fewer documents: they suffice to
# exclude most documents of the later ones. A thread has the scores of a few queries.
_QUERIES = 1 << 8
_FIRST = 1 << 9
_DOCUMENTS = 1 << 14
_OF_THREAD = 1 << 6
# Candidates beyond the requested ones, which nearly always suffice to separate these from the other documents.
_MORE = 8
_ROUNDING = 2.0**-24  # of float32


def search(
    queries: Float[np.ndarray, "Q D"], documents: Float[np.ndarray, "N D"], count: int
) -> tuple[Float[np.ndarray, "Q K"], Int64[np.ndarray, "Q K"]]:
    """Returns the scores and indices of the documents with the largest dot products, in descending order.

    The search is exact, in blocks, so that `documents` may be a memory map larger than memory. Scores are those of
    `dot_products`: they do not depend on other documents, and equal documents have equal scores. Of equal scores, the
    document with the larger index comes first.

    Args:
      queries: the vectors of the queries; without NaN, as those of the documents.
      documents: the vectors of the documents.
      count: the number of documents for each query; K is at most N.
    """
    queries = np.asarray(queries, np.float32)
    count = min(count, len(documents))
    products, candidates, longest = _nearest(queries, documents, min(count + _MORE, len(documents)))
    scores: np.ndarray = np.empty((len(queries), count), np.float32)
    indices: np.ndarray = np.empty(scores.shape, np.int64)
    # Two sums of D products, each rounded in another order, differ by less than half of this.
    margins = 4 * queries.shape[1] * _ROUNDING * longest * np.linalg.norm(queries, axis=1)

    def rank(first: int) -> None:
        rows = slice(first, first + _OF_THREAD)
        exact = dot_products(queries[rows], np.asarray(documents[candidates[rows]], np.float32))
        order = np.lexsort((-candidates[rows], -exact), axis=1)[:, :count]
        scores[rows] = np.take_along_axis(exact, order, axis=1)
        indices[rows] = np.take_along_axis(candidates[rows], order, axis=1)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(rank, range(0, len(queries) if count else 0, _OF_THREAD)))
    if 0 < count < len(documents):
        lowest = np.partition(products, -count, axis=1)[:, -count] - margins
        for number in np.flatnonzero(products.min(axis=1) >= lowest):  # other documents may be as near
            places = _at_least(float(lowest[number]), queries[number], documents)
            exact = dot_products(queries[number], np.asarray(documents[places], np.float32))
            order = np.lexsort((-places, -exact))[:count]
            scores[number] = exact[order]
            indices[number] = places[order]
    return scores, indices


def dot_products(
    queries: Float[np.ndarray, "*Q D"], documents: Float[np.ndarray, "*Q N D"]
) -> Float[np.ndarray, "*Q N"]:
    """Returns the dot product of each query with its documents, rounded the same whatever the other documents are.

    A matrix product sums the last rows or columns of a block in another order than the others.
    """
    return np.einsum("...nd,...d->...n", np.ascontiguousarray(documents), np.ascontiguousarray(queries))


def _at_least(
    lowest: float, query: Float[np.ndarray, " D"], documents: Float[np.ndarray, "N D"]
) -> Int64[np.ndarray, " n"]:
    """Returns the indices of the documents whose product with a query is at least `lowest`, read in blocks."""
    starts = range(0, len(documents), _DOCUMENTS)
    blocks = (np.asarray(documents[start : start + _DOCUMENTS], np.float32) for start in starts)
    products = np.concatenate([block @ query for block in blocks])
    return np.flatnonzero(products >= lowest)


def _nearest(
    queries: Float[np.ndarray, "Q D"], documents: Float[np.ndarray, "N D"], count: int
) -> tuple[Float[np.ndarray, "Q K"], Int64[np.ndarray, "Q K"], float]:
    """Returns the largest products by blocks, their indices in any order, and the length of the longest document."""
    longest = 0.0
    scores: np.ndarray = np.full((len(queries), count), -np.inf, np.float32)
    indices: np.ndarray = np.full(scores.shape, -1, np.int64)
    start = 0
    size = max(_FIRST, count)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while start < len(documents) and count:
            block = np.asarray(documents[start : start + size], np.float32)
            longest = max(longest, float(np.einsum("nd,nd->n", block, block).max()) ** 0.5)
            for first in range(0, len(queries), _QUERIES):
                rows = slice(first, first + _QUERIES)
                parts = ([*range(_OF_THREAD, _QUERIES, _OF_THREAD)],) * 3
                arguments = map(np.split, (scores[rows], indices[rows], queries[rows] @ block.T), parts)
                list(pool.map(_update, *arguments, itertools.repeat(start)))
            start = start + len(block)
            size = max(size, min(2 * size, _DOCUMENTS))
    return scores, indices, longest


def _update(
    scores: Float[np.ndarray, "Q K"], indices: Int64[np.ndarray, "Q K"], products: Float[np.ndarray, "Q N"], start: int
) -> None:
    """Replaces the best scores and their indices, which ascend, where a block of later documents has better ones.

    Only documents with at least the lowest of the best scores are sorted; these are few after the first blocks.
    """
    queries, count = scores.shape
    places = np.flatnonzero(products >= scores.min(axis=1)[:, None])
    rows, columns = np.divmod(places, products.shape[1])
    num_candidates = np.bincount(rows, minlength=queries)
    width = int(num_candidates.max(initial=0))
    slots = count + np.arange(len(rows)) - np.repeat(np.cumsum(num_candidates) - num_candidates, num_candidates)
    merged = np.pad(scores, ((0, 0), (0, width)), constant_values=-np.inf)
    merged[rows, slots] = products.ravel()[places]
    numbers = np.pad(indices, ((0, 0), (0, width)), constant_values=-1)
    numbers[rows, slots] = start + columns
    lowest = np.partition(merged, width, axis=1)[:, width, None]  # of the `count` largest scores
    is_best = merged >= lowest
    for row in np.flatnonzero(is_best.sum(axis=1) > count):  # of those that equal the lowest, the last ones stay
        equal = np.flatnonzero(merged[row] == lowest[row])
        is_best[row, equal[: is_best[row].sum() - count]] = False
    best = np.flatnonzero(is_best).reshape(scores.shape)
    scores[:], indices[:] = merged.ravel()[best], numbers.ravel()[best]


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Returns the documents from the highest score to the lowest; see the module for equal scores."""
    return sorted(sorted(scores, reverse=True), key=lambda name: -np.float32(scores[name]))


def ndcg(ranking: Sequence[str], relevant: Mapping[str, int], cutoff: int) -> float:
    """Returns the normalized discounted cumulative gain (Jarvelin and Kekalainen 2002) with the relevance as gain."""
    gains = [max(relevant.get(name, 0), 0) for name in ranking[:cutoff]]
    ideal = sorted((grade for grade in relevant.values() if grade > 0), reverse=True)[:cutoff]
    return _discounted(gains) / _discounted(ideal)


def reciprocal_rank(ranking: Sequence[str], relevant: Mapping[str, int], cutoff: int) -> float:
    """Returns one over the rank of the first relevant document; 0 if it is beyond the cutoff."""
    ranks = (rank for rank, name in enumerate(ranking[:cutoff], start=1) if relevant.get(name, 0) > 0)
    return 1 / next(ranks, np.inf)


def recall(ranking: Sequence[str], relevant: Mapping[str, int], cutoff: int) -> float:
    """Returns the fraction of the relevant documents that are among the first."""
    positives = {name for name, grade in relevant.items() if grade > 0}
    return len(positives.intersection(ranking[:cutoff])) / len(positives)


def _discounted(gains: Sequence[int]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, start=1)))


METRICS = {
    "accuracy@1": (reciprocal_rank, 1),
    "ndcg@10": (ndcg, 10),
    "mrr@10": (reciprocal_rank, 10),
    "recall@10": (recall, 10),
    "recall@100": (recall, 100),
}


def each_query(
    rankings: Mapping[str, Sequence[str]], relevant: Mapping[str, Mapping[str, int]]
) -> Iterator[dict[str, float]]:
    """Yields the metrics of each query that has relevant documents.

    Args:
      rankings: the documents that a system ranks for each query, best first.
      relevant: the relevance of documents, by query and document.
    """
    for query, grades in relevant.items():
        if any(grade > 0 for grade in grades.values()):
            names = rankings.get(query, ())
            yield {name: score(names, grades, cutoff) for name, (score, cutoff) in METRICS.items()}


def summarized(values: Sequence[Mapping[str, float]]) -> dict[str, Float64[np.ndarray, " Q"]]:
    """Returns the values of all queries by metric."""
    return {name: np.array([scores[name] for scores in values]) for name in METRICS}
