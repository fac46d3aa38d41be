"""Sentences for a summary, chosen by their scores: how many, how long, without repetition, in which order.

What PreSumm's test does (Liu and Lapata 2019, `Trainer.test` in `trainer_ext.py`) is one setting: three sentences, the
best first, none that shares three words in a row with one before it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float

from bertjax import words
from bertjax.config import Constrained, Count, one_of
from bertjax.errors import UserError

MATCHES = ("", "sentences", "words")
_NEVER = -np.inf
_LEAD = 3


@dataclasses.dataclass(frozen=True)
class SelectionConfig(Constrained, prefix="selection"):
    """How sentences are chosen.

    Attributes:
      num_sentences: the most that are chosen; 0 for no limit. PreSumm: 3.
      word_budget: the most words that they have together, see `words.split`; 0 for no limit. A sentence that is too
        long is passed over, and shorter ones after it may fit.
      threshold: the least score; no limit where it is not set (None).
      block_ngrams: a sentence is passed over that shares so many words in a row with one already chosen; 0 for no such
        rule. Words are compared in lower case, as PreSumm does: `summarization.select` gives them so. PreSumm: 3. In
        Chinese, where each letter is a word, 3 blocks much; take 5 or 6.
      order: of what comes out, "score" (PreSumm) or "document".
      min_words: sentences to predict on are read and can be chosen if they have more words than this. Sentences that
        are trained on or evaluated go by `data.limits.min_words`, 5 in PreSumm.

    Raises:
      UserError: a value out of range.
    """

    num_sentences: Count
    word_budget: Count
    threshold: float | None
    block_ngrams: Count
    order: Annotated[str, one_of("score", "document")]
    min_words: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.num_sentences or self.word_budget or self.threshold is not None):
            raise UserError(
                "config keys selection.{num_sentences,word_budget,threshold}",
                got="no limit at all",
                expected="a limit: otherwise the summary is the article",
                fix="for example selection.num_sentences=3",
            )


def matched(config: SelectionConfig, reference: Sequence[str], how: str) -> SelectionConfig:
    """Returns the rules for a summary as long as a reference: its limits in place of theirs, the threshold's too.

    Args:
      config: the rules.
      reference: its sentences.
      how: "sentences", as many; "words", at most as many; or "", which leaves the rules as they are.
    """
    if how == "sentences":
        return dataclasses.replace(config, num_sentences=len(reference), word_budget=0, threshold=None)
    if how == "words":
        budget = sum(len(words.split(sentence)) for sentence in reference)
        return dataclasses.replace(config, num_sentences=0, word_budget=budget, threshold=None)
    return config


def plain(config: SelectionConfig) -> SelectionConfig:
    """Returns the rules for `lead_scores` and `oracle_scores`, which no threshold fits: as long, without blocking.

    Three sentences at most, as published, where a threshold is the only limit.
    """
    number = config.num_sentences or (0 if config.word_budget else _LEAD)
    return dataclasses.replace(config, num_sentences=number, threshold=None, block_ngrams=0)


class Refusal(NamedTuple):
    """Why a sentence was passed over."""

    sentence: int
    reason: str  # "threshold", "word_budget" or "block_ngrams": the key of the rule
    blocked_by: int | None  # the chosen sentence that has the same n-gram
    ngram: tuple[str, ...]  # the first that both have; () for another reason


class Selection(NamedTuple):
    """What was chosen."""

    chosen: tuple[int, ...]  # in the order of the summary
    refused: tuple[Refusal, ...]  # those looked at before the summary was full, in the order of their scores


def select(scores: Float[np.ndarray, " E"], sentences: Sequence[str], config: SelectionConfig) -> Selection:
    """Returns the numbers of the sentences of a summary.

    Sentences are looked at from the highest score down, equal ones in the order of the article, until there are
    enough. A score of -inf is below every threshold.

    Differences from PreSumm's code: there a mask of 1 is added to float32 scores, so that some that differ by less than
    1e-7 become equal, and equal ones come in whatever order NumPy's unstable sort gives. And columns of padding can be
    taken for sentences there, where blocking leaves too few of them.

    Args:
      scores: of the E sentences, or of the first E: a row of a model may not have had room for all.
      sentences: their texts. Words are compared as they stand, so give lower-cased ones for what PreSumm does.
      config: the rules.
    Raises:
      UserError: a score that is NaN.
    """
    assert len(scores) <= len(sentences)
    if np.isnan(scores).any():
        raise UserError(
            "scores of sentences",
            got=f"NaN for sentence {int(np.isnan(scores).argmax())}",
            expected="numbers",
            fix="take another checkpoint: the model's weights are of no use",
        )
    threshold = _NEVER if config.threshold is None else config.threshold
    chosen: list[int] = []
    refused: list[Refusal] = []
    owners: dict[tuple[str, ...], int] = {}  # of each n-gram so far, the sentence that was chosen with it
    num_words = 0
    for i in map(int, np.argsort(-scores, kind="stable")):
        if len(chosen) == (config.num_sentences or len(scores)):
            break
        found = words.split(sentences[i])
        ngrams = _ngrams(found, config.block_ngrams)
        shared = next((ngram for ngram in ngrams if ngram in owners), ())
        if scores[i] < threshold or scores[i] == _NEVER:
            refused.append(Refusal(i, "threshold", None, ()))
        elif config.word_budget and num_words + len(found) > config.word_budget:
            refused.append(Refusal(i, "word_budget", None, ()))
        elif shared:
            refused.append(Refusal(i, "block_ngrams", owners[shared], shared))
        else:
            chosen.append(i)
            owners |= {ngram: owners.get(ngram, i) for ngram in ngrams}
            num_words += len(found)
    return Selection(tuple(sorted(chosen) if config.order == "document" else chosen), tuple(refused))


def lead_scores(count: int) -> Float[np.ndarray, " {count}"]:
    """Returns scores that fall from sentence to sentence: with them `select` gives LEAD, an article's beginning."""
    return -np.arange(count, dtype=np.float64)


def oracle_scores(gold: Sequence[int], count: int) -> Float[np.ndarray, " {count}"]:
    """Returns scores of 1 for the sentences in `gold`, and of -inf for the others, which are then never chosen.

    PreSumm's oracle is `select` with them, all other limits off; its n-gram blocking is in force there too.
    """
    scores = np.full(count, _NEVER)
    scores[list(gold)] = 1.0
    return scores


def _ngrams(found: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """The n-grams of a sentence's words, in order; none if n is 0."""
    return [tuple(found[start : start + n]) for start in range(len(found) - n + 1)] if n else []
