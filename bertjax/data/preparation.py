"""The steps of preparing text: blocks of documents through worker processes, in order and in bounded memory."""

import collections
import functools
import hashlib
import itertools
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int32, UInt64

from bertjax.data import sentences, wordpiece_trainer
from bertjax.data.tokenizers import WordPiece
from bertjax.progress import track

_log = logging.getLogger(__name__)

R = TypeVar("R")
Document = list[str]  # its lines
Block = list[Document]

_BLOCK_CHARACTERS = 1 << 18
# A sentence of more word pieces than the longest row of published BERTs is reported as over-long.
_OVER_LONG = 512
# Hashes that are sorted at once when duplicates are counted: 32 MB.
_HASHES_AT_ONCE = 1 << 22


class TokenizedBlock(NamedTuple):
    """The documents of a block that have any tokens."""

    tokens: list[Int32[np.ndarray, " tokens"]]  # of each document, all sentences in a row
    sentence_lengths: list[Int32[np.ndarray, " sentences"]]  # of each document
    line_hashes: UInt64[np.ndarray, " lines"]
    document_hashes: UInt64[np.ndarray, " documents"]
    num_empty_documents: int  # documents whose lines give no tokens
    num_empty_lines: int


def train_vocabulary(documents: Iterable[Document], vocab_size: int, lowercase: bool, workers: int) -> list[str]:
    """Trains a WordPiece vocabulary on documents; the same whatever the number of workers."""
    counts: collections.Counter[str] = collections.Counter()
    count = functools.partial(_count_words, lowercase=lowercase)
    for block_counts in track(map_blocks(count, blocks(documents), workers), "counting words", "blocks"):
        counts.update(block_counts)
    _log.info("training a vocabulary of %d tokens on %d different words", vocab_size, len(counts))
    vocab = wordpiece_trainer.train(counts, vocab_size)
    if len(vocab) < vocab_size:
        _log.warning("the text gives only %d of the %d tokens asked for", len(vocab), vocab_size)
    return vocab


def tokenized(
    documents: Iterable[Document], vocab_dir: Path, lines: str, workers: int, counter: "SplitCounter"
) -> Iterator[Int32[np.ndarray, " tokens"]]:
    """Yields the token ids of each document that has any, and counts what passes.

    Args:
      documents: lines of text.
      vocab_dir: a folder with the vocabulary; each worker opens it once.
      lines: whether a line is a "sentence" or a "paragraph".
      workers: processes; 0 for one each core.
      counter: takes note of everything that passes.
    """
    tokenize = functools.partial(_tokenize, vocab_dir=vocab_dir, lines=lines)
    for block in track(map_blocks(tokenize, blocks(documents), workers), "tokenizing", "blocks"):
        counter.add(block)
        yield from block.tokens


