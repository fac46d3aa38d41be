"""Makes a WordPiece vocabulary from word counts, the same bytes on every run and machine.

Byte-pair merges over words, as in Hugging Face's `WordPieceTrainer`, whose results differ from run to run
because ties between equally frequent pairs follow hash order. Here every tie has a rule.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from bertjax.data.tokenizers import CONTINUATION, MAX_WORD_CHARS, SPECIALS, normalize
from bertjax.errors import UserError

ALPHABET_LIMIT = 1000  # characters
MIN_PAIR_COUNT = 2
MIN_VOCAB_SIZE = 2 * len(SPECIALS)

Pair = tuple[str, str]


def count_words(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    """How often each word, as the tokenizer splits them, occurs in the texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalize(text, lowercase).split())
    return counts


def train(counts: Mapping[str, int], vocab_size: int) -> list[str]:
    """A vocabulary of at most `vocab_size` tokens, in the order of their ids.

    First the special tokens, then the most frequent characters (a thousand at most, or what fits), each with
    its "##" form if it occurs inside a word, then merges: while there is room, the most frequent pair of
    neighboring pieces becomes a piece. Ties between characters go by code point, between pairs by their two
    pieces in code-point order. Pairs seen once are not merged, so a small corpus gives fewer tokens than
    asked. Words with a character outside the alphabet, or over 200 characters, are [UNK] when encoded and
    so take no part in the merges.

    Args:
      counts: occurrences of each word, as `count_words` gives them; their order has no influence. About a kilobyte
        of memory is used for each (see `word_counts.MAX_WORDS`).
      vocab_size: the most tokens wanted.
    Raises:
      UserError: no words, or a `vocab_size` below 10.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise UserError(
            "vocabulary size",
            got=vocab_size,
            expected=f"at least {MIN_VOCAB_SIZE}",
            fix="ask for more tokens",
        )
    if not counts:
        raise UserError("training a vocabulary", got="no words", expected="text", fix="check the source files")
    alphabet = _alphabet(counts, vocab_size - len(SPECIALS))
    vocab = dict.fromkeys((*SPECIALS, *alphabet))  # a dict as an ordered set
    merges = _Merges(counts, alphabet)
    while len(vocab) < vocab_size and (piece := merges.next()):
        vocab[piece] = None
    return list(vocab)


def _alphabet(counts: Mapping[str, int], room: int) -> list[str]:
    """The most frequent characters in both forms: as many as have room; plain ones first, by code point."""
    frequency: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in counts.items():
        for char in word:
            frequency[char] += count
        inside.update(word[1:])
    chars: list[str] = []
    for char in sorted(frequency, key=lambda char: (-frequency[char], char))[:ALPHABET_LIMIT]:
        room -= 2 if char in inside else 1
        if room < 0:
            break
        chars.append(char)
    chars.sort()
    return chars + [CONTINUATION + char for char in chars if char in inside]


class _Merges:
    """Words as lists of pieces, with the count of every pair of neighbors kept up to date.

    The heap is lazy: an entry may hold a count that has fallen since, and is then put back with the present
    one. A count that rises gets a new entry at once. `places` may list words that have lost the pair, or list
    one twice.
    """

    def __init__(self, counts: Mapping[str, int], alphabet: Iterable[str]) -> None:
        pieces = {piece: piece for piece in alphabet}  # one string object for each, however many words hold it
        self._words: list[list[str]] = []
        self._word_counts: list[int] = []
        self._pair_counts: defaultdict[Pair, int] = defaultdict(int)
        self._places: defaultdict[Pair, list[int]] = defaultdict(list)
        for word, count in counts.items():
            split = [pieces.get(word[0]), *(pieces.get(CONTINUATION + char) for char in word[1:])]
            known = [piece for piece in split if piece is not None]
            if len(known) == len(split) and 1 < len(split) <= MAX_WORD_CHARS:
                self._add(known, count)
        self._heap = [(-count, pair) for pair, count in self._pair_counts.items() if count >= MIN_PAIR_COUNT]
        heapq.heapify(self._heap)

    def next(self) -> str | None:
        """Merges the most frequent pair everywhere and returns the piece; None when no pair is left."""
        while self._heap:
            negative, pair = heapq.heappop(self._heap)
            count = self._pair_counts.get(pair, 0)
            if count == -negative:
                return self._merge(pair)
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
        piece = pair[0] + pair[1].removeprefix(CONTINUATION)
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
