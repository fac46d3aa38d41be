"""Near duplicates among the training documents of several sources.

A document is a duplicate of the first earlier one, among those that stay, whose word 5-grams have at least a Jaccard
similarity. Candidates are documents that share a band of their MinHash signatures; each is verified by its true
similarity. Similarity is not transitive, and no chain of duplicates is followed.

Documents with equal sets of 5-grams share one decision, so that copies cost nothing. A bucket of other documents grows
only by those that stay. If it is crowded nevertheless, as with pages of one template, its documents are grouped by
their rarest 5-grams: sets with at least c elements in common share one of the n - c + 1 rarest of each set, of n
elements (prefix filtering, Chaudhuri et al. 2006), so that no pair is lost.
"""

import bisect
import functools
import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, UInt64
from numpy.lib.format import open_memmap

from bertjax.data.parts import Parts
from bertjax.data.pretraining import shingles
from bertjax.data.pretraining.containment import TextIndex
from bertjax.data.pretraining.corpus import Corpus
from bertjax.data.workers import gather, map_blocks
from bertjax.progress import track

_log = logging.getLogger(__name__)

WORDS = 5  # in a shingle
_BATCH_TOKENS = 1 << 18
_PART_DOCUMENTS = 1 << 16
_SHOWN_TOKENS = 24  # of a document, in lists
_CROWD = 1000  # documents in a bucket
_COUNTER_BITS = 24
_COUNTER_SHIFT = np.uint64(64 - _COUNTER_BITS)
_ROUNDING = 1e-9  # more than the error of a product with a similarity
_SIZE_RATIO = 1.05  # of classes of sizes
_ADDED = 0
_LOOKED_UP = 1
_NONE = np.zeros(0, np.int64)
_NUM_CACHED = 1 << 12  # sets of shingles, of at most 256 MB
_CACHED_SIZE = 1 << 13


