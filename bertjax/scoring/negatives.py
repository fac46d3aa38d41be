"""Hard negatives: documents that a model finds similar to a query, but that are not relevant (Xiong et al. 2021).

Ranks and margins are those of `mine_hard_negatives` of sentence-transformers.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Int64

from bertjax.config import Constrained, Count, Size, always, one_of
from bertjax.scoring.retrieval import dot_products, search


@dataclasses.dataclass(frozen=True)
class MiningConfig(Constrained, prefix="mining"):
    """How hard negatives are chosen.

    Attributes:
      num_negatives: the negatives of a query.
      up_to: the number of the most similar documents, without the positives, to choose from.
      skip: how many of these, the most similar ones after those that a margin excludes, are never chosen.
      margin: how much less similar than its least similar positive a negative is at least; None for any similarity.
      relative_margin: `margin` as a fraction of the absolute similarity of that positive.
      sampling: "top" chooses the most similar documents, "random" draws from all.
    """

    num_negatives: Size = always(4)
    up_to: Size = always(100)
    skip: Count = always(0)
    margin: float | None = always(None)
    relative_margin: float | None = always(None)
    sampling: Annotated[str, one_of("top", "random")] = always("top")

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.skip + self.num_negatives
        self.check(self.up_to >= least, "up_to", f"at least {least}, mining.skip + mining.num_negatives")


def mine(
    queries: Float[np.ndarray, "Q D"],
    documents: Float[np.ndarray, "N D"],
    positives: Sequence[Sequence[int]],
    equal: Sequence[int],
    config: MiningConfig,
    seed: int,
) -> Iterator[list[int]]:
    """Yields the negatives of each query, as indices of documents; see `choose`.

    Args:
      queries: the vectors of the queries.
      documents: the vectors of the documents.
      positives: the indices of the positives of each query, one or more.
      equal: for each query, the index of a document that is not a negative either; -1 for none.
      config: the settings.
      seed: the seed of random negatives.
    """
    scores, indices = search(queries, documents, config.up_to + max(map(len, positives)) + 1)
    for number, relevant in enumerate(positives):
        is_positive = np.isin(indices[number], [*relevant, equal[number]])
        least = float(dot_products(queries[number], documents[relevant]).min())
        ranks = choose(scores[number], is_positive, least, config, np.random.default_rng([seed, number]))
        yield indices[number, ranks].tolist()


def choose(
    scores: Float[np.ndarray, " K"],
    is_positive: Bool[np.ndarray, " K"],
    positive: float,
    config: MiningConfig,
    rng: np.random.Generator,
) -> Int64[np.ndarray, " n"]:
    """Returns the ranks of the negatives of a query, ascending; fewer than `num_negatives` if there are no more.

    Args:
      scores: the similarities of the most similar documents, in descending order.
      is_positive: which of these are not to be chosen because they are relevant.
      positive: the similarity of the least similar positive.
      config: the settings.
      rng: draws the negatives with `sampling="random"`.
    """
    ranks = np.flatnonzero(~is_positive)[: config.up_to]
    if config.margin is not None:
        ranks = ranks[scores[ranks] + config.margin <= positive]
    if config.relative_margin is not None:
        ranks = ranks[scores[ranks] <= positive - abs(positive) * config.relative_margin]
    ranks = ranks[config.skip :]
    if config.sampling == "random" and len(ranks) > config.num_negatives:
        return np.sort(rng.choice(ranks, config.num_negatives, replace=False))
    return ranks[: config.num_negatives]
