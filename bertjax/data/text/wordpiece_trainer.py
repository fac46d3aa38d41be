"""Makes a WordPiece vocabulary from word counts, the same bytes on every run and machine.

Byte-pair merges over words, as in Hugging Face's `WordPieceTrainer`, whose results differ from run to run
because ties between equally frequent pairs follow hash order. Here every tie has a rule.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from bertjax.data.text.bpe_trainer import Merges
from bertjax.data.text.tokenizers import normalize
from bertjax.data.text.vocabularies import CONTINUATION, GOOGLE_WORD_CHARS, SPECIALS
from bertjax.errors import UserError

ALPHABET_LIMIT = 1000  # characters
MIN_VOCAB_SIZE = 2 * len(SPECIALS)


def count_words(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    """How often each word, as the tokenizer splits them, occurs in the texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalize(text, lowercase).split())
    return counts


def train(counts: Mapping[str, int], vocab_size: int, characters: Mapping[str, int] | None = None) -> list[str]:
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
      characters: occurrences of each character, those of words that are too rare to be in `counts` included; None if
        there are no other words. A character of such words alone gets both forms.
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
    alphabet = _alphabet(counts, vocab_size - len(SPECIALS), characters or {})
    vocab = dict.fromkeys((*SPECIALS, *alphabet))  # a dict as an ordered set
    merges = Merges(_split_words(counts, alphabet), _join)
    while len(vocab) < vocab_size and (merge := merges.next()):
        vocab[merge[1]] = None
    return list(vocab)


def _alphabet(counts: Mapping[str, int], room: int, characters: Mapping[str, int]) -> list[str]:
    """The most frequent characters in both forms: as many as have room; plain ones first, by code point."""
    frequency: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in counts.items():
        for char in word:
            frequency[char] += count
        inside.update(word[1:])
    inside.update(characters.keys() - frequency.keys())
    frequency.update({char: count - frequency[char] for char, count in characters.items()})
    chars: list[str] = []
    for char in sorted(frequency, key=lambda char: (-frequency[char], char))[:ALPHABET_LIMIT]:
        room -= 2 if char in inside else 1
        if room < 0:
            break
        chars.append(char)
    chars.sort()
    return chars + [CONTINUATION + char for char in chars if char in inside]


def _split_words(counts: Mapping[str, int], alphabet: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """The pieces of the words that have no unknown ones."""
    pieces = {piece: piece for piece in alphabet}  # one string object for each, however many words hold it
    for word, count in counts.items():
        split = [pieces.get(word[0]), *(pieces.get(CONTINUATION + char) for char in word[1:])]
        known = [piece for piece in split if piece is not None]
        if len(known) == len(split) <= GOOGLE_WORD_CHARS:
            yield known, count


def _join(left: str, right: str) -> str:
    return left + right.removeprefix(CONTINUATION)
