"""Makes byte-pair merges from word counts, the same bytes on every run and machine (Sennrich et al. 2016).

The merges of the libraries differ from run to run because ties between equally frequent pairs follow hash order, or
between machines because words are shared out to threads. Here every tie has a rule.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bertjax.errors import UserError

MIN_PAIR_COUNT = 2
# A longer word takes no part in the merges, each of which goes through all of it.
MAX_WORD_CHARS = 200

Pair = tuple[str, str]


class Bpe(NamedTuple):
    """A vocabulary with the merges that make its pieces."""

    vocab: list[str]  # in the order of the ids
    merges: list[Pair]  # in the order in which they are applied


def train(
    counts: Mapping[str, int],
    characters: Mapping[str, int],
    vocab_size: int,
    specials: Sequence[str],
    coverage: float,
) -> Bpe:
    """A vocabulary of at most `vocab_size` tokens.

    First the special tokens, then the characters by code point, then merges: while there is room, the most frequent
    pair of neighboring pieces becomes a piece. Ties between pairs go by their two pieces in code-point order. Pairs
    seen once are not merged, so a small corpus gives fewer tokens than asked. A piece that two pairs make is one
    token. Characters outside the alphabet part the word that they are in.

    Args:
      counts: occurrences of each word; their order has no influence. About a kilobyte of memory is used for each
        (see `word_counts.MAX_WORDS`).
      characters: occurrences of each character, those of words that are not in `counts` too.
      vocab_size: the most tokens wanted.
      specials: the first tokens.
      coverage: the fraction of the text's characters that the alphabet has, see `alphabet`.
    Raises:
      UserError: no words, or a `vocab_size` without room for the characters.
    """
    chars = alphabet(characters, coverage)
    if len(specials) + len(chars) > vocab_size:
        raise UserError(
            "vocabulary size",
            got=vocab_size,
            expected=f"at least {len(specials) + len(chars)}: {len(specials)} special tokens and the {len(chars)} "
            f"characters that make up {coverage:.4%} of the text",
            fix="ask for more tokens, or cover fewer characters (config.data.character_coverage)",
        )
    vocab = dict.fromkeys((*specials, *chars))  # a dict as an ordered set
    applied: list[Pair] = []
    merges = Merges(_known_runs(counts, chars), str.__add__)
    while len(vocab) < vocab_size and (merge := merges.next()):
        applied.append(merge[0])
        vocab[merge[1]] = None
    return Bpe(list(vocab), applied)


def alphabet(frequency: Mapping[str, int], coverage: float) -> list[str]:
    """The most frequent characters that together make up `coverage` of the text, by code point.

    Of equally frequent ones those of lower code points count as more frequent. What SentencePiece calls
    character_coverage.

    Args:
      frequency: occurrences of each character.
      coverage: above 0; 1.0 for all characters.
    Raises:
      UserError: no characters.

    >>> alphabet({"a": 6, "z": 3, "b": 1}, 0.8)
    ['a', 'z']
    """
    if not frequency:
        raise UserError("training a vocabulary", got="no words", expected="text", fix="check the source files")
    ranked = sorted(frequency.items(), key=lambda item: (-item[1], item[0]))
    before = itertools.accumulate((count for _, count in ranked), initial=0)
    wanted = coverage * sum(frequency.values())
    return sorted(char for (char, _), covered in zip(ranked, before, strict=False) if covered < wanted)


def _known_runs(counts: Mapping[str, int], chars: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """The words as characters, parted where one is not in the alphabet."""
    pieces = {char: char for char in chars}  # one string object for each, however many words hold it
    for word, count in counts.items():
        if len(word) <= MAX_WORD_CHARS:
            for known, run in itertools.groupby(map(pieces.get, word), key=bool):
                if known:
                    yield [piece for piece in run if piece], count


class Merges:
    """Words as lists of pieces, with the count of every pair of neighbors kept up to date.

    The heap is lazy: an entry may hold a count that has fallen since, and is then put back with the present
    one. A count that rises gets a new entry at once. `places` may list words that have lost the pair, or list
    one twice.
    """

    def __init__(self, words: Iterable[tuple[list[str], int]], join: Callable[[str, str], str]) -> None:
        """Args: the pieces of each word, with its count; what makes one piece of two."""
        self._join = join
        self._words: list[list[str]] = []
        self._word_counts: list[int] = []
        self._pair_counts: defaultdict[Pair, int] = defaultdict(int)
        self._places: defaultdict[Pair, list[int]] = defaultdict(list)
        for word, count in words:
            if len(word) > 1:
                self._add(word, count)
        self._heap = [(-count, pair) for pair, count in self._pair_counts.items() if count >= MIN_PAIR_COUNT]
        heapq.heapify(self._heap)

    def next(self) -> tuple[Pair, str] | None:
        """Merges the most frequent pair everywhere and returns it with its piece; None when no pair is left."""
        while self._heap:
            negative, pair = heapq.heappop(self._heap)
            count = self._pair_counts.get(pair, 0)
            if count == -negative:
                return pair, self._merge(pair)
            if MIN_PAIR_COUNT <= count < -negative:
                heapq.heappush(self._heap, (-count, pair))
        return None

    def _add(self, word: list[str], count: int) -> None:
        place = len(self._words)
        self._words.append(word)
        self._word_counts.append(count)
        for pair in pairwise(word):
            self._pair_counts[pair] += count
            self._places[pair].append(place)

    def _merge(self, pair: Pair) -> str:
        piece = self._join(*pair)
        risen: set[Pair] = set()
        for place in self._places.pop(pair):
            risen.update(self._merge_in_word(place, pair, piece))
        del self._pair_counts[pair]
        for new in risen:
            if self._pair_counts[new] >= MIN_PAIR_COUNT:
                heapq.heappush(self._heap, (-self._pair_counts[new], new))
        return piece

    def _merge_in_word(self, place: int, pair: Pair, piece: str) -> list[Pair]:
        """Replaces the pair by the piece, from left to right; returns the pairs that came to be."""
        word, count = self._words[place], self._word_counts[place]
        left, right = pair
        pair_counts, made = self._pair_counts, []
        i = 0
        while i < len(word) - 1:
            if word[i] == left and word[i + 1] == right:
                if i > 0:
                    pair_counts[word[i - 1], left] -= count
                    made.append((word[i - 1], piece))
                if i + 2 < len(word):
                    pair_counts[right, word[i + 2]] -= count
                    made.append((piece, word[i + 2]))
                word[i : i + 2] = [piece]
            i += 1
        for new in made:
            pair_counts[new] += count
            self._places[new].append(place)
        return made