def blocks(documents: Iterable[Document]) -> Iterator[Block]:
    """Groups documents into blocks of about 256 KB; the grouping depends on nothing but the documents."""
    block, size = [], 0
    for document in documents:
        block.append(document)
        size += sum(map(len, document))
        if size >= _BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def map_blocks(function: Callable[[Block], R], items: Iterable[Block], workers: int) -> Iterator[R]:
    """Yields `function(item)` in order, with a bounded number of items in flight.

    Args:
      function: importable, since worker processes call it.
      items: blocks.
      workers: processes; 1 works in this one, 0 stands for one each core.
    """
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if workers == 1:
        yield from map(function, items)
        return
    items = iter(items)
    # Forking a process whose libraries run threads may deadlock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _end_with_parent, (os.getpid(),)) as pool:
        pending: collections.deque[Future[R]] = collections.deque(
            pool.submit(function, item) for item in itertools.islice(items, 2 * workers)
        )
        try:
            while pending:
                result = pending.popleft().result()
                pending.extend(pool.submit(function, item) for item in itertools.islice(items, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


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
        names = ("sentence_lengths.int32", "document_sizes.int32", "lines.uint64", "documents.uint64")
        self._paths = [folder / f"{split}.{name}" for name in names]
        self._files = [path.open("wb") for path in self._paths]

    def add(self, block: TokenizedBlock) -> None:
        """Counts a block."""
        lengths = np.concatenate([np.zeros(0, np.int32), *block.sentence_lengths])
        tokens = np.concatenate([np.zeros(0, np.int32), *block.tokens])
        sizes = np.array([len(x) for x in block.sentence_lengths], np.int32)
        self.unigrams += np.bincount(tokens, minlength=len(self.unigrams))
        for key, value in (
            ("documents", len(sizes)),
            ("sentences", len(lengths)),
            ("tokens", len(tokens)),
            ("empty_documents", block.num_empty_documents),
            ("empty_lines", block.num_empty_lines),
            ("over_long_sentences", int((lengths > _OVER_LONG).sum())),
        ):
            self.counts[key] += value
        arrays = (lengths, sizes, block.line_hashes, block.document_hashes)
        for array, file in zip(arrays, self._files, strict=True):
            array.tofile(file)

    def finish(self) -> dict[str, int]:
        """Closes the files and returns all counts; duplicates are all copies but the first."""
        for file in self._files:
            file.close()
        for key, path in zip(("duplicate_lines", "duplicate_documents"), self._paths[2:], strict=True):
            self.counts[key] = count_duplicates(path)
            path.unlink()
        return self.counts


def count_duplicates(path: Path) -> int:
    """How many 64-bit hashes in a file stand there already, exactly, a range of hashes at a time."""
    size = path.stat().st_size // 8
    if not size:
        return 0
    hashes = np.memmap(path, np.uint64, "r")
    ranges = -(-size // _HASHES_AT_ONCE)
    bounds = [(i << 64) // ranges for i in range(ranges)] + [(1 << 64) - 1]
    distinct = 0
    for low, high in itertools.pairwise(bounds):
        parts = [np.zeros(0, np.uint64)]
        for start in range(0, size, _HASHES_AT_ONCE):
            part = hashes[start : start + _HASHES_AT_ONCE]
            last = high == bounds[-1]
            parts.append(part[(part >= low) & ((part <= high) if last else (part < high))])
        distinct += len(np.unique(np.concatenate(parts)))
    return size - distinct


def text_hash(text: str) -> int:
    """A 64-bit hash of text, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _end_with_parent(parent: int) -> None:
    """Ends this worker soon after its parent is gone: one that is killed cannot tell its workers to stop."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _count_words(block: Block, lowercase: bool) -> collections.Counter[str]:
    return wordpiece_trainer.count_words((line for document in block for line in document), lowercase)


@functools.cache
def _tokenizer(vocab_dir: Path) -> WordPiece:
    return WordPiece.load(vocab_dir)


def _tokenize(block: Block, vocab_dir: Path, lines: str) -> TokenizedBlock:
    """Splits and tokenizes a block; a worker's part."""
    split = sentences.split if lines == "paragraph" else lambda line: [line]
    texts = [[sentence for line in document for sentence in split(line)] for document in block]
    encoded = iter(_tokenizer(vocab_dir).encode_batch([text for document in texts for text in document]))
    tokens, lengths, kept = [], [], []
    num_empty_lines = 0
    for lines_of_document, document in zip(block, texts, strict=True):
        pieces = [ids for ids in itertools.islice(encoded, len(document)) if len(ids)]
        num_empty_lines += len(document) - len(pieces)
        if pieces:
            tokens.append(np.concatenate(pieces).astype(np.int32))
            lengths.append(np.array([len(ids) for ids in pieces], np.int32))
            kept.append(lines_of_document)
    return TokenizedBlock(
        tokens,
        lengths,
        np.array([text_hash(line) for document in kept for line in document], np.uint64),
        np.array([text_hash("\n".join(document)) for document in kept], np.uint64),
        len(block) - len(kept),
        num_empty_lines,
    )
