"""The words of a summary as ROUGE takes them, as numbers: runs of letters and digits, of ASCII or of all scripts."""

import functools
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bertjax.scoring import rouge_stemmer
from bertjax.words import without_punctuation

if TYPE_CHECKING:
    from nltk.stem.porter import PorterStemmer

_WORD = re.compile("[A-Za-z0-9]+")
_WRITTEN = re.compile("[^ \t\n\r\f\v]+")  # with its punctuation: what a limit of words counts

_LONGEST_UNSTEMMED = 3


class Vocabulary(dict[str, int]):
    """The number of each word that came up; words that count as the same have the same."""

    def __init__(self, counts_as: Callable[[str], str]) -> None:
        super().__init__()
        self._counts_as = counts_as
        self._numbers: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        number = self._numbers.setdefault(self._counts_as(word), len(self._numbers))
        self[word] = number
        return number


class Flavor(NamedTuple):
    """What ROUGE programs do otherwise than each other."""

    words: Callable[[str], list[str]]  # of a sentence
    stem: Callable[[str], str] | None  # of a lowercase word; None if there are no stems
    lowercases_first: bool  # in Unicode, before it looks for words: K, the sign of the kelvin, is a letter k
    decimals: int | None  # that a document's precision, recall and F1 are rounded to, as fractions


def _nltk_stem(word: str) -> str:
    return _porter().stem(word) if len(word) > _LONGEST_UNSTEMMED else word


@functools.cache
def _porter() -> "PorterStemmer":
    # NLTK brings all of SciPy's statistics: not for those who stem nothing to wait for.
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


FLAVORS = {
    "rouge-1.5.5": Flavor(_WORD.findall, rouge_stemmer.stem, lowercases_first=False, decimals=5),
    "rouge-score": Flavor(_WORD.findall, _nltk_stem, lowercases_first=True, decimals=None),
    "unicode": Flavor(partial(without_punctuation, joins=False), None, lowercases_first=True, decimals=None),
}


def vocabulary(flavor: Flavor, *, stemmed: bool) -> Vocabulary:
    """Returns an empty vocabulary, in which words are the same whose lowercase forms, or stems of them, are."""
    stem = flavor.stem if stemmed else None
    return Vocabulary(str.lower if stem is None else lambda word: stem(word.lower()))


def encode(sentences: Sequence[str], words: Vocabulary, flavor: Flavor) -> list[list[int]]:
    """Returns the words of each sentence; those that are new join the vocabulary.

    >>> flavor = FLAVORS["rouge-1.5.5"]
    >>> encode(["A well-known café", "The café is known."], vocabulary(flavor, stemmed=False), flavor)
    [[0, 1, 2, 3], [4, 3, 5, 2]]
    """
    if flavor.lowercases_first:
        sentences = [sentence.lower() for sentence in sentences]
    return [[words[word] for word in flavor.words(sentence)] for sentence in sentences]


def cut(sentences: Sequence[str], limit: int) -> list[str]:
    """Returns the sentences up to `limit` words, the last one cut; words are what spaces separate."""
    kept = []
    for sentence in sentences:
        written = _WRITTEN.findall(sentence)[:limit]
        kept.append(" ".join(written))
        limit -= len(written)
    return kept


def count_written(sentences: Sequence[str]) -> int:
    """Returns how many words a limit would count."""
    return sum(len(_WRITTEN.findall(sentence)) for sentence in sentences)
