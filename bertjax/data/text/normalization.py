"""The normalization of text for WordPiece, which splits it into words: the chain of BERT, and that of new vocabularies.

It is our own and uses the interpreter's Unicode tables, as in Google's code. The `tokenizers` library uses older tables
and another order of steps, so rare text gives different results there (newer scripts, part of CJK extension E, with
BERT's chain a Greek final sigma). It also drops characters of private use, as transformers does; Google's code keeps
them, so that their words are [UNK]. On English this is also faster than the library's own normalizer.
"""

import functools
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int64
from tokenizers import normalizers

from bertjax import korean
from bertjax.words import composed

CONTINUATION = "##"  # the start of a piece that continues a word

K = TypeVar("K")
V = TypeVar("V")

# The blocks that Google's code calls Chinese. Hangul, kana and later extensions are not included.
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class Chain(NamedTuple):
    """The normalization of text before it is split into words.

    Attributes:
      lowercase: whether text is lowercased.
      strip_accents: whether text is decomposed and its combining marks are dropped.
      nfc: whether the result is composed, so that Hangul has syllables again. BERT's chain leaves it decomposed.
      morphemes: the analyzer and its version that split Korean words, such as "kiwipiepy 0.24.1"; "" for none.
    """

    lowercase: bool
    strip_accents: bool
    nfc: bool = False
    morphemes: str = ""

    @classmethod
    def of(
        cls, lowercase: bool, strip_accents: bool | None = None, *, nfc: bool = False, morphemes: str = ""
    ) -> "Chain":
        """Returns the chain of these settings. As in transformers, accents by default follow the casing."""
        return cls(lowercase, lowercase if strip_accents is None else strip_accents, nfc, morphemes)

    @property
    def unlike_bert(self) -> list[Any]:
        """What differs from BERT's chain of this casing, for digests, which are otherwise those of earlier versions."""
        steps = self if self.morphemes else self[:-1]
        return [] if self == Chain.of(self.lowercase) else [list(steps)]

    @property
    def of_library(self) -> normalizers.Normalizer:
        """The chain as the library implements it; equal to ours except on rare text."""
        strip_accents = None if self.strip_accents == self.lowercase else self.strip_accents
        bert = normalizers.BertNormalizer(lowercase=self.lowercase, strip_accents=strip_accents)
        return normalizers.Sequence([bert, normalizers.NFC()]) if self.nfc else bert


def between_spaces(text: str, chain: Chain) -> list[str]:
    """Returns the words between spaces, lower-cased and composed by the chain. Punctuation and accents are kept."""
    text = text.lower() if chain.lowercase else text
    return (composed(text) if chain.nfc else text).split()


def normalize(text: str, chain: Chain) -> str:
    """Returns text as words separated by spaces; with BERT's chain, like `BasicTokenizer` of google-research/bert.

    >>> normalize("Où est-ce?\\t東京", Chain.of(lowercase=True)).split()
    ['ou', 'est', '-', 'ce', '?', '東', '京']
    """
    text = text.translate(_CLEAN)
    if chain.lowercase:
        # The library, which reads exported folders, knows no final sigma.
        text = (text.replace("Σ", "σ") if chain.nfc else text).lower()
    if chain.strip_accents and not text.isascii():
        text = unicodedata.normalize("NFD", text).translate(_STRIP)
    return separate_punctuation(composed(text) if chain.nfc else text)


@functools.lru_cache(1 << 16)
def morphemes(word: str) -> tuple[str, ...]:
    """Returns the morphemes of a word. Those that continue it begin with "##", which no normalized word does.

    They depend on the word alone, so that it has the same pieces in every text.
    """
    first, *others = korean.split_morphemes(word)
    return first, *(CONTINUATION + other for other in others)


def separate_punctuation(text: str) -> str:
    """Returns text with spaces around each punctuation mark and no other change.

    >>> separate_punctuation("A bird's-eye view").split()
    ['A', 'bird', "'", 's', '-', 'eye', 'view']
    """
    return text.translate(_SEPARATE)


