"""Selection of a summary's sentences by their scores, with limits on number and length, and n-gram blocking.

PreSumm's selection (Liu and Lapata 2019, `Trainer.test` in `trainer_ext.py`) is one setting: the three best sentences,
best first, without sentences that share three consecutive words with a better one.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float

from bertjax import words
from bertjax.config import Constrained, Count, always, one_of
from bertjax.errors import UserError

MATCHES = ("", "sentences", "words")
_NEVER = -np.inf
_LEAD = 3


@dataclasses.dataclass(frozen=True)
class SelectionConfig(Constrained, prefix="selection"):
    """Rules for the selection of sentences.

    Attributes:
      num_sentences: maximum number of sentences; 0 for no limit.
      word_budget: maximum total number of words; 0 for no limit. Sentences that exceed it are skipped; shorter ones
        with lower scores may still be chosen.
      threshold: minimum score; None for no minimum.
      block_ngrams: skip a sentence that shares this many consecutive words, in lower case, with a chosen one; 0 for no
        blocking. In Chinese, where each letter is a word, use 5 or 6.
      order: order of the chosen sentences, "score" (PreSumm) or "document".
      min_words: in prediction, only sentences with more words than this are read and chosen. Training and evaluation
        use `data.limits.min_words`.

    Raises:
      UserError: if a value is out of range, or if no limit is set.
    """

    num_sentences: Count = always(3)
    word_budget: Count = always(0)
    threshold: float | None = always(None)
    block_ngrams: Count = always(3)
    order: Annotated[str, one_of("score", "document")] = always("document")
    min_words: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.num_sentences or self.word_budget
        keys = "{num_sentences,word_budget,threshold}"
        expected = "at least one limit, since otherwise the summary is the whole article"
        fix = "set one of them, for example --config.selection.num_sentences=3"
        self.check(ok or self.threshold is not None, keys, expected, got="no limit", fix=fix)


def rules_for_reference(config: SelectionConfig, reference: Sequence[str], how: str) -> SelectionConfig:
    """Returns rules for a summary as long as a reference summary. They replace all limits, including the threshold.

    Args:
      config: the rules.
      reference: the sentences of the reference summary.
      how: "sentences" for the same number of sentences; "words" for at most as many words; "" for unchanged rules.
    """
    if how == "sentences":
        return dataclasses.replace(config, num_sentences=len(reference), word_budget=0, threshold=None)
    if how == "words":
        budget = sum(len(words.split(sentence)) for sentence in reference)
        return dataclasses.replace(config, num_sentences=0, word_budget=budget, threshold=None)
    return config


def rules_for_baselines(config: SelectionConfig) -> SelectionConfig:
    """Returns rules for `lead_scores` and `oracle_scores`: the same length limits, without threshold and blocking.

    If the threshold is the only limit, the result allows at most three sentences, as in published LEAD-3 results.
    """
    number = config.num_sentences or (0 if config.word_budget else _LEAD)
    return dataclasses.replace(config, num_sentences=number, threshold=None, block_ngrams=0)


class Refusal(NamedTuple):
    """A skipped sentence, and the rule that excluded it."""

    sentence: int
    reason: str  # "threshold", "word_budget" or "block_ngrams": the key of the rule
    blocked_by: int | None  # the chosen sentence with the same n-gram; None for another reason
    ngram: tuple[str, ...]  # the first n-gram in both sentences; () for another reason


class Selection(NamedTuple):
    """The sentences of a summary, and those that were skipped."""

    chosen: tuple[int, ...]  # in the order of the summary
    refused: tuple[Refusal, ...]  # sentences skipped before the summary was full, best score first


def select(scores: Float[np.ndarray, " E"], sentences: Sequence[str], config: SelectionConfig) -> Selection:
    """Selects the sentences of a summary.

    Sentences are considered in the order of their scores, best first, until the summary is full. Sentences with equal
    scores are considered in the order of the article. A score of -inf is below every threshold.

    Differences from PreSumm's code: PreSumm adds a mask of 1 to float32 scores, which makes some scores that differ by
    less than 1e-7 equal, and orders equal scores by NumPy's unstable sort. PreSumm can also choose columns of padding
    as sentences if blocking leaves too few sentences.

    Args:
      scores: the scores of the sentences; only of the first sentences if the model's row had no room for all.
      sentences: the texts of the sentences. Words are compared case-sensitively; PreSumm lowercases them.
      config: the rules.
    Returns:
      The numbers of the chosen sentences, and the skipped ones.
    Raises:
      UserError: if a score is NaN.
    """
    assert len(scores) <= len(sentences)
    if np.isnan(scores).any():
        got = f"NaN for sentence {int(np.isnan(scores).argmax())}"
        fix = "use another checkpoint, since this model returns NaN"
        raise UserError("scores of sentences", got=got, expected="numbers", fix=fix)
    threshold = _NEVER if config.threshold is None else config.threshold
    chosen: list[int] = []
    refused: list[Refusal] = []
    owners: dict[tuple[str, ...], int] = {}  # for each n-gram so far, the first chosen sentence with it
    num_words = 0
    for i in map(int, np.argsort(-scores, kind="stable")):
        if len(chosen) == (config.num_sentences or len(scores)):
            break
        sentence_words = words.split(sentences[i])
        ngrams = _ngrams(sentence_words, config.block_ngrams)
        shared = next((ngram for ngram in ngrams if ngram in owners), ())
        if scores[i] < threshold or scores[i] == _NEVER:
            refused.append(Refusal(i, "threshold", None, ()))
        elif config.word_budget and num_words + len(sentence_words) > config.word_budget:
            refused.append(Refusal(i, "word_budget", None, ()))
        elif shared:
            refused.append(Refusal(i, "block_ngrams", owners[shared], shared))
        else:
            chosen.append(i)
            owners |= {ngram: owners.get(ngram, i) for ngram in ngrams}
            num_words += len(sentence_words)
    return Selection(tuple(sorted(chosen) if config.order == "document" else chosen), tuple(refused))


def lead_scores(count: int) -> Float[np.ndarray, " {count}"]:
    """Returns scores that decrease from sentence to sentence, so that `select` returns LEAD, the first sentences."""
    return -np.arange(count, dtype=np.float64)


def oracle_scores(gold: Sequence[int], count: int) -> Float[np.ndarray, " {count}"]:
    """Returns scores of 1 for the sentences in `gold` and -inf for all others, which `select` never chooses.

    PreSumm's oracle is `select` with these scores, n-gram blocking, and no other limits.
    """
    scores = np.full(count, _NEVER)
    scores[list(gold)] = 1.0
    return scores


def _ngrams(sentence_words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """The n-grams of a sentence's words, in order; none if n is 0."""
    return [tuple(sentence_words[start : start + n]) for start in range(len(sentence_words) - n + 1)] if n else []
