"""Warns of texts that a vocabulary does not fit, with the likely cause."""

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from bertjax import words
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabularies import has_only_specials
from bertjax.data.text.wordpiece import WordPiece
from bertjax.progress import log_once

_SAMPLE = 1 << 16  # characters
_MOST_UNKNOWN = 0.005  # of the tokens
_MOST_TOKENS = 4  # per word
_MOST_JAMO = 0.1  # of the tokens
_FEW = 4  # tokens more than the limits, so that one odd word of a short text causes no warning
_JAMO = re.compile("[\u1100-\u11ff]")
_EXAMPLES = 5  # unknown characters in a message


class Sample:
    """The first texts of a command, to check whether a vocabulary fits them."""

    def __init__(self, tokenizer: EncoderTokenizer | None) -> None:
        """Initializes an empty sample; without a tokenizer, `check` does nothing."""
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        self._room = _SAMPLE if tokenizer and not has_only_specials(tokenizer.vocab) else 0

    def add(self, texts: Iterable[str]) -> None:
        """Adds texts, and checks the sample once it is full. It reads no further texts then."""
        remaining = iter(texts)
        while self._room > 0 and (text := next(remaining, None)) is not None:
            self._texts.append(text[: self._room])
            self._room -= len(text)
            if self._room <= 0:
                self.check()

    def check(self) -> None:
        """Logs a warning if the vocabulary does not fit the sample, which is empty afterwards."""
        if self._tokenizer and self._texts and (message := misfit(self._tokenizer, self._texts)):
            log_once(message, logging.WARNING)
        self._texts = []


def misfit(tokenizer: EncoderTokenizer, texts: Sequence[str]) -> str:
    """Returns why a vocabulary does not fit texts and what to do; "" if it fits."""
    composed = list(map(words.composed, texts))
    ids = _encoded(tokenizer, texts)
    if composed != list(texts) and ids != _encoded(tokenizer, composed):
        return (
            "the texts are in decomposed Unicode (NFD, as macOS writes it), which this vocabulary encodes differently "
            "from composed text: convert them to NFC, which vocabularies trained with data.normalization=nfc do"
        )
    jamo = sum(bool(_JAMO.search(tokenizer.vocab[token])) for token in ids)
    if jamo > _MOST_JAMO * len(ids):
        return (
            f"{jamo / len(ids):.0%} of the tokens are conjoining Jamo, because the vocabulary has BERT's uncased "
            "normalization: train one with data.normalization=nfc, or use that of a Korean model"
        )
    num_words = sum(len(words.split(text)) for text in texts)
    problem = _problem(tokenizer, ids, num_words)
    if not problem:
        return ""
    first = f"{problem} in the first {num_words:,} words"
    if isinstance(tokenizer, WordPiece) and tokenizer.chain.strip_accents:
        accented = tokenizer.with_strip_accents(False)
        if 2 * _encoded(accented, texts).count(tokenizer.unk_id) < ids.count(tokenizer.unk_id):
            return f"{first}, but fewer with accents, which the vocabulary has: set data.strip_accents=False"
    unknown = Counter(itertools.chain.from_iterable(map(tokenizer.unknown, texts)))
    some = f" ({', '.join(repr(text) for text, _ in unknown.most_common(_EXAMPLES))})" if unknown else ""
    return (
        f"{first}{some}: is it the vocabulary of these texts? Use one of their language; to train one, raise "
        "data.character_coverage or data.vocab_size, or set data.tokenizer=byte_bpe, which has no unknown tokens"
    )


def _encoded(tokenizer: EncoderTokenizer, texts: Sequence[str]) -> list[int]:
    return list(itertools.chain.from_iterable(map(tokenizer.encode_with_masks, texts)))


def _problem(tokenizer: EncoderTokenizer, ids: Sequence[int], num_words: int) -> str:
    """Returns which limit the tokens of some words exceed; "" for none."""
    unknown = ids.count(tokenizer.unk_id)
    if unknown > max(1, _MOST_UNKNOWN * len(ids)):
        return f"{unknown / len(ids):.1%} of the tokens are unknown"
    if num_words and len(ids) > _MOST_TOKENS * num_words + _FEW:  # spaces have tokens in byte-level vocabularies
        return f"{len(ids) / num_words:.1f} tokens per word"
    return ""
