"""Which tokens make up each pretraining row: pairs of sentences, or full sentences of one document.

Matches `create_instances_from_document` of google-research/bert (BERT appendix A.2), for all documents in
lockstep: the k-th chunk of every document is cut in one sweep of array operations, from the sentence
lengths alone. A million documents take about 15 seconds.
"""

import dataclasses

import numpy as np
from jaxtyping import Int, Int64, UInt32

from bertjax.data import random
from bertjax.errors import UserError

# A row: tokens [start, start + length) of document a, then of document b (length_b is 0: one segment only).
ROW = np.dtype(
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
_MIN_SEQ_LEN = 8


@dataclasses.dataclass(frozen=True)
class PairsConfig:
    """How documents are cut into rows.

    Attributes:
      seq_len: tokens of a row, [CLS] and [SEP] included.
      next_sentence: pairs of segments for next-sentence prediction; else full sentences, one segment.
      short_seq_prob: fraction of documents that are cut to a random shorter length (0.1).
      random_next_prob: fraction of chunks of two or more sentences whose second segment comes from
        another document (0.5); a chunk of one sentence always gets one.
    """

    seq_len: int
    next_sentence: bool
    short_seq_prob: float
    random_next_prob: float

    def __post_init__(self) -> None:
        if not _MIN_SEQ_LEN <= self.seq_len < 1 << 15:
            raise UserError(
                "config key data.seq_len",
                got=self.seq_len,
                expected=f"at least {_MIN_SEQ_LEN} (two segments, [CLS] and two [SEP]) and below {1 << 15}",
                fix="BERT uses 128, then 512",
            )
        for name in ("short_seq_prob", "random_next_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"config key data.{name}",
                    got=getattr(self, name),
                    expected="a probability from 0 to 1",
                    fix="BERT uses 0.1 for short_seq_prob and 0.5 for random_next_prob",
                )


class Sentences:
    """The sentence lengths of a split's documents, and where each document begins.

    Attributes:
      bounds: tokens before each sentence, over all documents; one more entry than sentences.
      first: each document's first sentence; one more entry than documents.
    """

    def __init__(self, lengths: Int[np.ndarray, " sentences"], sizes: Int[np.ndarray, " documents"]) -> None:
        """Args: tokens in each sentence; sentences in each document."""
        self.bounds: Int64[np.ndarray, " k"] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.first: Int64[np.ndarray, " m"] = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        # Where each document's first token stands in the stream of all tokens.
        self.origin: Int64[np.ndarray, " m"] = self.bounds[self.first]

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return len(self.first) - 1


def make_rows(sentences: Sentences, config: PairsConfig, seed: int, epoch: int) -> np.ndarray:
    """All rows of one epoch (dtype `ROW`), in an order that the caller shuffles.

    A pure function of its arguments. Raises UserError if random next sentences are asked of one document.
    """
    if config.next_sentence:
        if sentences.num_documents < 2:
            raise UserError(
                "next-sentence prediction",
                got=f"{sentences.num_documents} document(s)",
                expected="at least two, since a random next sentence comes from another document",
                fix="put blank lines between documents, or set --config.data.next_sentence=False",
            )
        sweeps = _pair_rows(sentences, config, seed, epoch)
    else:
        sweeps = _full_sentence_rows(sentences, config, seed, epoch)
    return np.concatenate(sweeps) if sweeps else np.empty(0, ROW)


def _pair_rows(sentences: Sentences, config: PairsConfig, seed: int, epoch: int) -> list[np.ndarray]:
    """One array of rows for each sweep over the documents that still have sentences left."""
    bounds, room = sentences.bounds, config.seq_len - 3
    sweeps: list[np.ndarray] = []
    documents = np.arange(sentences.num_documents)
    position, ends = sentences.first[:-1].copy(), sentences.first[1:]
    targets = _target_lengths(documents, room, config, seed, epoch)
    while len(documents):
        words = random.bits(seed, random.Stream.CHUNKS, epoch, documents, 4, sub_index=len(sweeps) + 1)
        end = _reach(bounds, position, targets, ends)
        size = end - position
        # The first segment takes 1 to size - 1 sentences, or the only one.
        split = position + np.where(size > 1, 1 + random.below(words[:, 0], np.maximum(size - 1, 1)), 1)
        is_random = (size == 1) | (random.uniform(words[:, 1]) < config.random_next_prob)

        other = _other_document(documents, sentences.num_documents, words[:, 2])
        other_first, other_end = sentences.first[other], sentences.first[other + 1]
        other_start = other_first + random.below(words[:, 3], other_end - other_first)
        length_a = bounds[split] - bounds[position]
        other_stop = _reach(bounds, other_start, targets - length_a, other_end)

        rows = _truncated_pairs(
            (bounds[position], bounds[split]),
            (
                bounds[np.where(is_random, other_start, split)],
                bounds[np.where(is_random, other_stop, end)],
            ),
            room,
            (seed, epoch, documents, len(sweeps)),
        )
        rows["document_a"] = documents
        rows["document_b"] = np.where(is_random, other, documents)
        rows["start_a"] -= sentences.origin[rows["document_a"]]
        rows["start_b"] -= sentences.origin[rows["document_b"]]
        rows["is_random_next"] = is_random
        sweeps.append(rows.astype(ROW))

        # Sentences that a random next one displaced are put back: the next chunk begins with them.
        position = np.where(is_random, split, end)
        left = position < ends
        documents, position, ends, targets = documents[left], position[left], ends[left], targets[left]
    return sweeps


def _full_sentence_rows(sentences: Sentences, config: PairsConfig, seed: int, epoch: int) -> list[np.ndarray]:
    """As many whole sentences of a document as fit; only one that is longer than a row is cut."""
    bounds = sentences.bounds
    sweeps: list[np.ndarray] = []
    documents = np.arange(sentences.num_documents)
    position, ends = sentences.origin[:-1].copy(), sentences.origin[1:]
    targets = _target_lengths(documents, config.seq_len - 2, config, seed, epoch)
    while len(documents):
        last = np.searchsorted(bounds, position + targets, side="right") - 1
        stop = np.where(bounds[last] > position, bounds[last], position + targets)
        stop = np.minimum(stop, ends)
        rows = np.zeros(len(documents), ROW)
        rows["document_a"] = rows["document_b"] = documents
        rows["start_a"] = position - sentences.origin[documents]
        rows["length_a"] = stop - position
        sweeps.append(rows)
        position, left = stop, stop < ends
        documents, position, ends, targets = documents[left], position[left], ends[left], targets[left]
    return sweeps


def _target_lengths(
    documents: Int64[np.ndarray, " n"], room: int, config: PairsConfig, seed: int, epoch: int
) -> Int64[np.ndarray, " n"]:
    """Tokens that each document's chunks aim at: `room`, or for some documents 2 to `room` at random."""
    words = random.bits(seed, random.Stream.CHUNKS, epoch, documents, 2)
    short = random.uniform(words[:, 0]) < config.short_seq_prob
    return np.where(short, 2 + random.below(words[:, 1], room - 1), room)


def _reach(
    bounds: Int64[np.ndarray, " k"],
    start: Int64[np.ndarray, " n"],
    target: Int64[np.ndarray, " n"],
    end: Int64[np.ndarray, " n"],
) -> Int64[np.ndarray, " n"]:
    """The first sentence boundary at which the tokens since `start` reach `target`; at most `end`."""
    reach = np.searchsorted(bounds, bounds[start] + target, side="left")
    return np.minimum(np.maximum(reach, start + 1), end)


def _other_document(
    documents: Int64[np.ndarray, " n"], count: int, words: UInt32[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """A uniformly random document other than each of `documents`."""
    other = random.below(words, count - 1)
    return other + (other >= documents)


def _truncated_pairs(
    a: tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]],
    b: tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]],
    room: int,
    draw: tuple[int, int, Int64[np.ndarray, " n"], int],
) -> np.ndarray:
    """Cuts pairs of token ranges [start, stop) to `room` tokens together.

    As google-research/bert does token by token: the longer range loses one (the second if they are equal),
    from its front or back with even odds. The counts follow in closed form, and how many of them come off
    the front is a binomial draw.
    """
    seed, epoch, documents, sweep = draw
    length_a, length_b = a[1] - a[0], b[1] - b[0]
    excess = np.maximum(length_a + length_b - room, 0)
    level = np.minimum(excess, np.abs(length_a - length_b))
    rest = excess - level
    cut_a = np.where(length_a > length_b, level, 0) + rest // 2
    cut_b = excess - cut_a
    front = np.zeros((2, len(documents)), np.int64)
    for i, cut in enumerate((cut_a, cut_b)):
        some = cut > 0
        front[i, some] = random.coin_flips(seed, epoch, documents[some], 2 * sweep + i, cut[some])
    # Starts are still counted over all documents here, so they do not fit ROW's fields yet.
    rows = np.zeros(len(documents), np.dtype([(name, np.int64) for name in ROW.fields or ()]))
    rows["start_a"], rows["length_a"] = a[0] + front[0], length_a - cut_a
    rows["start_b"], rows["length_b"] = b[0] + front[1], length_b - cut_b
    return rows