def sources(
    text: str, chain: Chain, length: int
) -> tuple[Int64[np.ndarray, " visible"], Int64[np.ndarray, " visible"]]:
    """Maps each character of the normalized words to its source.

    The neighbors of a character decide which sigma it becomes and the order of its marks. The number of characters that
    it becomes does not depend on them, unless characters compose. So counting the characters that each gives alone is
    exact if the sum is the length of the words; otherwise, characters that compose are one source.

    Args:
      text: the text.
      chain: its normalization.
      length: the number of characters of its normalized words.
    Returns:
      for each character of the words, the start and the end of its source in `text`, with the combining marks that are
      dropped directly after it.
    """
    counts = np.fromiter(map(_WIDTHS[chain].__getitem__, text), np.int64, len(text))
    reach = np.arange(1, len(text) + 1)
    for index in np.flatnonzero(counts[1:] == 0)[::-1].tolist():
        if unicodedata.category(text[index + 1]) == "Mn":
            reach[index] = reach[index + 1]
    firsts = lasts = np.arange(len(text))
    if counts.sum() != length:
        groups = _composing(text, chain, np.flatnonzero(counts).tolist())
        firsts, lasts = np.array(groups).T
        counts = np.array([len(_visible(text[first : last + 1], chain)) for first, last in groups])
    return np.repeat(firsts, counts), np.repeat(reach[lasts], counts)


def _composing(text: str, chain: Chain, indices: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first and last index of each group of characters that normalization composes or reorders.

    A mark composes with a letter over other marks between them, which are then of the same group.
    """
    groups: list[tuple[int, int]] = []
    letter = 0  # the group with the last character that is no mark
    for index in indices:
        first, last = (groups[letter][0], groups[-1][1]) if groups else (index, index)
        apart = _visible(text[first : last + 1], chain) + _visible(text[index], chain)
        if groups and _visible(text[first : index + 1], chain) != apart:
            groups[letter:] = [(first, index)]
        else:
            groups.append((index, index))
            letter = letter if unicodedata.combining(text[index]) else len(groups) - 1
    return groups


def _visible(text: str, chain: Chain) -> str:
    """Returns the normalized words without the spaces between them."""
    return normalize(text, chain).replace(" ", "")


def _clean(char: str) -> str | None:
    """Maps whitespace to a space, drops control characters (Cc, Cf), and puts spaces around Chinese characters."""
    category = unicodedata.category(char)
    if char in "\t\n\r" or (char.isspace() and category != "Cc"):
        return " "
    if char == "\ufffd" or category in ("Cc", "Cf"):
        return None
    if category == "Cs":  # the library rejects half of a surrogate pair; U+FFFD is [UNK] as well
        return "\ufffd"
    if any(low <= ord(char) <= high for low, high in _CHINESE):
        return f" {char} "
    return char


def _separate(char: str) -> str:
    """Puts spaces around punctuation: Unicode's, and every ASCII symbol."""
    if char in string.punctuation or unicodedata.category(char).startswith("P"):
        return f" {char} "
    return char


def _strip(char: str) -> str | None:
    """Drops combining marks."""
    return None if unicodedata.category(char) == "Mn" else char


class Memo(dict[K, V]):
    """The results of a rule by its argument, computed on first use."""

    def __init__(self, rule: Callable[[K], V]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, key: K) -> V:
        self[key] = self._rule(key)
        return self[key]


def _widths(chain: Chain) -> Memo[str, int]:
    """Returns the number of characters that each character becomes in normalized words."""
    return Memo(lambda char: len(_visible(char, chain)))


def _table(rule: Callable[[str], str | None]) -> Memo[int, str | None]:
    """Returns a table for `str.translate` that applies a rule to each character."""
    return Memo(lambda code_point: rule(chr(code_point)))


_CLEAN = _table(_clean)
_SEPARATE = _table(_separate)
_STRIP = _table(_strip)
_WIDTHS = Memo(_widths)
