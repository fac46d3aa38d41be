"""Computes the tokens of each pretraining instance: pairs of segments, or one segment of a document.

Equal to `create_instances_from_document` of google-research/bert (BERT appendix A.2), but computed from sentence
lengths alone, for many documents at once. The draws of a chunk are keyed by its first sentence, so the end of the
chunk that would start at each sentence is computed for all sentences at once. Only the walk from chunk to chunk is
sequential.
"""

import copy
import dataclasses
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt32

from bertjax.config import Constrained, always, at_least
from bertjax.data import random
from bertjax.data.rows.layout import positions_in_groups
from bertjax.errors import UserError

# An instance: tokens [start, start + length) of document a, then of document b. length_b is 0 for one segment.
# No two instances of an epoch start at the same token of the same document.
INSTANCE = np.dtype(
    [
        ("document_a", np.int32),
        ("start_a", np.int32),
        ("length_a", np.int16),
        ("document_b", np.int32),
        ("start_b", np.int32),
        ("length_b", np.int16),
        ("is_random_next", np.bool_),
    ]
)
MIN_SEQ_LEN = 8
# Token offsets are kept in memory for every 16th sentence.
_STRIDE = 16
# Chunks are converted to instances in parts of this size, whose arrays fit in the cache.
_PART = 1 << 14


@dataclasses.dataclass(frozen=True)
class PairsConfig(Constrained, prefix="data"):
    """The division of documents into instances.

    Attributes:
      seq_len: the maximum number of tokens of an instance, including special tokens. Default: 128, or the model's
        positions if fewer.
      next_sentence: whether an instance is a pair of segments for next-sentence prediction; otherwise one segment.
      whole_sentences: whether a single segment ends with the last sentence that fits, instead of a part of the next
        one.
      short_seq_prob: the fraction of documents with a random shorter target length.
      random_next_prob: the fraction of chunks of two or more sentences whose second segment comes from another
        document; that of a chunk of one sentence always does.
    """

    seq_len: Annotated[int, at_least(MIN_SEQ_LEN, below=1 << 15)] = always(None)
    next_sentence: bool = always(True)
    whole_sentences: bool = always(False)
    short_seq_prob: Annotated[float, at_least(0, at_most=1)] = always(0.1)
    random_next_prob: Annotated[float, at_least(0, at_most=1)] = always(0.5)

    @property
    def num_texts(self) -> int:
        """The number of segments of an instance."""
        return 2 if self.next_sentence else 1


