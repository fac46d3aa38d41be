"""Learns the words to add to a vocabulary: those that save the most tokens of a text."""

import functools
import heapq
import itertools
import json
import logging
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as Library
from tokenizers import models

from bertjax.data.text.bpe_trainer import Merges
from bertjax.data.text.library_encoders import LibraryEncoderTokenizer
from bertjax.data.text.normalization import CONTINUATION, Chain
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import BYTE_BPE, WORDPIECE, LearnedVocabularyConfig, load_named
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

LEAST_SAVED = 1e-4  # what each word saves at least, as a share of the tokens of the text
_LAST = "\U0010ffff"


def vocabulary_key(config: LearnedVocabularyConfig) -> str:
    """Returns what determines the vocabulary of a config.

    Raises:
      UserError: if the vocabulary cannot be opened, or words cannot be added to it.
    """
    if not config.vocab_file:
        return " of ".join([f"{config.vocab_size} trained tokens", *map(str, config.unlike_bert)])
    key: str = load_named(config).key[0]
    if not config.add_words:
        return key
    splitting(config)
    return f"{key} and {config.add_words} words that save {LEAST_SAVED}"


def splitting(config: LearnedVocabularyConfig) -> tuple[Chain, str]:
    """Returns the normalization and the kind with which `count_words` splits the text that a vocabulary learns from.

    Raises:
      UserError: for words to add to a vocabulary that is neither WordPiece nor byte-level BPE.
    """
    if not config.vocab_file:
        return config.chain, config.tokenizer
    tokenizer = load_named(config)
    if isinstance(tokenizer, WordPiece):
        return tokenizer.chain, WORDPIECE
    steps = json.loads(tokenizer.content[0])
    if steps["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(steps["pre_tokenizer"]):
        got = f"{config.add_words}, and a vocabulary of type {steps['model']['type']}"
        expected = "0, because words are learned for WordPiece and byte-level BPE alone"
        raise UserError("config key data.add_words", got=got, expected=expected, fix="set --config.data.add_words=0")
    return Chain.of(tokenizer.lowercase), BYTE_BPE


def learn(tokenizer: EncoderTokenizer, counts: Mapping[str, int], most: int) -> EncoderTokenizer:
    """Returns a tokenizer with further words of a text, whose ids follow those of the others.

    Words are added one by one. Each is the one that saves the most tokens with the vocabulary so far, until the next
    saves less than `LEAST_SAVED`. Byte-level BPE gets further merges in the same way, so its words may be parts of
    words. A word that is unknown, or that would make another one unknown, is not added. Ties go by code point.

    Args:
      tokenizer: WordPiece or byte-level BPE.
      counts: the occurrences of each word, split by `splitting`.
      most: the maximum number of words.
    """
    before = num_tokens(tokenizer, counts)
    least = LEAST_SAVED * before
    extended: EncoderTokenizer
    if isinstance(tokenizer, WordPiece):
        extended = _with_words(tokenizer, counts, least, most)
    else:
        assert isinstance(tokenizer, LibraryEncoderTokenizer)
        extended = _with_merges(tokenizer, counts, least, most)
    count = extended.vocab_size - tokenizer.vocab_size
    saved = 100 * (before - num_tokens(extended, counts)) / max(before, 1)
    _log.info("%d words are added to the vocabulary: they save %.2f %% of %d tokens", count, saved, before)
    if count == most:
        _log.warning("further words may save tokens: their number is data.add_words=%d, the maximum", most)
    return extended


def num_tokens(tokenizer: EncoderTokenizer, counts: Mapping[str, int]) -> int:
    """Returns the number of tokens of a text, from the occurrences of its words."""
    model = _model(tokenizer)
    return sum(count * len(model.tokenize(word)) for word, count in counts.items())


def _model(tokenizer: EncoderTokenizer) -> models.Model:
    if isinstance(tokenizer, WordPiece):
        return _longest_match(tokenizer, tokenizer.vocab, CONTINUATION)
    return Library.from_str(tokenizer.content[0]).model


def _longest_match(tokenizer: WordPiece, pieces: Sequence[str], prefix: str) -> models.WordPiece:
    ids = {piece: number for number, piece in enumerate(pieces)}
    unknown = tokenizer.vocab[tokenizer.unk_id]
    most = tokenizer.max_word_chars
    return models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=most, continuing_subword_prefix=prefix)


def _with_words(tokenizer: WordPiece, counts: Mapping[str, int], least: float, most: int) -> WordPiece:
    """Adds words to WordPiece, which takes the longest word of the vocabulary that begins a word as its first piece.

    So a new word changes only words that begin with it, and of these the ones whose first piece is shorter. The pieces
    after the first one never change.
    """
    unknown = tokenizer.vocab[tokenizer.unk_id]
    later = [token.removeprefix(CONTINUATION) for token in tokenizer.vocab if token.startswith(CONTINUATION)]
    rest_model = _longest_match(tokenizer, [*later, unknown], "")

    @functools.cache
    def size_of_rest(text: str) -> float:
        pieces = rest_model.tokenize(text) if text else []
        return math.inf if pieces and pieces[0].value == unknown else float(len(pieces))

    model = _model(tokenizer)
    splits = [(word, [piece.value for piece in model.tokenize(word)]) for word in sorted(counts)]
    splits = [(word, pieces) for word, pieces in splits if pieces[0] != unknown]
    words = [word for word, _ in splits]
    firsts = [len(pieces[0]) for _, pieces in splits]
    sizes = [float(len(pieces)) for _, pieces in splits]
    ends = [bisect_left(words, word + _LAST) for word in words]
    # A word saves the most tokens if all words that begin with it become one token.
    totals = [0.0, *itertools.accumulate(counts[word] * (size - 1) for word, size in zip(words, sizes, strict=True))]
    heap = [(totals[i] - totals[end], i) for i, end in enumerate(ends) if sizes[i] > 1]
    heapq.heapify(heap)
    added: list[str] = []
    while heap and -heap[0][0] >= least and len(added) < most:
        i = heapq.heappop(heap)[1]
        start = len(words[i])
        changes = [(j, 1 + size_of_rest(words[j][start:])) for j in range(i, ends[i]) if firsts[j] < start]
        saved = sum(counts[words[j]] * (sizes[j] - size) for j, size in changes)
        if heap and -saved > heap[0][0]:
            heapq.heappush(heap, (-saved, i))  # another word may save more
        elif saved >= least:
            added.append(words[i])
            for j, size in changes:
                sizes[j] = size
                firsts[j] = start
    return tokenizer.with_words(added)


def _with_merges(
    tokenizer: LibraryEncoderTokenizer, counts: Mapping[str, int], least: float, most: int
) -> LibraryEncoderTokenizer:
    """Adds merges to BPE. They have the lowest priority, so that they change no word before its own merges are done."""
    model = _model(tokenizer)
    splits = (([piece.value for piece in model.tokenize(word)], counts[word]) for word in sorted(counts))
    merges = Merges(splits, str.__add__)
    ids = {token: number for number, token in enumerate(tokenizer.vocab)}
    pairs = []
    while len(ids) < tokenizer.vocab_size + most and (merge := merges.next()) and merge.occurrences >= least:
        pairs.append(merge.pair)
        ids.setdefault(merge.piece, len(ids))
    return tokenizer.with_merges(pairs, ids)
