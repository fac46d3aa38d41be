"""ROUGE's tokenization: sentences to words of letters and digits, in ASCII or all scripts, encoded as numbers."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bertjax.scoring import rouge_stemmer
from bertjax.words import WORDS, porter_stem, units_of

_WORD = re.compile("[A-Za-z0-9]+")
_WRITTEN = re.compile("[^ \t\n\r\f\v]+")  # a word with its punctuation, as counted by a limit of words


class Vocabulary(dict[str, int]):
    """The numbers of words, assigned on first use. Words with the same normal form have the same number."""

    def __init__(self, normalize: Callable[[str], str]) -> None:
        super().__init__()
        self._normalize = normalize
        self._numbers: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        number = self._numbers.setdefault(self._normalize(word), len(self._numbers))
        self[word] = number
        return number


class Flavor(NamedTuple):
    """The differences between ROUGE programs."""

    words: Callable[[str], list[str]]  # splits a sentence into words
    stem: Callable[[str], str] | None  # stems a lowercase word; None without a stemmer
    lowercases_first: bool  # before it splits into words; in Unicode the kelvin sign then becomes the letter k
    decimals: int | None  # rounding of a document's precision, recall and F1 (fractions); None for no rounding
    best_by_recall: bool = False  # whether the best of several references has the highest recall; else the highest F1


FLAVORS = {
    "rouge-1.5.5": Flavor(_WORD.findall, rouge_stemmer.stem, lowercases_first=False, decimals=5, best_by_recall=True),
    "rouge-score": Flavor(_WORD.findall, porter_stem, lowercases_first=True, decimals=None),
    "unicode": Flavor(partial(units_of, units=WORDS, joins=False), None, lowercases_first=True, decimals=None),
}


def flavor_of(name: str, units: str) -> Flavor:
    """Returns a flavor; that of "unicode" compares the `units` of `words.UNITS`."""
    flavor = FLAVORS[name]
    return flavor if units == WORDS else flavor._replace(words=partial(units_of, units=units, joins=False))


def vocabulary(flavor: Flavor, *, stemmed: bool) -> Vocabulary:
    """Returns an empty vocabulary, in which words with the same lowercase form, or the same stem, are equal."""
    stem = flavor.stem if stemmed else None
    return Vocabulary(str.lower if stem is None else lambda word: stem(word.lower()))


def encode(sentences: Sequence[str], words: Vocabulary, flavor: Flavor) -> list[list[int]]:
    """Returns the numbers of each sentence's words, and adds new words to the vocabulary.

    >>> flavor = FLAVORS["rouge-1.5.5"]
    >>> encode(["A well-known café", "The café is known."], vocabulary(flavor, stemmed=False), flavor)
    [[0, 1, 2, 3], [4, 3, 5, 2]]
    """
    if flavor.lowercases_first:
        sentences = [sentence.lower() for sentence in sentences]
    return [[words[word] for word in flavor.words(sentence)] for sentence in sentences]


def truncate(sentences: Sequence[str], limit: int) -> list[str]:
    """Returns the sentences truncated to `limit` words in total; words are separated by spaces."""
    texts = []
    for sentence in sentences:
        written = _WRITTEN.findall(sentence)[:limit]
        texts.append(" ".join(written))
        limit -= len(written)
    return texts


def count_written(sentences: Sequence[str]) -> int:
    """Returns the number of words separated by spaces."""
    return sum(len(_WRITTEN.findall(sentence)) for sentence in sentences)