class Sentences:
    """The sentence lengths of a split's documents, and the first sentence of each document.

    Attributes:
      lengths: the number of tokens in each sentence of all documents; may be a memory map larger than memory.
      first: the index of each document's first sentence, and the number of sentences at the end.
      documents: the sorted numbers of the documents that take part; None for all.
    """

    def __init__(self, lengths: Int[np.ndarray, " sentences"], sizes: Int[np.ndarray, " documents"]) -> None:
        """Indexes the sentences.

        Args:
          lengths: the number of tokens in each sentence.
          sizes: the number of sentences in each document.
        """
        self.lengths = np.asarray(lengths)  # a plain array, or view of a memory map
        self.first: Int64[np.ndarray, " m"] = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        end = len(lengths) // _STRIDE * _STRIDE
        sums = lengths[:end].reshape(-1, _STRIDE).sum(axis=1, dtype=np.int64)
        self._marks: Int64[np.ndarray, " k"] = np.concatenate([[0], np.cumsum(sums)])
        self.documents: Int64[np.ndarray, " n"] | None = None

    def without(self, documents: Int64[np.ndarray, " n"]) -> "Sentences":
        """Returns the same sentences, in which some documents do not take part. The others keep their numbers."""
        sentences = copy.copy(self)
        sentences.documents = np.setdiff1d(np.arange(len(self.first) - 1), documents, assume_unique=True)
        return sentences

    @property
    def num_documents(self) -> int:
        """The number of documents that take part."""
        return len(self.first) - 1 if self.documents is None else len(self.documents)

    def numbers(self, places: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Returns the numbers of documents, by their places among those that take part."""
        return places if self.documents is None else self.documents[places]

    def places(self, numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Returns the places of documents that take part; the inverse of `numbers`."""
        return numbers if self.documents is None else np.searchsorted(self.documents, numbers)

    def tokens_before(self, sentences: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Returns the number of tokens of all documents before each of `sentences`."""
        mark, rest = np.divmod(sentences, _STRIDE)
        steps = np.arange(_STRIDE - 1)[:, None]
        lengths = self.lengths[np.minimum(sentences - rest + steps, len(self.lengths) - 1)]
        return self._marks[mark] + np.where(steps < rest, lengths, 0).sum(axis=0, dtype=np.int64)

    def tokens_from(
        self, start: Int64[np.ndarray, " n"], target: Int64[np.ndarray, " n"], end: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """Returns the tokens from sentence `start` on, by whole sentences, until `target` tokens or sentence `end`."""
        tokens = self.lengths[start].astype(np.int64)
        at = start + 1
        some = np.arange(len(start))
        while len(some := some[(tokens[some] < target[some]) & (at[some] < end[some])]):
            tokens[some] += self.lengths[at[some]]
            at[some] += 1
        return tokens

    def of_tokens(
        self, documents: Int64[np.ndarray, " n"], starts: Int64[np.ndarray, " n"], lengths: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " tokens"]:
        """Returns a number of the sentence of each token of segments of documents.

        Numbers increase, and no two segments share one.
        """
        sizes = self.first[documents + 1] - self.first[documents]
        numbers = np.repeat(self.first[documents], sizes) + positions_in_groups(sizes)
        bounds = np.concatenate([[0], np.cumsum(self.lengths[numbers], dtype=np.int64)])
        before = bounds[np.cumsum(sizes) - sizes] + starts
        return np.searchsorted(bounds, np.repeat(before, lengths) + positions_in_groups(lengths), side="right")


def lengths_of(instances: np.ndarray, num_special: int) -> Int64[np.ndarray, " n"]:
    """Returns the number of tokens of instances (dtype `INSTANCE`) with `num_special` special tokens each."""
    return instances["length_a"].astype(np.int64) + instances["length_b"] + num_special


def make_instances(
    sentences: Sentences,
    documents: Int64[np.ndarray, " m"],
    config: PairsConfig,
    num_special: int,
    seed: int,
    epoch: int,
) -> np.ndarray:
    """Returns all instances of some documents in one epoch (dtype `INSTANCE`), in the order of the text.

    A pure function of its arguments. The instances of a document do not depend on the other documents requested.

    Args:
      sentences: the sentences of all documents.
      documents: the numbers of the documents.
      config: the division of documents into instances.
      num_special: the number of special tokens of an instance, such as [CLS] and [SEP].
      seed: the seed of all draws.
      epoch: the epoch.
    Raises:
      UserError: if next-sentence prediction is on and there is only one document.
    """
    if config.next_sentence and sentences.num_documents < 2:
        raise UserError(
            "next-sentence prediction",
            got=f"{sentences.num_documents} document(s)",
            expected="at least two, because a random next sentence comes from another document",
            fix="put blank lines between documents, or set --config.data.next_sentence=False",
        )
    text = _Text.of(sentences, documents)
    room = config.seq_len - num_special
    targets = _target_lengths(documents, room, config.short_seq_prob, seed, epoch)
    if not config.next_sentence:
        return _full_sentences(text, targets, room) if config.whole_sentences else _pieces(text, targets)
    chunks = _chunks(text, targets, config, seed, epoch)
    parts = [
        _pairs(sentences, _Chunks(*(field[begin : begin + _PART] for field in chunks)), room, seed, epoch)
        for begin in range(0, len(chunks.document), _PART)
    ]
    return np.concatenate([np.empty(0, INSTANCE), *parts])


class _Text(NamedTuple):
    """The sentences of some documents, concatenated."""

    documents: Int64[np.ndarray, " m"]
    first: Int64[np.ndarray, " M"]  # the index of each document's first sentence; M = m + 1
    owner: Int64[np.ndarray, " k"]  # the index in `documents` of each sentence's document
    bounds: Int64[np.ndarray, " K"]  # the number of tokens before each sentence; K = k + 1

    @classmethod
    def of(cls, sentences: Sentences, documents: Int64[np.ndarray, " m"]) -> "_Text":
        """Collects the sentences of documents."""
        sizes = sentences.first[documents + 1] - sentences.first[documents]
        numbers = np.repeat(sentences.first[documents], sizes) + positions_in_groups(sizes)
        bounds = np.concatenate([[0], np.cumsum(sentences.lengths[numbers], dtype=np.int64)])
        first = np.concatenate([[0], np.cumsum(sizes)])
        return cls(documents, first, np.repeat(np.arange(len(documents)), sizes), bounds)

    def cut(self, longest: int) -> "_Text":
        """Returns the same text, with longer sentences divided into pieces of `longest` tokens and a rest."""
        pieces = -(-np.diff(self.bounds) // longest)
        starts = np.repeat(self.bounds[:-1], pieces) + longest * positions_in_groups(pieces)
        first = np.concatenate([[0], np.cumsum(pieces)])[self.first]
        return _Text(self.documents, first, np.repeat(self.owner, pieces), np.append(starts, self.bounds[-1]))

    def walk(self, following: Int64[np.ndarray, " k"]) -> Int64[np.ndarray, " n"]:
        """Returns the sentences visited by walking through each document from sentence i to sentence following[i]."""
        is_reached = np.zeros(len(following), bool)
        at = self.first[:-1]
        ends = self.first[1:]
        while len(at):
            is_inside = at < ends
            at = at[is_inside]
            ends = ends[is_inside]
            is_reached[at] = True
            at = following[at]
        return np.flatnonzero(is_reached)


class _Chunks(NamedTuple):
    """Runs of sentences, and their draws. Token offsets are relative to the document."""

    document: Int64[np.ndarray, " n"]
    sentence: Int64[np.ndarray, " n"]  # the number of the first sentence in the document
    start: Int64[np.ndarray, " n"]  # the offset of the first segment
    split: Int64[np.ndarray, " n"]  # the offset of the second segment
    end: Int64[np.ndarray, " n"]  # the offset of the end of the second segment
    target: Int64[np.ndarray, " n"]
    is_random: Bool[np.ndarray, " n"]  # whether text of another document replaces the second segment
    words: UInt32[np.ndarray, "n 2"]  # random words that select that text


def _chunks(text: _Text, targets: Int64[np.ndarray, " m"], config: PairsConfig, seed: int, epoch: int) -> _Chunks:
    """Returns the chunks of google-research/bert: sentences up to the target length, split in two at random."""
    start = np.arange(len(text.owner))
    target = targets[text.owner]
    document = text.documents[text.owner]
    sentence = start - text.first[text.owner]
    words = random.bits(seed, random.Stream.CHUNKS, epoch, document, 4, 1 + sentence)
    end = np.searchsorted(text.bounds, text.bounds[:-1] + target, side="left")
    end = np.minimum(np.maximum(end, start + 1), text.first[1:][text.owner])
    size = end - start
    # The first segment has 1 to size - 1 sentences, or the only one.
    split = start + np.where(size > 1, 1 + random.below(words[:, 0], np.maximum(size - 1, 1)), 1)
    is_random = (size == 1) | (random.uniform(words[:, 1]) < config.random_next_prob)
    # The next chunk starts with the sentences that a random next segment replaced.
    some = text.walk(np.where(is_random, split, end))
    origin = text.bounds[text.first[text.owner[some]]]
    start, split, end = (text.bounds[index[some]] - origin for index in (start, split, end))
    return _Chunks(document[some], sentence[some], start, split, end, target[some], is_random[some], words[some, 2:])


def _pairs(sentences: Sentences, chunks: _Chunks, room: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the instances of chunks. The second segment is the actual next or a random one; both are truncated."""
    document_b = chunks.document.copy()
    chosen = chunks.is_random
    starts = np.stack([chunks.start, chunks.split])
    lengths = np.stack([chunks.split, chunks.end]) - starts
    document_b[chosen], starts[1, chosen], lengths[1, chosen] = _random_next(
        sentences, chunks.document[chosen], (chunks.target - lengths[0])[chosen], chunks.words[chosen]
    )
    cuts = _cuts(lengths, room)
    starts += random.coin_flips(seed, epoch, chunks.document, 1 + chunks.sentence, cuts)
    lengths -= cuts
    instances = np.empty(len(chosen), INSTANCE)
    instances["document_a"], instances["document_b"] = chunks.document, document_b
    instances["start_a"], instances["start_b"] = starts
    instances["length_a"], instances["length_b"] = lengths
    instances["is_random_next"] = chosen
    return instances


def _random_next(
    sentences: Sentences,
    documents: Int64[np.ndarray, " n"],
    targets: Int64[np.ndarray, " n"],
    words: UInt32[np.ndarray, "n 2"],
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Returns a random other document, the tokens before a random sentence of it, and the tokens up to the target."""
    other = random.below(words[:, 0], sentences.num_documents - 1)
    other += other >= sentences.places(documents)
    other = sentences.numbers(other)
    first = sentences.first[other]
    end = sentences.first[other + 1]
    start = first + random.below(words[:, 1], end - first)
    before = sentences.tokens_before(start) - sentences.tokens_before(first)
    return other, before, sentences.tokens_from(start, targets, end)


def _cuts(lengths: Int64[np.ndarray, "2 n"], room: int) -> Int64[np.ndarray, "2 n"]:
    """Returns how many tokens each of two segments loses, so that both fit into `room` tokens.

    google-research/bert removes token by token from the longer segment (the second if they are equal), at its front or
    back with equal probability. The counts have a closed form, and the number removed at the front is binomial.
    """
    longer = lengths[0] - lengths[1]
    excess = np.maximum(lengths[0] + lengths[1] - room, 0)
    level = np.minimum(excess, np.abs(longer))
    of_first = np.where(longer > 0, level, 0) + (excess - level) // 2
    return np.stack([of_first, excess - of_first])


def _full_sentences(text: _Text, targets: Int64[np.ndarray, " m"], room: int) -> np.ndarray:
    """Returns segments of as many whole sentences as the target holds, at least one. Only longer sentences are cut."""
    text = text.cut(room)
    following = np.searchsorted(text.bounds, text.bounds[:-1] + targets[text.owner], side="right") - 1
    following = np.maximum(following, np.arange(len(following)) + 1)
    following = np.minimum(following, text.first[1:][text.owner])
    some = text.walk(following)
    owner = text.owner[some]
    start = text.bounds[some]
    return _of_one_segment(
        text.documents[owner], start - text.bounds[text.first[owner]], text.bounds[following[some]] - start
    )


def _pieces(text: _Text, targets: Int64[np.ndarray, " m"]) -> np.ndarray:
    """Returns segments of exactly the target length, regardless of sentence ends. A document's last may be shorter."""
    sizes = np.diff(text.bounds[text.first])
    counts = -(-sizes // targets)
    start = np.repeat(targets, counts) * positions_in_groups(counts)
    lengths = np.minimum(np.repeat(targets, counts), np.repeat(sizes, counts) - start)
    return _of_one_segment(np.repeat(text.documents, counts), start, lengths)


def _of_one_segment(
    documents: Int64[np.ndarray, " n"], start: Int64[np.ndarray, " n"], lengths: Int64[np.ndarray, " n"]
) -> np.ndarray:
    instances = np.zeros(len(documents), INSTANCE)
    instances["document_a"] = instances["document_b"] = documents
    instances["start_a"], instances["length_a"] = start, lengths
    return instances


def _target_lengths(
    documents: Int64[np.ndarray, " m"], room: int, short_seq_prob: float, seed: int, epoch: int
) -> Int64[np.ndarray, " m"]:
    """Returns the target number of tokens for a document's chunks: the maximum, or for some documents a random one."""
    words = random.bits(seed, random.Stream.CHUNKS, epoch, documents, 2)
    short = random.uniform(words[:, 0]) < short_seq_prob
    return np.where(short, 2 + random.below(words[:, 1], room - 1), room)
