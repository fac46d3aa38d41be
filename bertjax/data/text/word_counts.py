"""Word counts in bounded memory: sorted files of a part of the text each, merged into the most frequent words."""

import heapq
import itertools
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from bertjax.data.parts import Parts
from bertjax.progress import track

_log = logging.getLogger(__name__)

WordCount = tuple[str, int]

# A part has this many different words at most, and those of one block more: 100 MB.
_DIFFERENT_WORDS = 1 << 19
# Where words repeat, it ends after so many in all (some 200 MB of text), so that interrupted work is not lost.
_WORDS = 1 << 25
# Words that take part in the training of a vocabulary, which holds about a kilobyte for each: of a larger number, the
# rarest are not merged. The articles and novels in some 400 MB of English have as many.
MAX_WORDS = 1 << 19
# Files that are merged at once, each of which is open.
_FILES = 256


def write_parts(blocks: Iterable[tuple[int, Counter[str]]], parts: Parts) -> None:
    """Adds up the counts of blocks, each with its number of documents, and writes them in parts."""
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


class Frequent(NamedTuple):
    """What a vocabulary is trained on."""

    words: dict[str, int]  # the most frequent ones
    characters: Counter[str]  # of all words, those left out too


def most_frequent(paths: Sequence[Path], folder: Path) -> Frequent:
    """The `MAX_WORDS` most frequent words of all parts, counted exactly.

    Ties go by checksum: by code point, text without spaces, whose clauses are words that come once, would keep those
    that begin with some characters alone.

    Args:
      paths: the files that `write_parts` wrote.
      folder: where to put files in between, if there are many parts.
    """
    for level in itertools.count():
        if len(paths) <= _FILES:
            break
        groups = [paths[start : start + _FILES] for start in range(0, len(paths), _FILES)]
        paths = [folder / f"merged-{level}-{number}" for number in range(len(groups))]
        for path, group in zip(paths, groups, strict=True):
            _write(_merged(group), path)
    characters: Counter[str] = Counter()
    words = track(_counting(_merged(paths), characters), "merging word counts", "words")
    kept = dict(heapq.nsmallest(MAX_WORDS, words, key=_by_frequency))
    if len(kept) == MAX_WORDS:
        _log.info("the %d most frequent words train the vocabulary; rarer ones give it but characters", MAX_WORDS)
    return Frequent(kept, characters)


def _counting(words: Iterable[WordCount], characters: Counter[str]) -> Iterator[WordCount]:
    """Passes on words, adding up their characters."""
    for word, count in words:
        for char in word:
            characters[char] += count
        yield word, count


def _by_frequency(word_count: WordCount) -> tuple[int, int, str]:
    word, count = word_count
    return -count, zlib.crc32(word.encode()), word


def _write_part(counts: Counter[str], num_documents: int, parts: Parts) -> None:
    with parts.adding(num_documents) as path:
        _write(sorted(counts.items()), path)


def _write(counts: Iterable[WordCount], path: Path) -> None:
    """Writes a word, a space and its count a line; words have no spaces."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word} {count}\n" for word, count in counts)


def _read(path: Path) -> Iterator[WordCount]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            word, count = line.split(" ")
            yield word, int(count)


def _merged(paths: Sequence[Path]) -> Iterator[WordCount]:
    """The sums of the counts in files that are sorted by word, sorted likewise."""
    everything = heapq.merge(*map(_read, paths))
    for word, group in itertools.groupby(everything, key=itemgetter(0)):
        yield word, sum(count for _, count in group)
