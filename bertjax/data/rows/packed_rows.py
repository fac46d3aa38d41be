"""Training batches of packed rows: several instances per row of a fixed length, packed again in each epoch."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Int64

from bertjax.data.rows.buckets import BucketedBatches, Padded, max_examples
from bertjax.data.rows.layout import positions_in_groups
from bertjax.data.rows.packing import Packing, make_recipes, pack

Indices = Int64[np.ndarray, " n"]
_PACKED = 2  # a part of the permutation's stream; 0 and 1 shuffle rows and batches


@runtime_checkable
class Packable(Protocol):
    """Instances that can share a row."""

    @property
    def lengths(self) -> Indices:
        """The length of each instance."""

    def packed(self, instances: Indices, sizes: Int64[np.ndarray, " rows"], length: int) -> dict[str, np.ndarray]:
        """Returns the packed rows of a batch.

        Args:
          instances: the instances, row after row.
          sizes: the number of instances of each row; a row without instances has weight 0.
          length: the length to which rows are padded.
        """


class PackedRows:
    """The packed rows of one epoch.

    The assignment of instances to rows is a pure function of (seed, epoch). The number of rows depends only on the
    lengths (see `packing`).

    Attributes:
      lengths: an upper bound on the length of each row.
    """

    def __init__(self, instances: Packable, packing: Packing, seed: int, epoch: int) -> None:
        """Packs the instances.

        Args:
          instances: the instances; none is longer than a row.
          packing: the capacity of a row (see `row_capacity`).
          seed: the seed of the assignment.
          epoch: the epoch.
        """
        assert instances.lengths.max() <= packing.tokens
        row = pack(instances.lengths, packing, seed, epoch, _PACKED)
        self._instances = instances
        self._order = np.argsort(row, kind="stable")
        self._sizes = np.bincount(row)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.lengths = np.add.reduceat(instances.lengths[self._order], self._starts)

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """Returns rows by index, padded with zeros to `length`. The index -1 is an empty row."""
        sizes = np.where(indices < 0, 0, self._sizes[indices])
        chosen = np.repeat(self._starts[indices], sizes) + positions_in_groups(sizes)
        return self._instances.packed(self._order[chosen], sizes, length)


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """Training batches of packed rows. Each epoch is packed again; otherwise like `BucketedBatches`.

    Attributes:
      instances: the training instances.
      packing: the capacity of a row.
      batch_size: rows per global batch.
      seed: the seed of the packing and the order.
    """

    instances: Packable
    packing: Packing
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch; the same in every epoch."""
        return -(-_num_rows(self.instances.lengths, self.packing) // self.batch_size)

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Yields the rows `rows` of the global batch of each step from `start` on, without end."""
        steps = self.steps_per_epoch
        for epoch in itertools.count(start // steps):
            packed = PackedRows(self.instances, self.packing, self.seed, epoch)
            batches = BucketedBatches(packed, (self.packing.tokens,), (self.batch_size,), self.seed)
            first = max(start, epoch * steps)
            yield from itertools.islice(batches.training(first, rows), (epoch + 1) * steps - first)


def training_batches(
    rows: Padded, lengths: Sequence[int], packing: bool, batch_size: int, seed: int
) -> BucketedBatches | PackedBatches:
    """Returns fine-tuning batches of rows with one example or, packed, several; `lengths` are those of the buckets.

    Every bucket has `batch_size` rows per batch. With `packing`, all rows have the last length, and `rows` must also be
    `Packable`, as `Rows` are.
    """
    if packing:
        capacity = row_capacity(lengths[-1], max_examples(lengths[-1]))
        return PackedBatches(cast(Packable, rows), capacity, batch_size, seed)
    return BucketedBatches(rows, lengths, [batch_size] * len(lengths), seed)


def count_rows(lengths: Indices, length: int, packing: bool) -> int:
    """Returns the number of rows in an epoch of `training_batches`, for examples of these lengths."""
    return _num_rows(lengths, row_capacity(length, max_examples(length))) if packing else len(lengths)


def row_capacity(length: int, instances: int) -> Packing:
    """Returns a capacity of `length` tokens (of pairs: on each side) and at most `instances` instances."""
    return Packing(tokens=length, predictions=instances, segments=instances, per_instance=(1,) * (length + 1))


def _num_rows(lengths: Indices, packing: Packing) -> int:
    """Returns the number of rows that instances of these lengths are packed into, in any epoch."""
    counts = np.bincount(lengths, minlength=packing.tokens + 1)
    return sum(recipe.rows for recipe in make_recipes(counts, packing))
