"""PreSumm's limits on the lengths of articles, sentences and summaries."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from bertjax import words
from bertjax.config import Constrained, always
from bertjax.data.codecs.summarization.articles import Article


@dataclasses.dataclass(frozen=True)
class ArticleLimits(Constrained, prefix="data.limits"):
    """Limits on articles for training and evaluation. Lengths are in words; brackets have PreSumm's.

    Attributes:
      min_sentences: an article with fewer sentences of sufficient length is dropped.
      max_sentences: only the first sentences of sufficient length are used, at most this many.
      min_words: a sentence has sufficient length if it has more words than this; exactly this many are too few (5).
        Two syllables of Hangul count as a word.
      max_words: only the first words of a sentence are used, at most this many.
      min_summary_words: an article whose summary has fewer words is dropped; Hangul counts as in `min_words`. PreSumm's
        5 counts word pieces with three special tokens; BertSum has no such limit (0).
      max_summary_words: only the first words of a summary are used for training, at most this many (500 word pieces).
    """

    min_sentences: int = always(3)
    max_sentences: int = always(1000)
    min_words: int = always(5)
    max_words: int = always(200)
    min_summary_words: int = always(5)
    max_summary_words: int = always(500)

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = (("sentences", 1, 1), ("words", 0, 1), ("summary_words", 0, 0))
        for name, lowest, gap in pairs:
            low = getattr(self, f"min_{name}")
            high = getattr(self, f"max_{name}")
            ok = low >= lowest and high >= low + (name == "words") * gap and high >= 1
            expected = f"{lowest} <= min_{name} {'<' if name == 'words' else '<='} max_{name}"
            fix = "change one; PreSumm has 3 to 100 sentences, 5 to 200 words, and 5 to 500 in a summary"
            self.check(ok, f"{{min_{name},max_{name}}}", expected, got=f"{low} and {high}", fix=fix)


class LimitedArticle(NamedTuple):
    """The part of an article that is within the limits.

    A model reads the truncated `sentences`. An extractive summary has the whole sentences `article.sentences[number]`.
    """

    article: Article
    numbers: tuple[int, ...]  # the numbers of the used sentences in the article
    sentences: tuple[str, ...]  # the truncated texts of the used sentences
    labels: tuple[int, ...]  # for each used sentence, 1 if the oracle selected it, else 0
    summary: tuple[str, ...] | None  # the truncated summary
    is_cut: bool  # whether sentences of sufficient length, or words of them, are missing


def limit(article: Article, oracle: Sequence[int], limits: ArticleLimits, *, drops: bool) -> LimitedArticle | str:
    """Returns the part of an article within the limits, or the config key of the limit by which it is dropped.

    The order of steps is PreSumm's: the oracle reads the whole article; then short sentences are removed, the others
    are truncated, and the first are used.

    Args:
      article: the article.
      oracle: the numbers of the selected sentences; () without labels.
      limits: the limits.
      drops: whether the article may be dropped, as in training. PreSumm drops no test articles; BertSum does. If not,
        an article with only short sentences keeps them.
    """
    summary = None if article.summary is None else _cut_summary(article.summary, limits.max_summary_words)
    sizes = [len(words.split(sentence)) for sentence in article.sentences]
    numbers = [number for number, s in enumerate(article.sentences) if words.length(s) > limits.min_words]
    is_short = summary is not None and sum(map(words.length, summary)) < limits.min_summary_words
    if drops and (is_short or len(numbers) < limits.min_sentences):
        return f"data.limits.{'min_summary_words' if is_short else 'min_sentences'}"
    numbers = numbers or list(range(len(sizes)))
    is_cut = len(numbers) > limits.max_sentences or max(sizes) > limits.max_words
    numbers = numbers[: limits.max_sentences]
    sentences = tuple(_cut(article.sentences[number], sizes[number], limits.max_words) for number in numbers)
    chosen = set(oracle)
    labels = tuple(int(number in chosen) for number in numbers)
    return LimitedArticle(article, tuple(numbers), sentences, labels, summary, is_cut)


def _cut(text: str, size: int, max_words: int) -> str:
    return text if size <= max_words else words.truncate(text, max_words)


def _cut_summary(summary: Sequence[str], max_words: int) -> tuple[str, ...]:
    """Returns the first words of a summary, as sentences."""
    sizes = [len(words.split(sentence)) for sentence in summary]
    rooms = [max_words - before for before in itertools.accumulate(sizes, initial=0)]
    return tuple(_cut(s, size, room) for s, size, room in zip(summary, sizes, rooms, strict=False) if room > 0)
