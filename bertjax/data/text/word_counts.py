"""Counts words in bounded memory: sorted files of partial counts, merged into the most frequent words."""

import heapq
import itertools
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data.parts import Parts
from bertjax.progress import track

_log = logging.getLogger(__name__)

WordCount = tuple[str, int]

# A part ends when it has this many different words (100 MB), plus those of the last block.
_DIFFERENT_WORDS = 1 << 19
# A part also ends after this many words in total (about 200 MB of text), so that an interruption loses little work.
_WORDS = 1 << 25
# The number of words used to train a vocabulary, which takes about a kilobyte of memory for each. Rarer words are not
# merged. About 400 MB of English articles and novels have this many words.
MAX_WORDS = 1 << 19
# The number of files that are open at once during a merge.
_FILES = 256


def write_parts(blocks: Iterable[tuple[int, Counter[str]]], parts: Parts) -> None:
    """Adds up the counts of blocks, each with its number of documents, and writes them as parts."""
    total: Counter[str] = Counter()
    num_documents = num_words = 0
    for block_documents, counts in blocks:
        total.update(counts)
        num_documents += block_documents
        num_words += counts.total()
        if len(total) >= _DIFFERENT_WORDS or num_words >= _WORDS:
            _write_part(total, num_documents, parts)
            total.clear()
            num_documents = num_words = 0
    if num_documents:
        _write_part(total, num_documents, parts)


class TrainingCounts(NamedTuple):
    """The counts from which a vocabulary is trained."""

    words: dict[str, int]  # the most frequent words
    characters: Counter[str]  # the characters of all words


def most_frequent(paths: Sequence[Path], folder: Path) -> TrainingCounts:
    """Returns the exact counts of the `MAX_WORDS` most frequent words of all parts.

    Ties go by checksum. In text without spaces most words are clauses that occur once, and ties by code point would
    keep only clauses that begin with certain characters.

    Args:
      paths: the files that `write_parts` wrote.
      folder: a folder for intermediate files, needed if there are many parts.
    """
    for level in itertools.count():
        if len(paths) <= _FILES:
            break
        groups = [paths[start : start + _FILES] for start in range(0, len(paths), _FILES)]
        paths = [folder / f"merged-{level}-{number}" for number in range(len(groups))]
        for path, group in zip(paths, groups, strict=True):
            _write(_merged(group), path)
    characters: Counter[str] = Counter()
    words = track(_counting(_merged(paths), characters), "merging word counts", "word")
    frequent = dict(heapq.nsmallest(MAX_WORDS, words, key=_by_frequency))
    if len(frequent) == MAX_WORDS:
        _log.info("training on the %d most frequent words; rarer words contribute only their characters", MAX_WORDS)
    return TrainingCounts(frequent, characters)


def weighted(counts: Sequence[TrainingCounts], shares: Sequence[float]) -> TrainingCounts:
    """Adds counts of several texts, each scaled up to its share of all words, and rounded.

    Args:
      counts: the counts of each text.
      shares: the share of each text, at least 0.
    """
    totals = [sum(text.words.values()) for text in counts]
    factors = np.array([share / max(total, 1) for share, total in zip(shares, totals, strict=True)])
    factors /= factors[factors > 0].min()  # the text with the smallest factor keeps its counts, so that none becomes 0
    words: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for text, factor in zip(counts, factors.tolist(), strict=True):
        for total, of_text in ((words, text.words), (characters, text.characters)):
            total.update({key: round(factor * count) for key, count in of_text.items() if factor})
    return TrainingCounts(dict(heapq.nsmallest(MAX_WORDS, words.items(), key=_by_frequency)), characters)


def _counting(words: Iterable[WordCount], characters: Counter[str]) -> Iterator[WordCount]:
    """Passes on words, and adds up the counts of their characters."""
    for word, count in words:
        for char in word:
            characters[char] += count
        yield word, count


def _by_frequency(word_count: WordCount) -> tuple[int, int, str]:
    word, count = word_count
    return -count, zlib.crc32(word.encode()), word


def _write_part(counts: Counter[str], num_documents: int, parts: Parts) -> None:
    with parts.add(num_documents) as path:
        _write(sorted(counts.items()), path)


def _write(counts: Iterable[WordCount], path: Path) -> None:
    """Writes one line per word: the word, a space and its count. Words contain no spaces."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word} {count}\n" for word, count in counts)


def _read(path: Path) -> Iterator[WordCount]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            word, count = line.split(" ")
            yield word, int(count)


def _merged(paths: Sequence[Path]) -> Iterator[WordCount]:
    """Yields the summed counts of files that are sorted by word, in the same order."""
    everything = heapq.merge(*map(_read, paths))
    for word, group in itertools.groupby(everything, key=itemgetter(0)):
        yield word, sum(count for _, count in group)
