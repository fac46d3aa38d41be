"""The steps of preparing text: worker processes count and tokenize blocks of documents, in order, in bounded memory.

What workers hand back is gathered into parts, which are kept in files (see `parts.py`): an interrupted preparation
goes on after the last of them. Parts depend on nothing but the documents.
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
from bertjax.data.text import sentences, word_counts, wordpiece_trainer
from bertjax.data.text.tokenizers import WordPiece
from bertjax.data.workers import gather, map_blocks
from bertjax.progress import track

_log = logging.getLogger(__name__)

T = TypeVar("T")
Document = list[str]  # its lines
Block = list[Document]

_BLOCK_CHARACTERS = 1 << 18
# A part ends after so many tokens: 64 MB, of some 75 MB of English text. Each becomes a file of records.
_PART_TOKENS = 1 << 24
# A sentence of more word pieces than the longest row of published BERTs is reported as over-long.
_OVER_LONG = 512
# Hashes that are sorted at once when duplicates are counted: 32 MB.
_HASHES_AT_ONCE = 1 << 22


class Tokenized(NamedTuple):
    """Some documents as token ids; documents and sentences without any are only counted."""

    tokens: Int32[np.ndarray, " tokens"]  # of all sentences of all documents, in a row
    sentence_lengths: Int32[np.ndarray, " sentences"]
    document_sizes: Int32[np.ndarray, " documents"]  # sentences in each document
    line_hashes: UInt64[np.ndarray, " lines"]  # of each line of these documents, as the source gives it
    document_hashes: UInt64[np.ndarray, " documents"]
    empty: Int64[np.ndarray, "2"]  # documents whose lines give no tokens, and lines that give none

    @property
    def num_documents(self) -> int:
        """How many documents were tokenized, empty ones too."""
        return len(self.document_sizes) + int(self.empty[0])

    @classmethod
    def joined(cls, blocks: Sequence["Tokenized"]) -> "Tokenized":
        """The documents of several blocks, in order."""
        *arrays, empty = zip(*blocks, strict=True)
        return cls._make([*map(np.concatenate, arrays), np.sum(empty, axis=0)])

    def save(self, path: Path) -> None:
        """Writes a file for `load`."""
        with path.open("wb") as file:  # given a path, NumPy would change its name
            np.savez(file, **self._asdict())

    @classmethod
    def load(cls, path: Path) -> "Tokenized":
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            return cls(**arrays)

    def document_lengths(self) -> Int32[np.ndarray, " documents"]:
        """The tokens of each document."""
        ends = np.cumsum(self.sentence_lengths)[np.cumsum(self.document_sizes) - 1]
        return np.diff(ends, prepend=0).astype(np.int32)

    def documents(self) -> list[Int32[np.ndarray, " _"]]:
        """The token ids of each document."""
        return np.split(self.tokens, np.cumsum(self.document_lengths())[:-1])


def count_words(documents: Iterable[Document], lowercase: bool, workers: int, parts: Parts) -> None:
    """Counts words, for `word_counts.most_frequent`, from the first document that has no part on."""
    remaining = itertools.islice(documents, parts.num_documents, None)
    count = functools.partial(_count_words, lowercase=lowercase)
    word_counts.write_parts(track(map_blocks(count, blocks(remaining), workers), "counting words", "blocks"), parts)


def train_vocabulary(counts: word_counts.TrainingCounts, vocab_size: int) -> list[str]:
    """Trains a WordPiece vocabulary and warns if the text is too small for its size."""
    _log.info("training a vocabulary of %d tokens on %d different words", vocab_size, len(counts.words))
    vocab = wordpiece_trainer.train(counts.words, vocab_size, counts.characters)
    if len(vocab) < vocab_size:
        _log.warning("the text gives only %d of the %d tokens asked for", len(vocab), vocab_size)
    return vocab


def tokenize(documents: Iterable[Document], vocab_dir: Path, lines: str, workers: int, parts: Parts) -> None:
    """Writes documents as parts, which `Tokenized.load` reads, from the first document that has no part on.

    Args:
      documents: lines of text.
      vocab_dir: a folder with the vocabulary; each worker opens it once.
      lines: whether a line is a "sentence" or a "paragraph".
      workers: processes; 0 for one each core.
      parts: where to; the ones already there are of the first of these documents.
    """
    remaining = itertools.islice(documents, parts.num_documents, None)
    work = functools.partial(_tokenize, vocab_dir=vocab_dir, lines=lines)
    tokenized = track(map_blocks(work, blocks(remaining), workers), "tokenizing", "blocks")
    for part in map(Tokenized.joined, gather(tokenized, lambda block: len(block.tokens), _PART_TOKENS)):
        with parts.add(part.num_documents) as path:
            part.save(path)
        del part  # not kept while the next is gathered


def blocks(documents: Iterable[Document]) -> Iterator[Block]:
    """Groups documents into blocks of about 256 KB; the grouping depends on nothing but the documents."""
    return gather(documents, lambda document: sum(map(len, document)), _BLOCK_CHARACTERS)


class SplitCounter:
    """Takes note of a split's documents as they pass: their lengths, their tokens, and what is odd about them.

    Lengths and hashes go to files as they come, so that memory stays bounded.
    """

    def __init__(self, folder: Path, split: str, vocab_size: int) -> None:
        """Args: where `Split` will look for the lengths; the split's name; the size of the vocabulary."""
        self.unigrams = np.zeros(vocab_size, np.int64)
        self.counts = dict.fromkeys(
            ("documents", "sentences", "tokens", "empty_documents", "empty_lines", "over_long_sentences"), 0
        )
        lengths = ("sentence_lengths.int32", "document_sizes.int32", "document_lengths.int32")
        self._paths = [folder / f"{split}.{name}" for name in (*lengths, "lines.uint64", "documents.uint64")]
        self._files = [path.open("wb") for path in self._paths]

    def add(self, part: Tokenized) -> bool:
        """Counts documents; returns whether there are any with tokens."""
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
        """Closes the files and returns all counts, and which fraction of the lines and documents are duplicates.

        Duplicates are all copies but the first, of lines as the source gives them.
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
    """How many 64-bit hashes in a file stand there already, exactly, holding a few million of them at once.

    Stretches of the file are sorted and written beside it; then a range of hashes at a time is read from all of them.
    """
    size = path.stat().st_size // 8
    ranges = -(-size // _HASHES_AT_ONCE)
    first = np.array([(i << 64) // ranges for i in range(ranges)], np.uint64)  # hash of each range
    ordered = path.with_suffix(".ordered")
    cuts: list[list[int]] = []  # of each stretch, where its ranges begin in the file of all, and its end
    end = distinct = 0
    with ordered.open("wb") as file:
        for start in range(0, size, _HASHES_AT_ONCE):
            stretch = _distinct(np.fromfile(path, np.uint64, _HASHES_AT_ONCE, offset=8 * start))
            stretch.tofile(file)
            cuts.append([end + int(i) for i in np.searchsorted(stretch, first)])
            end += len(stretch)
            cuts[-1].append(end)
    for i in range(ranges):
        found = [np.fromfile(ordered, np.uint64, cut[i + 1] - cut[i], offset=8 * cut[i]) for cut in cuts]
        distinct += len(_distinct(np.concatenate(found)))
    ordered.unlink()
    return size - distinct


def _distinct(hashes: UInt64[np.ndarray, " hashes"]) -> UInt64[np.ndarray, " distinct"]:
    """As `np.unique`, which takes a hundred times as long for millions that differ."""
    ordered = np.sort(hashes)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def text_hash(text: str) -> int:
    """A 64-bit hash of text, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _count_words(block: Block, lowercase: bool) -> tuple[int, collections.Counter[str]]:
    return len(block), wordpiece_trainer.count_words((line for document in block for line in document), lowercase)


@functools.cache
def _tokenizer(vocab_dir: Path) -> WordPiece:
    return WordPiece.load(vocab_dir)


def _tokenize(block: Block, vocab_dir: Path, lines: str) -> Tokenized:
    """Splits and tokenizes a block; a worker's part."""
    split = sentences.split if lines == "paragraph" else lambda line: [line]
    encode = _tokenizer(vocab_dir).encode_batch
    pieces: list[list[int]] = []  # of each sentence
    sizes: list[int] = []
    line_hashes: list[int] = []
    document_hashes: list[int] = []
    empty = np.zeros(2, np.int64)
    for document in block:
        texts = [sentence for line in document for sentence in split(line)]
        found = [ids for ids in encode(texts) if ids]
        empty += (not found, len(texts) - len(found))
        if found:
            pieces += found
            sizes.append(len(found))
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
