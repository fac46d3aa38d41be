"""Pairs of token sequences as rows of batches, one to a row or several."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int64

from bertjax.data.buckets import BucketedBatches
from bertjax.data.packing import Packing, make_recipes, pack

Indices = Int64[np.ndarray, " n"]
# Of each side: its tokens, which pair they are of, and where in it they stand.
_FIELDS = (
    ("input_ids", "segment_ids", "position_ids"),
    ("labels", "target_segment_ids", "target_position_ids"),
)
_PACKED = 2  # a part of the permutation's stream; 0 and 1 shuffle rows and batches


class PairRows:
    """Pairs held one after another, each a row.

    Attributes:
      lengths: of the rows: the longer side of each pair.
    """

    def __init__(self, rows: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Args: at least one; each has `input_ids` [S] and `labels` [T], neither of them empty."""
        arrays: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        for row in rows:
            for side, (tokens, _, _) in zip(arrays, _FIELDS, strict=True):
                side.append(row[tokens])
        self._sides = [_Side(side) for side in arrays]
        self.lengths = np.maximum(*(side.lengths for side in self._sides))
        self._each = np.arange(len(self.lengths) + 1)

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """The pairs of some indices, padded with zeros to `length`; an index of -1 stands for an empty row.

        Returns:
          input_ids, labels [B, S] int32, S being `length`; segment_ids, target_segment_ids [B, S] int32, 1 at
          tokens and 0 at padding; weights [B] float32, 0 for empty rows.
        """
        batch = self.packed(self._each, self._each, indices, length)
        positions = {positions for _, _, positions in _FIELDS}
        return {name: array for name, array in batch.items() if name not in positions}

    def packed(
        self,
        starts: Int64[np.ndarray, " rows_and_1"],
        order: Int64[np.ndarray, " pairs"],
        indices: Indices,
        length: int,
    ) -> dict[str, np.ndarray]:
        """Rows of several pairs, see `PackedPairRows.padded`.

        Args:
          starts: where in `order` the pairs of each row begin and, last, where those of the last row end.
          order: the pairs, row by row.
          indices: of the rows.
          length: of the rows.
        """
        sizes = np.where(indices < 0, 0, starts[indices + 1] - starts[indices])
        number = _counting(sizes)  # of each pair in its row
        pairs = order[np.repeat(starts[indices], sizes) + number]
        rows = np.repeat(np.arange(len(indices)) * length, sizes)
        batch: dict[str, np.ndarray] = {"weights": (indices >= 0).astype(np.float32)}
        for side, names in zip(self._sides, _FIELDS, strict=True):
            lengths = side.lengths[pairs]
            before = np.cumsum(lengths) - lengths
            places = rows + before - np.repeat(before[number == 0], sizes[sizes > 0])
            inside = _counting(lengths)
            there = np.repeat(places, lengths) + inside
            for name, values in zip(names, (side.tokens(pairs), np.repeat(number + 1, lengths), inside), strict=True):
                flat = np.zeros(len(indices) * length, np.int32)
                flat[there] = values
                batch[name] = flat.reshape(-1, length)
        return batch


class PackedPairRows:
    """The pairs of one epoch, several to a row: as many as have room on both sides, where the longer side counts.

    Which pairs go together is a pure function of (seed, epoch); how many rows there are follows from the lengths
    alone (see `packing`).

    Attributes:
      lengths: of the rows, an upper bound.
    """

    def __init__(self, pairs: PairRows, packing: Packing, seed: int, epoch: int) -> None:
        """Args: pairs, none longer than a row; what a row holds (see `row_of_pairs`); what draws who goes where."""
        assert pairs.lengths.max() <= packing.tokens
        row = pack(pairs.lengths, packing, seed, epoch, _PACKED)
        self._pairs = pairs
        self._order = np.argsort(row, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(row))])
        self.lengths = np.add.reduceat(pairs.lengths[self._order], self._starts[:-1])

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """The rows of some indices, padded with zeros to `length`; an index of -1 stands for an empty row.

        Returns:
          input_ids, labels [B, S] int32, S being `length`, pair after pair on each side; segment_ids,
          target_segment_ids [B, S] int32, the pair's number in its row from 1 on, 0 at padding; position_ids,
          target_position_ids [B, S] int32, from 0 in each pair; weights [B] float32, 0 for empty rows.
        """
        return self._pairs.packed(self._starts, self._order, indices, length)


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """Training batches of packed rows, which each epoch packs anew; as `BucketedBatches` otherwise.

    Attributes:
      pairs: what to train on.
      packing: what a row holds.
      batch_size: rows of a global batch.
      seed: of the packing and the order.
    """

    pairs: PairRows
    packing: Packing
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, which are as many in each."""
        counts = np.bincount(self.pairs.lengths, minlength=self.packing.tokens + 1)
        return -(-sum(recipe.rows for recipe in make_recipes(counts, self.packing)) // self.batch_size)

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Rows `rows` of the global batch of each step from `start` on, without end."""
        steps = self.steps_per_epoch
        for epoch in itertools.count(start // steps):
            packed = PackedPairRows(self.pairs, self.packing, self.seed, epoch)
            batches = BucketedBatches(packed, (self.packing.tokens,), (self.batch_size,), self.seed)
            first = max(start, epoch * steps)
            yield from itertools.islice(batches.training(first, rows), (epoch + 1) * steps - first)


@dataclasses.dataclass(frozen=True)
class StreamBatches:
    """Training batches of pairs without end, each taken once, so that there are no epochs.

    Attributes:
      rows: from a pair's number to the rows from that one on.
      length: of the rows.
      batch_size: rows of a global batch.
    """

    rows: Callable[[int], Iterator[Mapping[str, np.ndarray]]]
    length: int
    batch_size: int

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Rows `rows` of the global batch of each step from `start` on, without end."""
        stream = self.rows(start * self.batch_size)
        while True:
            yield PairRows(itertools.islice(stream, self.batch_size)).padded(rows, self.length)


def row_of_pairs(length: int, pairs: int) -> Packing:
    """A row of so many tokens on each side, and so many pairs at most."""
    return Packing(tokens=length, predictions=pairs, segments=pairs, wanted=(1,) * (length + 1))


class _Side:
    """Sequences held one after another."""

    def __init__(self, sequences: Sequence[np.ndarray]) -> None:
        self.lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        assert self.lengths.all(), "a row without tokens"
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._ids = np.concatenate(sequences)

    def tokens(self, numbers: Indices) -> np.ndarray:
        """The tokens of the sequences of these numbers, one after another."""
        lengths = self.lengths[numbers]
        return self._ids[np.repeat(self._starts[numbers], lengths) + _counting(lengths)]


def _counting(sizes: Indices) -> Int64[np.ndarray, " total"]:
    """0, 1, ... up to each size.

    >>> _counting(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