class Documents:
    """The documents of one split of several sources with one vocabulary, numbered one after another.

    Attributes:
      names: the names of the sources.
      first: the number of each source's first document, and the number of documents at the end.
      tokenizer: the vocabulary.
      hasher: hashes its words.
    """

    def __init__(self, corpora: Mapping[str, Corpus], split: str) -> None:
        """Takes the sources in order of priority."""
        self.names = list(corpora)
        self._splits = [corpus.splits[split] for corpus in corpora.values()]
        self.first: list[int] = np.cumsum([0, *(len(part.sentences.first) - 1 for part in self._splits)]).tolist()
        self.tokenizer = next(iter(corpora.values())).tokenizer
        self.hasher = shingles.WordHasher(self.tokenizer)

    def __len__(self) -> int:
        return self.first[-1]

    def source_of(self, number: int) -> int:
        """Returns the index of a document's source."""
        return bisect.bisect_right(self.first, number) - 1

    def batches(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        """Groups documents, given in order, by source and in batches of about 256K tokens."""
        for _, members in itertools.groupby(numbers, self.source_of):
            yield from gather(members, lambda number: int(self.sentence_lengths(number).sum()), _BATCH_TOKENS)

    def sentence_lengths(self, number: int) -> Int32[np.ndarray, " n"]:
        """Returns the number of tokens of each sentence of a document."""
        source = self.source_of(number)
        sentences = self._splits[source].sentences
        begin, end = sentences.first[number - self.first[source] :][:2]
        return sentences.lengths[begin:end]

    def read(self, batch: Sequence[int], limit: int | None = None) -> list[Int32[np.ndarray, " _"]]:
        """Returns the tokens of documents of one source, or the first `limit` of them."""
        source = self.source_of(batch[0])
        documents = np.array(batch) - self.first[source]
        lengths = np.array([self.sentence_lengths(number).sum() for number in batch])
        return self._splits[source].read(documents, np.zeros_like(documents), np.minimum(lengths, limit or lengths))

    def sets(self, numbers: Sequence[int]) -> Iterator[UInt64[np.ndarray, " _"]]:
        """Yields the shingles of documents, given in order."""
        for batch in self.batches(numbers):
            for words in self.hasher.words(self.read(batch)):
                yield shingles.shingles(words, WORDS)

    def describe(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Returns the source, the number in it, and the first words of documents."""
        labels = {}
        for batch in self.batches(sorted(set(numbers))):
            source = self.source_of(batch[0])
            for number, tokens in zip(batch, self.read(batch, _SHOWN_TOKENS), strict=True):
                place = {"source": self.names[source], "document": number - self.first[source]}
                labels[number] = {**place, "words": self.tokenizer.decode(tokens.tolist())}
        return labels


class Scan(NamedTuple):
    """What one pass over the text learns of each document; shapes [n]."""

    words: Int32[np.ndarray, " n"]
    repeated: Float32[np.ndarray, " n"]  # the share of sentences that are copies of earlier ones of the document
    text: Int32[np.ndarray, " n"]  # the evaluation text that it contains, or -1
    containment: Float32[np.ndarray, " n"]
    set_hash: UInt64[np.ndarray, " n"]  # of its shingles
    size: Int32[np.ndarray, " n"]  # the number of different shingles
    bands: UInt64[np.ndarray, "n b"]


class Comparison(NamedTuple):
    """What documents are compared by.

    Attributes:
      texts: the folder of the `TextIndex`.
      containment: the share of a text's runs of words that a document that contains it has.
      rows: the number of MinHash values in a band.
    """

    texts: Path
    containment: float
    rows: int


def scan(folders: Mapping[str, Path], comparison: Comparison, workers: int, parts: Parts) -> None:
    """Scans all documents that have no part yet, and writes parts for `load`.

    Args:
      folders: the prepared folder of each source.
      comparison: what documents are compared by.
      workers: the number of processes; 0 for one per core.
      parts: the parts; existing ones are of the first documents.
    """
    sources = tuple(folders.items())
    documents = _open(sources)
    batches = documents.batches(range(parts.num_documents, len(documents)))
    work = functools.partial(_scan, sources=sources, comparison=comparison)
    scans = track(map_blocks(work, batches, workers), "scanning documents", "block")
    for blocks in gather(scans, lambda block: len(block.words), _PART_DOCUMENTS):
        part = Scan(*map(np.concatenate, zip(*blocks, strict=True)))
        bands = {f"band{number}": column for number, column in enumerate(part.bands.T)}
        with parts.add(len(part.words)) as path, path.open("wb") as file:
            np.savez(file, **{**part._asdict(), **bands, "bands": 0})


def load(parts: Parts, field: str) -> np.ndarray:
    """Returns a field of `Scan`, or a column of its bands, of all documents."""
    return np.concatenate([np.load(path)[field] for path in parts.paths])


@functools.cache
def _open(sources: tuple[tuple[str, Path], ...]) -> Documents:
    return Documents({name: Corpus(folder) for name, folder in sources}, "train")


@functools.cache
def _open_texts(comparison: Comparison) -> TextIndex:
    return TextIndex(comparison.texts, comparison.containment)


def _scan(batch: list[int], sources: tuple[tuple[str, Path], ...], comparison: Comparison) -> Scan:
    """Scans the documents of a batch. Runs in a worker."""
    documents = _open(sources)
    tokens = documents.read(batch)
    words = documents.hasher.words(tokens)
    sentences = [
        shingles.sentence_hashes(ids, documents.sentence_lengths(n)) for n, ids in zip(batch, tokens, strict=True)
    ]
    sets = [shingles.shingles(hashes, WORDS) for hashes in words]
    texts, containment = zip(*map(_open_texts(comparison).best, words), strict=True)
    return Scan(
        np.array(list(map(len, words)), np.int32),
        np.array([1 - len(shingles.distinct(hashes)) / len(hashes) for hashes in sentences], np.float32),
        np.array(texts, np.int32),
        np.array(containment, np.float32),
        np.array([elements.sum() for elements in sets], np.uint64),
        np.array(list(map(len, sets)), np.int32),
        np.array([shingles.bands(elements, comparison.rows) for elements in sets]),
    )


class Duplicates(NamedTuple):
    """The duplicate documents, by number."""

    of: Int64[np.ndarray, " n"]  # the document that stays in its place, or -1
    similarity: Float32[np.ndarray, " n"]


def find_duplicates(
    documents: Documents, parts: Parts, takes_part: Bool[np.ndarray, " n"], similarity: float, folder: Path
) -> Duplicates:
    """Returns the duplicates. Holds about a hundred bytes per document in memory, and 256 MB of shingles.

    Args:
      documents: all documents.
      parts: their scans, with `rows_per_band(similarity)` values per band.
      takes_part: whether a document may be a duplicate, or have some.
      similarity: the least Jaccard similarity of duplicates.
      folder: the folder of temporary files.
    """
    rows = shingles.rows_per_band(similarity)
    text = "word 5-grams of Jaccard similarity %g share one of %d bands of %d MinHash values with probability %.3f"
    _log.info(text, similarity, shingles.num_bands(similarity), rows, shingles.recall(similarity, rows))
    numbers = np.flatnonzero(takes_part)
    _, first, inverse = np.unique(load(parts, "set_hash")[numbers], return_index=True, return_inverse=True)
    original = numbers[first[inverse]]  # the first document with the same shingles
    members = np.unique(original)
    size = load(parts, "size")[members]
    buckets = _Buckets(folder, documents, parts, members, similarity)
    read = functools.lru_cache(_NUM_CACHED)(lambda number: next(documents.sets([number])))
    of = np.full(len(documents), -1)
    score = np.zeros(len(documents), np.float32)
    shared = buckets.shared()
    sets = zip(shared.tolist(), documents.sets(members[shared].tolist()), strict=True)
    for member, elements in track(sets, "comparing candidates", "document", len(shared)):
        earlier = buckets.staying(member)
        ratio = np.minimum(size[earlier], size[member]) / np.maximum(size[earlier], size[member])
        for other in earlier[ratio >= similarity].tolist():
            set_of = read if size[other] <= _CACHED_SIZE else read.__wrapped__
            common = shingles.jaccard(elements, set_of(int(members[other])))
            if common >= similarity:
                of[members[member]] = members[other]
                score[members[member]] = common
                break
        else:
            buckets.add(member)
    copies = numbers[original != numbers]
    of_original = original[original != numbers]
    is_alone = of[of_original] < 0
    of[copies] = np.where(is_alone, of_original, of[of_original])
    score[copies] = np.where(is_alone, 1.0, score[of_original])
    return Duplicates(of, score)


class _Buckets:
    """Groups of members that may be similar, in files. The list of a group has those of its members that stay."""

    def __init__(
        self, folder: Path, documents: Documents, parts: Parts, members: Int64[np.ndarray, " m"], similarity: float
    ) -> None:
        """Groups the documents `members` by each band, and those of crowded groups by their rarest shingles."""
        num_bands = shingles.num_bands(similarity)
        # Where the list of a member's group begins, or -1: first its length, then members.
        self._first = open_memmap(folder / "first.npy", "w+", np.int64, (num_bands, len(members)))
        self._rare: dict[int, Int64[np.ndarray, "2 _"]] = {}
        is_crowded = np.zeros(len(members), bool)
        total = 0
        for band in range(num_bands):
            first, size, total = _groups(load(parts, f"band{band}")[members], total)
            self._first[band] = np.where(size > _CROWD, -1, first)
            is_crowded |= size > _CROWD
        crowd = np.flatnonzero(is_crowded)
        if len(crowd):
            _log.info("%d documents share 5-grams with more than %d others: comparing rare 5-grams", len(crowd), _CROWD)
            keys = _rare_shingles(documents, members[crowd].tolist(), similarity)
            first, _, total = _groups(np.concatenate(keys, axis=1).ravel(), total)
            ends = np.cumsum([part.shape[1] for part in keys])
            for member, lists in zip(crowd.tolist(), np.split(first.reshape(2, -1), ends[:-1], axis=1), strict=True):
                self._rare[member] = lists
        self._lists = open_memmap(folder / "lists.npy", "w+", np.int64, (total + 1,))

    def shared(self) -> Int64[np.ndarray, " n"]:
        """Returns the members that are in a group with others."""
        is_shared = np.array((self._first >= 0).any(axis=0))
        is_shared[list(self._rare)] = True
        return np.flatnonzero(is_shared)

    def staying(self, member: int) -> Int64[np.ndarray, " n"]:
        """Returns the members added so far that are in a group of a member, in order."""
        lists = [
            self._lists[first + 1 : first + 1 + self._lists[first]] for first in self._lists_of(member, _LOOKED_UP)
        ]
        return np.unique(np.concatenate([_NONE, *lists]))

    def add(self, member: int) -> None:
        """Adds a member to the lists of its groups."""
        for first in self._lists_of(member, _ADDED):
            self._lists[first] += 1
            self._lists[first + self._lists[first]] = member

    def _lists_of(self, member: int, side: int) -> list[int]:
        lists = np.append(self._first[:, member], self._rare[member][side] if member in self._rare else _NONE)
        return lists[lists >= 0].tolist()


def _groups(keys: UInt64[np.ndarray, " n"], total: int) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], int]:
    """Returns where the list of each key's group begins, -1 for groups of one; their sizes; the end of all lists.

    Args:
      keys: the keys; equal ones are a group.
      total: the end of the lists of other keys.
    """
    _, group, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    entries = np.where(sizes > 1, sizes + 1, 0)
    first = np.where(sizes > 1, total + np.cumsum(entries) - entries, -1)
    return first[group], sizes[group], total + int(entries.sum())


def _rare_shingles(documents: Documents, numbers: Sequence[int], similarity: float) -> list[UInt64[np.ndarray, "2 _"]]:
    """Returns keys of documents: of two similar ones, one is added under a key that the other is looked up by.

    Two sets have at least s / (1 + s) of the sum of their sizes in common. For each class of sizes of the other set, a
    key is one of the rarest shingles, as many as leave fewer than that, with both classes.
    """
    counts = np.zeros(1 << _COUNTER_BITS, np.uint32)  # by the first bits: any order of shingles is correct
    for elements in documents.sets(numbers):
        counts[elements >> _COUNTER_SHIFT] += 1
    keys = []
    for elements in documents.sets(numbers):
        size = len(elements)
        frequency = counts[elements >> _COUNTER_SHIFT]
        order = np.lexsort((elements, frequency))
        order = order[: size - math.ceil(similarity * size - _ROUNDING) + 1]
        rarest = elements[order[frequency[order] > 1]]
        num_unique = int((frequency[order] == 1).sum())
        class_ = _size_class(float(size))
        of_classes = [np.zeros((2, 0), np.uint64)]
        for other in range(_size_class(similarity * size - _ROUNDING), _size_class(size / similarity + _ROUNDING) + 1):
            common = similarity / (1 + similarity) * (size + max(_SIZE_RATIO**other, similarity * size))
            some = rarest[: max(size - math.ceil(common - _ROUNDING) + 1 - num_unique, 0)]
            of_classes.append(
                np.stack([shingles.combined(some, sides) for sides in ((class_, other), (other, class_))])
            )
        keys.append(np.concatenate(of_classes, axis=1))
    return keys


def _size_class(size: float) -> int:
    return math.floor(math.log(max(size, 1)) / math.log(_SIZE_RATIO))
