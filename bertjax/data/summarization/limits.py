"""Which articles and sentences are long enough, and how much of long ones is taken: PreSumm's limits."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from bertjax import words
from bertjax.data.summarization.articles import Article
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class ArticleLimits:
    """Limits of what is learned from and evaluated, in words as `words.split` has them; published values in brackets.

    Attributes:
      min_sentences: an article with fewer sentences that are long enough is left out (3).
      max_sentences: so many sentences that are long enough are taken, the first (100).
      min_words: a sentence is long enough if it has more words than this (5; strictly more, whatever its name says).
      max_words: so many words of a sentence are taken, the first (200).
      min_summary_words: an article whose summary has fewer words is left out (5). PreSumm counts word pieces, its three
        markers among them; BertSum has no such limit (0).
      max_summary_words: so many words of a summary are taken to learn from, the first (500, of word pieces).
    """

    min_sentences: int
    max_sentences: int
    min_words: int
    max_words: int
    min_summary_words: int
    max_summary_words: int

    def __post_init__(self) -> None:
        pairs = (("sentences", 1, 1), ("words", 0, 1), ("summary_words", 0, 0))
        for name, lowest, gap in pairs:
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low < lowest or high < low + (name == "words") * gap or high < 1:
                raise UserError(
                    f"config keys data.limits.min_{name} and max_{name}",
                    got=f"{low} and {high}",
                    expected=f"{lowest} <= min_{name} {'<' if name == 'words' else '<='} max_{name}",
                    fix="change one of them; PreSumm has 3 to 100 sentences, 5 to 200 words, 5 to 500 of a summary",
                )


class LimitedArticle(NamedTuple):
    """What is taken of an article.

    A summary that is made of it takes `article.sentences[number]`, whole; the model reads `sentences`.
    """

    article: Article
    numbers: tuple[int, ...]  # of the sentences taken, in the article
    sentences: tuple[str, ...]  # their texts, cut
    labels: tuple[int, ...]  # 1 for those of them that the oracle took, else 0
    summary: tuple[str, ...] | None  # cut


def limit(article: Article, oracle: Sequence[int], limits: ArticleLimits, *, drops: bool) -> LimitedArticle | None:
    """Returns what is taken of an article, or None if it is out of limits.

    In PreSumm's order: the oracle has seen the whole article; then sentences too short are left out, the others are
    cut, and the first are taken.

    Args:
      article: the article.
      oracle: numbers of the sentences to choose; () if there are none to learn from.
      limits: the limits.
      drops: whether an article can be left out, as in training. PreSumm drops none of those to test on, BertSum does.
        If not, one whose sentences are all too short keeps them.
    """
    summary = None if article.summary is None else _cut_summary(article.summary, limits.max_summary_words)
    sizes = [len(words.split(sentence)) for sentence in article.sentences]
    numbers = [number for number, size in enumerate(sizes) if size > limits.min_words]
    is_short = summary is not None and sum(len(words.split(s)) for s in summary) < limits.min_summary_words
    if drops and (is_short or len(numbers) < limits.min_sentences):
        return None
    numbers = (numbers or list(range(len(sizes))))[: limits.max_sentences]
    sentences = tuple(_cut(article.sentences[number], sizes[number], limits.max_words) for number in numbers)
    chosen = set(oracle)
    labels = tuple(int(number in chosen) for number in numbers)
    return LimitedArticle(article, tuple(numbers), sentences, labels, summary)


def _cut(text: str, size: int, max_words: int) -> str:
    return text if size <= max_words else words.truncate(text, max_words)


def _cut_summary(summary: Sequence[str], max_words: int) -> tuple[str, ...]:
    """The first words of a summary, in their sentences."""
    sizes = [len(words.split(sentence)) for sentence in summary]
    rooms = [max_words - before for before in itertools.accumulate(sizes, initial=0)]
    return tuple(_cut(s, size, room) for s, size, room in zip(summary, sizes, rooms, strict=False) if room > 0)
