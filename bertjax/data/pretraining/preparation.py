"""The steps of preparing text. Worker processes count and tokenize blocks of documents, in order, in bounded memory.

The results of workers are collected into parts and written to files (see `parts.py`). An interrupted preparation
resumes after the last part. Parts depend only on the documents.
"""

import collections
import functools
import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from bertjax.data.parts import Parts
from bertjax.data.pretraining.shingles import distinct
from bertjax.data.text import byte_bpe_trainer, sentences, vocabulary_config, word_counts, wordpiece_trainer
from bertjax.data.text.added_words import learn as learn_words
from bertjax.data.text.normalization import Chain
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import WORDPIECE, LearnedVocabularyConfig, load_named, load_saved
from bertjax.data.text.wordpiece import WordPiece
from bertjax.data.workers import gather, map_blocks
from bertjax.progress import track

_log = logging.getLogger(__name__)

T = TypeVar("T")
Document = list[str]  # the lines of a document
Block = list[Document]

_BLOCK_CHARACTERS = 1 << 18
# A part ends after this many tokens: 64 MB, from about 75 MB of English text. Each part becomes a file of records.
_PART_TOKENS = 1 << 24
# Sentences with more word pieces than the longest row of published BERT models are counted as over-long.
_OVER_LONG = 512
# Hashes sorted at a time when duplicates are counted: 32 MB.
_HASHES_AT_ONCE = 1 << 22


class Tokenized(NamedTuple):
    """Tokenized documents. Documents and sentences without tokens are only counted."""

    tokens: Int32[np.ndarray, " tokens"]  # the sentences of all documents, concatenated
    sentence_lengths: Int32[np.ndarray, " sentences"]
    document_sizes: Int32[np.ndarray, " documents"]  # the number of sentences in each document
    line_hashes: UInt64[np.ndarray, " lines"]  # one per line of the source in these documents
    document_hashes: UInt64[np.ndarray, " documents"]
    empty: Int64[np.ndarray, "2"]  # the numbers of documents and of sentences without tokens

    @property
    def num_documents(self) -> int:
        """The number of tokenized documents, including empty ones."""
        return len(self.document_sizes) + int(self.empty[0])

    @classmethod
    def joined(cls, blocks: Sequence["Tokenized"]) -> "Tokenized":
        """Concatenates the documents of several blocks."""
        *arrays, empty = zip(*blocks, strict=True)
        return cls._make([*map(np.concatenate, arrays), np.sum(empty, axis=0)])

    def save(self, path: Path) -> None:
        """Writes a file for `load`."""
        with path.open("wb") as file:  # np.savez appends a suffix to a path
            np.savez(file, **self._asdict())

    @classmethod
    def load(cls, path: Path) -> "Tokenized":
        """Reads a file that `save` wrote."""
        with np.load(path) as arrays:
            return cls(**arrays)

    def document_lengths(self) -> Int32[np.ndarray, " documents"]:
        """Returns the number of tokens in each document."""
        ends = np.cumsum(self.sentence_lengths)[np.cumsum(self.document_sizes) - 1]
        return np.diff(ends, prepend=0).astype(np.int32)

    def documents(self) -> list[Int32[np.ndarray, " _"]]:
        """Returns the token ids of each document."""
        return np.split(self.tokens, np.cumsum(self.document_lengths())[:-1])


def count_words(documents: Iterable[Document], chain: Chain, workers: int, parts: Parts, kind: str = WORDPIECE) -> None:
    """Counts the words of all documents that have no part yet, for `word_counts.most_frequent`.

    `kind` is the kind of tokenizer to train, see `vocabulary_config`, and `chain` its normalization.
    """
    remaining = itertools.islice(documents, parts.num_documents, None)
    count = functools.partial(_count_words, chain=chain, kind=kind)
    word_counts.write_parts(track(map_blocks(count, blocks(remaining), workers), "counting words", "block"), parts)


def train_tokenizer(counts: word_counts.TrainingCounts, config: LearnedVocabularyConfig) -> EncoderTokenizer:
    """Trains the tokenizer of a config, or adds words to that in `vocab_file`.

    Logs a warning if the text gives fewer than `vocab_size` tokens.
    """
    if config.vocab_file:
        return learn_words(load_named(config), counts.words, config.add_words)
    size = config.vocab_size
    _log.info("training a vocabulary of %d tokens on %d different words", size, len(counts.words))
    if config.tokenizer == WORDPIECE:
        vocab = wordpiece_trainer.train(counts.words, size, counts.characters, config.character_coverage)
        tokenizer: EncoderTokenizer = WordPiece.of(vocab, config.chain)
    else:
        tokenizer = byte_bpe_trainer.train(counts.words, size, config.lowercase)
    if tokenizer.vocab_size < size:
        _log.warning("the text gives only %d of the %d requested tokens", tokenizer.vocab_size, size)
    return tokenizer


def tokenize(documents: Iterable[Document], vocab_dir: Path, splitter: str, workers: int, parts: Parts) -> None:
    """Tokenizes all documents that have no part yet, and writes parts for `Tokenized.load`.

    Args:
      documents: the lines of each document, from the first document on.
      vocab_dir: a folder with the vocabulary; each worker opens it once.
      splitter: one of `sentences.SPLITTERS`, or "" if each line is a sentence.
      workers: the number of processes; 0 for one per core.
      parts: the parts; existing ones are of the first documents.
    """
    remaining = itertools.islice(documents, parts.num_documents, None)
    work = functools.partial(_tokenize, vocab_dir=vocab_dir, splitter=splitter)
    tokenized = track(map_blocks(work, blocks(remaining), workers), "tokenizing", "block")
    for part in map(Tokenized.joined, gather(tokenized, lambda block: len(block.tokens), _PART_TOKENS)):
        with parts.add(part.num_documents) as path:
            part.save(path)
        del part  # frees memory before the next part is collected


