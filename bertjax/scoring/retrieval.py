"""Metrics of retrieval (as `trec_eval` computes them), and exact search.

Documents with the same score are in descending order of their identifiers, as in `trec_eval`.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Float64, Int64

_AT_ONCE = 1 << 14  # documents of a block, whose scores are in memory together


def search(
    queries: Float[np.ndarray, "Q D"], documents: Float[np.ndarray, "N D"], count: int
) -> tuple[Float[np.ndarray, "Q K"], Int64[np.ndarray, "Q K"]]:
    """Returns the scores and indices of the documents with the largest dot products, in descending order.

    The search is exact, in blocks, so that `documents` may be a memory map larger than memory. Of equal scores, the
    document with the larger index comes first.

    Args:
      queries: the vectors of the queries.
      documents: the vectors of the documents.
      count: the number of documents for each query; K is at most N.
    """
    scores: np.ndarray = np.zeros((len(queries), 0), np.float32)
    indices: np.ndarray = np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(documents), _AT_ONCE):
        block = np.asarray(documents[start : start + _AT_ONCE], np.float32)
        found = queries.astype(np.float32) @ block.T
        own = _largest(found, count)
        scores = np.concatenate([scores, np.take_along_axis(found, own, axis=1)], axis=1)
        indices = np.concatenate([indices, start + own], axis=1)
        best = _largest(scores, count)
        scores, indices = (np.take_along_axis(each, best, axis=1) for each in (scores, indices))
    order = np.lexsort((-indices, -scores), axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(indices, order, axis=1)


def _largest(scores: Float[np.ndarray, "Q N"], count: int) -> Int64[np.ndarray, "Q K"]:
    """The places of the largest scores of each row, in ascending order of places."""
    if scores.shape[1] <= count:
        return np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    return np.sort(np.argpartition(scores, -count, axis=1)[:, -count:], axis=1)


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Returns the documents from the highest score to the lowest; see the module for equal scores."""
    return sorted(sorted(scores, reverse=True), key=lambda name: -np.float32(scores[name]))


def ndcg(found: Sequence[str], relevant: Mapping[str, int], cutoff: int) -> float:
    """Returns the normalized discounted cumulative gain (Jarvelin and Kekalainen 2002) with the relevance as gain."""
    gains = [max(relevant.get(name, 0), 0) for name in found[:cutoff]]
    ideal = sorted((each for each in relevant.values() if each > 0), reverse=True)[:cutoff]
    return _discounted(gains) / _discounted(ideal)


def reciprocal_rank(found: Sequence[str], relevant: Mapping[str, int], cutoff: int) -> float:
    """Returns one over the rank of the first relevant document; 0 if it is beyond the cutoff."""
    ranks = (rank for rank, name in enumerate(found[:cutoff], start=1) if relevant.get(name, 0) > 0)
    return 1 / next(ranks, np.inf)


def recall(found: Sequence[str], relevant: Mapping[str, int], cutoff: int) -> float:
    """Returns the fraction of the relevant documents that are among the first."""
    of_query = {name for name, grade in relevant.items() if grade > 0}
    return len(of_query.intersection(found[:cutoff])) / len(of_query)


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
    found: Mapping[str, Sequence[str]], relevant: Mapping[str, Mapping[str, int]]
) -> Iterator[dict[str, float]]:
    """Yields the metrics of each query that has relevant documents.

    Args:
      found: the documents that a system ranks for each query, best first.
      relevant: the relevance of documents, by query and document.
    """
    for query, of_query in relevant.items():
        if any(grade > 0 for grade in of_query.values()):
            names = found.get(query, ())
            yield {name: score(names, of_query, cutoff) for name, (score, cutoff) in METRICS.items()}


def summarized(values: Sequence[Mapping[str, float]]) -> dict[str, Float64[np.ndarray, " Q"]]:
    """Returns the values of all queries by metric."""
    return {name: np.array([each[name] for each in values]) for name in METRICS}
