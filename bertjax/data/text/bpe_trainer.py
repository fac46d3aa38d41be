"""Trains byte-pair merges from word counts; the result is the same on every run and machine (Sennrich et al. 2016).

The libraries' merges differ from run to run, because they order equally frequent pairs by hash, or between machines,
because they distribute words over threads. Here every tie has a rule.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bertjax.errors import UserError

MIN_PAIR_COUNT = 2
# Longer words are not used for merges, because each merge scans every word that contains its pair.
MAX_WORD_CHARS = 200

Pair = tuple[str, str]


class Merge(NamedTuple):
    """A pair of neighboring pieces, the piece that it becomes, and its occurrences."""

    pair: Pair
    piece: str
    occurrences: int


class Bpe(NamedTuple):
    """A vocabulary and the merges that create its pieces."""

    vocab: list[str]  # in the order of the ids
    merges: list[Pair]  # in the order of application


def train(
    counts: Mapping[str, int], characters: Mapping[str, int], vocab_size: int, specials: Sequence[str], coverage: float
) -> Bpe:
    """Trains a vocabulary of at most `vocab_size` tokens.

    The vocabulary has the special tokens first, then the characters by code point, then the merged pieces. Each merge
    joins the most frequent pair of neighboring pieces. Ties go to the pair whose pieces are first in code-point
    order. Pairs that occur once are not merged, so a small corpus gives fewer tokens than requested. A piece that two
    pairs produce is one token. A character outside the alphabet splits its word.

    Args:
      counts: the occurrences of each word, in any order. Each word takes about a kilobyte of memory (see
        `word_counts.MAX_WORDS`).
      characters: the occurrences of each character, including those of words that are not in `counts`.
      vocab_size: the maximum number of tokens.
      specials: the first tokens.
      coverage: the fraction of the text's characters that the alphabet covers; see `alphabet`.
    Raises:
      UserError: if there are no words, or `vocab_size` has no room for the characters.
    """
    chars = alphabet(characters, coverage)
    if len(specials) + len(chars) > vocab_size:
        raise UserError(
            "vocabulary size",
            got=vocab_size,
            expected=f"at least {len(specials) + len(chars)}: {len(specials)} special tokens and the {len(chars)} "
            f"characters that cover {coverage:.4%} of the text",
            fix="raise the vocabulary size, or lower config.data.character_coverage",
        )
    vocab = dict.fromkeys((*specials, *chars))  # a dict as an ordered set
    applied: list[Pair] = []
    merges = Merges(_known_runs(counts, chars), str.__add__)
    while len(vocab) < vocab_size and (merge := merges.next()):
        applied.append(merge.pair)
        vocab[merge.piece] = None
    return Bpe(list(vocab), applied)


def alphabet(frequency: Mapping[str, int], coverage: float) -> list[str]:
    """Returns the most frequent characters that together cover `coverage` of the text, by code point.

    Of equally frequent characters, the one with the lower code point comes first. SentencePiece calls this fraction
    character_coverage.

    Args:
      frequency: the occurrences of each character.
      coverage: above 0; 1.0 for all characters.
    Raises:
      UserError: if there are no characters.

    >>> alphabet({"a": 6, "z": 3, "b": 1}, 0.8)
    ['a', 'z']
    """
    if not frequency:
        raise UserError("training a vocabulary", got="no words", expected="text", fix="check the source files")
    ranked = sorted(frequency.items(), key=lambda item: (-item[1], item[0]))
    before = itertools.accumulate((count for _, count in ranked), initial=0)
    needed = coverage * sum(frequency.values())
    return sorted(char for (char, _), covered in zip(ranked, before, strict=False) if covered < needed)


def _known_runs(counts: Mapping[str, int], chars: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """Yields the words as characters, split at characters outside the alphabet."""
    pieces = {char: char for char in chars}  # all words share one string object per character
    for word, count in counts.items():
        if len(word) <= MAX_WORD_CHARS:
            for in_alphabet, run in itertools.groupby(map(pieces.get, word), key=bool):
                if in_alphabet:
                    yield [piece for piece in run if piece], count


class Merges:
    """Words as lists of pieces, with the current count of every pair of neighboring pieces.

    The heap is lazy. An entry whose count has fallen is pushed back with the current count when it is popped. A count
    that rises gets a new entry at once. `_words_with` may list words that no longer contain the pair, or list a word
    twice.
    """

    def __init__(self, words: Iterable[tuple[list[str], int]], join: Callable[[str, str], str]) -> None:
        """Counts the pairs.

        Args:
          words: the pieces of each word, and its count.
          join: returns the piece that a pair becomes.
        """
        self._join = join
        self._words: list[list[str]] = []
        self._word_counts: list[int] = []
        self._pair_counts: defaultdict[Pair, int] = defaultdict(int)
        self._words_with: defaultdict[Pair, list[int]] = defaultdict(list)
        for word, count in words:
            if len(word) > 1:
                self._add(word, count)
        self._heap = [(-count, pair) for pair, count in self._pair_counts.items() if count >= MIN_PAIR_COUNT]
        heapq.heapify(self._heap)

    def next(self) -> Merge | None:
        """Merges the most frequent pair in all words. Returns None if no pair is left."""
        while self._heap:
            negative, pair = heapq.heappop(self._heap)
            count = self._pair_counts.get(pair, 0)
            if count == -negative:
                return Merge(pair, self._merge(pair), count)
            if MIN_PAIR_COUNT <= count < -negative:
                heapq.heappush(self._heap, (-count, pair))
        return None

    def _add(self, word: list[str], count: int) -> None:
        number = len(self._words)
        self._words.append(word)
        self._word_counts.append(count)
        for pair in pairwise(word):
            self._pair_counts[pair] += count
            self._words_with[pair].append(number)

    def _merge(self, pair: Pair) -> str:
        piece = self._join(*pair)
        risen: set[Pair] = set()
        for number in self._words_with.pop(pair):
            risen.update(self._merge_in_word(number, pair, piece))
        del self._pair_counts[pair]
        for new in risen:
            if self._pair_counts[new] >= MIN_PAIR_COUNT:
                heapq.heappush(self._heap, (-self._pair_counts[new], new))
        return piece

    def _merge_in_word(self, number: int, pair: Pair, piece: str) -> list[Pair]:
        """Replaces the pair by the piece, from left to right. Returns the pairs that this creates."""
        word = self._words[number]
        count = self._word_counts[number]
        left, right = pair
        pair_counts = self._pair_counts
        new_pairs = []
        i = 0
        while i < len(word) - 1:
            if word[i] == left and word[i + 1] == right:
                if i > 0:
                    pair_counts[word[i - 1], left] -= count
                    new_pairs.append((word[i - 1], piece))
                if i + 2 < len(word):
                    pair_counts[right, word[i + 2]] -= count
                    new_pairs.append((piece, word[i + 2]))
                word[i : i + 2] = [piece]
            i += 1
        for new in new_pairs:
            pair_counts[new] += count
            self._words_with[new].append(number)
        return new_pairs