def blocks(documents: Iterable[Document]) -> Iterator[Block]:
    """Groups documents into blocks of about 256 KB. The grouping depends only on the documents."""
    return gather(documents, lambda document: sum(map(len, document)), _BLOCK_CHARACTERS)


class SplitCounter:
    """Collects the lengths and counts of a split's documents.

    Lengths and hashes are written to files immediately, so that memory stays bounded.
    """

    def __init__(self, folder: Path, split: str, vocab_size: int) -> None:
        """Opens the files.

        Args:
          folder: the folder in which `Split` reads the lengths.
          split: the split's name.
          vocab_size: the size of the vocabulary.
        """
        self.unigrams = np.zeros(vocab_size, np.int64)
        self.counts = dict.fromkeys(
            ("documents", "sentences", "tokens", "empty_documents", "empty_lines", "over_long_sentences"), 0
        )
        lengths = ("sentence_lengths.int32", "document_sizes.int32", "document_lengths.int32")
        self._paths = [folder / f"{split}.{name}" for name in (*lengths, "lines.uint64", "documents.uint64")]
        self._files = [path.open("wb") for path in self._paths]

    def add(self, part: Tokenized) -> bool:
        """Counts documents. Returns whether any of them has tokens."""
        self.unigrams += np.bincount(part.tokens, minlength=len(self.unigrams))
        for key, value in (
            ("documents", len(part.document_sizes)),
            ("sentences", len(part.sentence_lengths)),
            ("tokens", len(part.tokens)),
            ("empty_documents", int(part.empty[0])),
            ("empty_lines", int(part.empty[1])),
            ("over_long_sentences", int((part.sentence_lengths > _OVER_LONG).sum())),
        ):
            self.counts[key] += value
        lengths = (part.sentence_lengths, part.document_sizes, part.document_lengths())
        for array, file in zip((*lengths, part.line_hashes, part.document_hashes), self._files, strict=True):
            array.tofile(file)
        return len(part.document_sizes) > 0

    def finish(self) -> tuple[dict[str, int], dict[str, float]]:
        """Closes the files. Returns all counts, and the fractions of lines and documents that are duplicates.

        All copies except the first are duplicates. Lines are compared as the source has them.
        """
        fractions = {}
        for file in self._files:
            file.close()
        for what, path in zip(("lines", "documents"), self._paths[-2:], strict=True):
            number = count_duplicates(path)
            self.counts[f"duplicate_{what}"] = number
            fractions[what] = round(number / max(path.stat().st_size // 8, 1), 6)
            path.unlink()
        return self.counts, fractions


def count_duplicates(path: Path) -> int:
    """Returns how many 64-bit hashes of a file are copies of earlier ones. Holds a few million hashes in memory.

    Sorted runs of the file are written to a second file. Then each range of hashes is read from all runs.
    """
    size = path.stat().st_size // 8
    ranges = -(-size // _HASHES_AT_ONCE)
    first = np.array([(i << 64) // ranges for i in range(ranges)], np.uint64)  # the first hash of each range
    ordered = path.with_suffix(".ordered")
    cuts: list[list[int]] = []  # for each run, the offsets of its ranges in the second file, and its end
    end = num_distinct = 0
    with ordered.open("wb") as file:
        for start in range(0, size, _HASHES_AT_ONCE):
            run = distinct(np.fromfile(path, np.uint64, _HASHES_AT_ONCE, offset=8 * start))
            run.tofile(file)
            cuts.append([end + int(i) for i in np.searchsorted(run, first)])
            end += len(run)
            cuts[-1].append(end)
    for i in range(ranges):
        hashes = [np.fromfile(ordered, np.uint64, cut[i + 1] - cut[i], offset=8 * cut[i]) for cut in cuts]
        num_distinct += len(distinct(np.concatenate(hashes)))
    ordered.unlink()
    return size - num_distinct


def text_hash(text: str) -> int:
    """Returns a 64-bit hash of text that is the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _count_words(block: Block, chain: Chain, kind: str = WORDPIECE) -> tuple[int, collections.Counter[str]]:
    lines = (line for document in block for line in document)
    return len(block), vocabulary_config.count_words(kind, lines, chain)


@functools.cache
def _tokenizer(vocab_dir: Path) -> EncoderTokenizer:
    return load_saved(vocab_dir)


def _tokenize(block: Block, vocab_dir: Path, splitter: str) -> Tokenized:
    """Splits and tokenizes a block. Runs in a worker."""
    encode = _tokenizer(vocab_dir).encode_parts
    pieces: list[list[int]] = []  # of all sentences
    sizes: list[int] = []
    line_hashes: list[int] = []
    document_hashes: list[int] = []
    empty = np.zeros(2, np.int64)
    for document in block:
        texts = [
            sentence for line in document for sentence in (sentences.split(line, splitter) if splitter else [line])
        ]
        encoded = [ids for ids in encode(texts) if ids]
        empty += (not encoded, len(texts) - len(encoded))
        if encoded:
            pieces += encoded
            sizes.append(len(encoded))
            line_hashes += map(text_hash, document)
            document_hashes.append(text_hash("\n".join(document)))
    return Tokenized(
        np.fromiter(itertools.chain.from_iterable(pieces), np.int32),
        np.fromiter(map(len, pieces), np.int32),
        np.array(sizes, np.int32),
        np.array(line_hashes, np.uint64),
        np.array(document_hashes, np.uint64),
        empty,
    )
