"""Trains a WordPiece vocabulary from word counts; the result is the same on every run and machine.

The algorithm is byte-pair merging over words, as in Hugging Face's `WordPieceTrainer`. That trainer's results differ
from run to run, because it orders equally frequent pairs by hash. Here every tie has a rule.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from bertjax.data.text import bpe_trainer
from bertjax.data.text.bpe_trainer import Merges
from bertjax.data.text.normalization import CONTINUATION, Chain, morphemes, normalize
from bertjax.data.text.vocabularies import GOOGLE_WORD_CHARS, SPECIALS
from bertjax.errors import UserError

ALPHABET_LIMIT = 1000  # characters
MIN_VOCAB_SIZE = 2 * len(SPECIALS)


def count_words(texts: Iterable[str], chain: Chain) -> Counter[str]:
    """Returns the number of occurrences of each word, as the tokenizer splits words."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalize(text, chain).split())
    return morpheme_counts(counts) if chain.morphemes else counts


def morpheme_counts(words: Mapping[str, int]) -> Counter[str]:
    """Returns the occurrences of each morpheme of words, those that continue a word with "##" before them."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for morpheme in morphemes(word):
            counts[morpheme] += count
    return counts


def train(
    counts: Mapping[str, int], vocab_size: int, characters: Mapping[str, int] | None = None, coverage: float = 0.0
) -> list[str]:
    """Trains a vocabulary of at most `vocab_size` tokens. Returns them in the order of their ids.

    The vocabulary has the special tokens first, then the most frequent characters, each also with "##" if it occurs
    inside a word, then the merged pieces. The characters are a thousand, or as many as fit, and further ones up to
    `coverage` while all fit in half of the vocabulary. Each merge joins the most frequent pair of neighboring pieces.
    Ties between characters go by code point; ties between pairs go to the pair whose pieces are first in code-point
    order. Pairs that occur once are not merged, so a small corpus gives fewer tokens than requested. Words with a
    character outside the alphabet, or of more than 200 characters, are encoded as [UNK], so they are not used for
    merges.

    Args:
      counts: the occurrences of each word, from `count_words`, in any order; "##" before a word continues the last
        one. Each word takes about a kilobyte of
        memory (see `word_counts.MAX_WORDS`).
      vocab_size: the maximum number of tokens.
      characters: the occurrences of each character, including those of words too rare to be in `counts`; None if
        `counts` has all words. A character that occurs only in such rare words gets both forms.
      coverage: the fraction of the text that the characters cover, if a thousand do not.
    Raises:
      UserError: if there are no words, or `vocab_size` is below 10.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise UserError(
            "vocabulary size", got=vocab_size, expected=f"at least {MIN_VOCAB_SIZE}", fix="raise the vocabulary size"
        )
    if not counts:
        raise UserError("training a vocabulary", got="no words", expected="text", fix="check the source files")
    alphabet = _alphabet(counts, vocab_size - len(SPECIALS), characters or {}, coverage)
    vocab = dict.fromkeys((*SPECIALS, *alphabet))  # a dict as an ordered set
    merges = Merges(_split_words(counts, alphabet), _join)
    while len(vocab) < vocab_size and (merge := merges.next()):
        vocab[merge.piece] = None
    return list(vocab)


def _alphabet(counts: Mapping[str, int], room: int, characters: Mapping[str, int], coverage: float) -> list[str]:
    """Returns the most frequent characters that fit, by code point: first the plain forms, then the "##" forms."""
    frequency: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in counts.items():
        text = word.removeprefix(CONTINUATION)
        for char in text:
            frequency[char] += count
        inside.update(text if text != word else text[1:])
    inside.update(characters.keys() - frequency.keys())
    frequency.update({char: count - frequency[char] for char, count in characters.items()})
    covering = len(bpe_trainer.alphabet(frequency, coverage)) if coverage else 0
    half = room // 2
    chars: list[str] = []
    for char in sorted(frequency, key=lambda char: (-frequency[char], char))[: max(ALPHABET_LIMIT, covering)]:
        is_further = len(chars) >= ALPHABET_LIMIT
        if is_further and "\u1100" <= char <= "\u11ff":
            continue  # conjoining Jamo, which composed text has only where it is archaic or damaged
        room -= 2 if char in inside else 1
        if room < (half if is_further else 0):
            break
        chars.append(char)
    chars.sort()
    return chars + [CONTINUATION + char for char in chars if char in inside]


def _split_words(counts: Mapping[str, int], alphabet: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """Yields the pieces and the count of each word without unknown characters."""
    pieces = {piece: piece for piece in alphabet}  # all words share one string object per character
    for word, count in counts.items():
        text = word.removeprefix(CONTINUATION)
        first = CONTINUATION + text[0] if text != word else text[0]
        split = [pieces.get(first), *(pieces.get(CONTINUATION + char) for char in text[1:])]
        characters = [piece for piece in split if piece is not None]
        if len(characters) == len(split) <= GOOGLE_WORD_CHARS:
            yield characters, count


def _join(left: str, right: str) -> str:
    return left + right.removeprefix(CONTINUATION)
