"""Trains byte-level BPE from word counts; the result is the same on every run and machine."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bertjax.data.text import bpe_trainer, library_encoders
from bertjax.data.text.library_encoders import BYTE_CHARS
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.errors import UserError

MIN_VOCAB_SIZE = len(SPECIALS) + len(BYTE_CHARS)
_RUN = re.compile(r"\s\s")


def count_words(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    """Returns the number of occurrences of each word, as the tokenizer splits words.

    A word includes the space before it. Its characters stand for bytes.
    """
    # Each different string between spaces is split once, which takes a tenth of the time. Only a run of several
    # characters of white space depends on what surrounds it.
    chunks = Counter(itertools.chain.from_iterable(map(_chunks, texts)))
    normalize = library_encoders.byte_normalizer(lowercase).normalize_str
    split = library_encoders.byte_splitter().pre_tokenize_str
    counts: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in split(normalize(chunk)):
            counts[word] += count
    return counts


def train(counts: Mapping[str, int], vocab_size: int, lowercase: bool, more: Sequence[str] = ()) -> EncoderTokenizer:
    """Trains a tokenizer of at most `vocab_size` tokens: special tokens, the 256 bytes, and merged pieces.

    `bpe_trainer.train` has the rules for merges.

    Args:
      counts: the occurrences of each word, from `count_words`.
      vocab_size: the maximum number of tokens, at least `MIN_VOCAB_SIZE` and the number of `more`.
      lowercase: whether text is lowercased.
      more: additional special tokens.
    Raises:
      UserError: if `vocab_size` is too small.
    """
    special = (*SPECIALS, *more)
    if vocab_size < MIN_VOCAB_SIZE + len(more):
        expected = f"at least {MIN_VOCAB_SIZE + len(more)}, for {len(special)} special tokens and all bytes"
        raise UserError("config key data.vocab_size", got=vocab_size, expected=expected, fix="raise it")
    bpe = bpe_trainer.train(counts, dict.fromkeys(BYTE_CHARS, 1), vocab_size, special, coverage=1.0)
    return library_encoders.byte_level(bpe, lowercase, special)


def _chunks(text: str) -> Iterator[str]:
    return iter([text] if _RUN.search(text) else text.split(" "))
