"""Hashes of words and of runs of words in tokenized text, and the similarity of sets of them."""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int64, UInt64

from bertjax.data.rows.layout import positions_in_groups
from bertjax.data.text.normalization import CONTINUATION
from bertjax.data.text.tokenizers import EncoderTokenizer

_BASE = 0x9E3779B97F4A7C15  # of polynomials modulo 2**64; odd
_MIXERS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)  # of MurmurHash3's last step
_SPACES = "Ġ▁"  # in the names of tokens of spaces alone
_NUM_HASHES = 120
_MIN_RECALL = 0.99
_AT_ONCE = 1 << 11  # shingles whose products with all multipliers fit in the cache


class WordHasher:
    """Hashes the words of documents: a token that starts a word, and its continuations.

    A word has the same hash however it is split into tokens, and with or without a space in its first token.
    """

    def __init__(self, tokenizer: EncoderTokenizer) -> None:
        """Hashes the tokens of a vocabulary."""
        self._starts_word = ~tokenizer.is_continuation
        names = zip(tokenizer.names(range(tokenizer.vocab_size)), tokenizer.is_continuation, strict=True)
        texts = [
            (name[len(CONTINUATION) :] if continues else name).lstrip(_SPACES).encode() for name, continues in names
        ]
        self._lengths = np.array([len(text) for text in texts], np.int64)
        content = np.frombuffer(b"".join(texts), np.uint8).astype(np.uint64) + np.uint64(1)
        self._hashes = _polynomials(content, positions_in_groups(self._lengths), self._lengths)

    def words(self, documents: Sequence[Int[np.ndarray, " _"]]) -> list[UInt64[np.ndarray, " _"]]:
        """Returns the hashes of the words of each document, which has tokens."""
        tokens = np.concatenate(documents)
        sizes = np.array([len(document) for document in documents])
        is_first = self._starts_word[tokens]
        is_first[np.cumsum(sizes) - sizes] = True
        first = np.flatnonzero(is_first)
        tokens_per_word = np.diff(first, append=len(tokens))
        before = np.cumsum(self._lengths[tokens]) - self._lengths[tokens]
        offsets = before - np.repeat(before[first], tokens_per_word)
        words = _mix(_polynomials(self._hashes[tokens], offsets, tokens_per_word))
        return np.split(words, np.searchsorted(first, np.cumsum(sizes)[:-1]))


def sentence_hashes(tokens: Int[np.ndarray, " t"], lengths: Int[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Returns the hashes of consecutive sentences of a document, which have `lengths` tokens."""
    values = _mix(tokens.astype(np.uint64) + np.uint64(1))
    return _mix(_polynomials(values, positions_in_groups(lengths.astype(np.int64)), lengths))


def shingles(words: UInt64[np.ndarray, " w"], size: int) -> UInt64[np.ndarray, " s"]:
    """Returns the set of hashes of all runs of `size` words, in order; of fewer words, that of the whole document."""
    return distinct(run_hashes(words, size))


def run_hashes(words: UInt64[np.ndarray, " w"], size: int) -> UInt64[np.ndarray, " s"]:
    """Returns the hashes of all runs of `size` words; of fewer words, that of the whole document."""
    count = max(len(words) - size + 1, 1)
    hashes = np.zeros(count, np.uint64)
    for offset in range(min(size, len(words))):
        hashes *= np.uint64(_BASE)
        hashes += words[offset : offset + count]
    return _mix(hashes)


def combined(hashes: UInt64[np.ndarray, " n"], numbers: Sequence[int]) -> UInt64[np.ndarray, " n"]:
    """Returns hashes of hashes with numbers."""
    for number in numbers:
        hashes = _mix(hashes + np.uint64(number + 1))
    return hashes


def distinct(hashes: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " m"]:
    """Equal to `np.unique`, which is slower."""
    ordered = np.sort(hashes)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def jaccard(one: UInt64[np.ndarray, " n"], two: UInt64[np.ndarray, " m"]) -> float:
    """Returns the number of common elements of two sorted sets, divided by the size of their union."""
    few, many = sorted((one, two), key=len)
    places = np.minimum(np.searchsorted(many, few), len(many) - 1)
    common = int((many[places] == few).sum())
    return common / (len(one) + len(two) - common)


def rows_per_band(similarity: float) -> int:
    """Returns the most hashes per band with which two sets of this similarity share a band with probability 0.99."""
    return max(rows for rows in range(1, 13) if recall(similarity, rows) >= _MIN_RECALL)


def num_bands(similarity: float) -> int:
    """Returns the number of bands of `rows_per_band` hashes."""
    return _NUM_HASHES // rows_per_band(similarity)


def recall(similarity: float, rows: int) -> float:
    """Returns the probability that sets of a Jaccard similarity share a band of `rows` hashes."""
    return float(1 - (1 - similarity**rows) ** (_NUM_HASHES // rows))


def bands(elements: UInt64[np.ndarray, " n"], rows: int) -> UInt64[np.ndarray, " b"]:
    """Returns the bands of the MinHash signature of a set: hashes of `rows` minima each (Broder 1997)."""
    short = (elements >> np.uint64(32)).astype(np.uint32)
    parts = range(0, len(short), _AT_ONCE)
    minima = np.min([(short[i : i + _AT_ONCE, None] * _multipliers()).min(axis=0) for i in parts], axis=0)
    signature = minima[: _NUM_HASHES // rows * rows].reshape(-1, rows).astype(np.uint64)
    return _mix(
        _polynomials(_mix(signature.ravel()), np.tile(np.arange(rows), len(signature)), np.full(len(signature), rows))
    )


@functools.cache
def _multipliers() -> np.ndarray:
    """Odd numbers: each permutes the integers modulo 2**32."""
    return (_mix(np.arange(_NUM_HASHES, dtype=np.uint64) + np.uint64(1)) >> np.uint64(32)).astype(
        np.uint32
    ) | np.uint32(1)


def _polynomials(
    values: UInt64[np.ndarray, " n"], exponents: Int64[np.ndarray, " n"], sizes: Int[np.ndarray, " m"]
) -> UInt64[np.ndarray, " m"]:
    """Returns the sums of `values * _BASE**exponents` of consecutive groups, modulo 2**64."""
    powers = np.full(exponents.max(initial=0) + 1, _BASE, np.uint64)
    powers[0] = 1
    terms = np.append(values * np.cumprod(powers)[exponents], np.uint64(0))
    sums = np.add.reduceat(terms, np.cumsum(sizes) - sizes)
    sums[sizes == 0] = 0
    return sums


def _mix(hashes: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    for mixer in _MIXERS:
        hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(mixer)
    return hashes ^ (hashes >> np.uint64(33))
