"""Training batches of packed rows: several instances to a row of one length, packed anew in each epoch."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Int64

from bertjax.data.rows.buckets import BucketedBatches, Padded, bucket_lengths, examples_in
from bertjax.data.rows.layout import places_in_groups
from bertjax.data.rows.packing import Packing, make_recipes, pack

Indices = Int64[np.ndarray, " n"]
_PACKED = 2  # a part of the permutation's stream; 0 and 1 shuffle rows and batches


@runtime_checkable
class Packable(Protocol):
    """Instances that can share rows."""

    @property
    def lengths(self) -> Indices:
        """Of the instances."""

    def packed(self, instances: Indices, sizes: Int64[np.ndarray, " rows"], length: int) -> dict[str, np.ndarray]:
        """The rows of a batch.

        Args:
          instances: which they hold, row after row.
          sizes: how many each row has; a row of none has weight 0.
          length: of the rows.
        """


class PackedRows:
    """The instances of one epoch, several to a row.

    Which of them go together is a pure function of (seed, epoch); how many rows there are follows from the lengths
    alone (see `packing`).

    Attributes:
      lengths: of the rows, an upper bound.
    """

    def __init__(self, instances: Packable, packing: Packing, seed: int, epoch: int) -> None:
        """Args: instances, none longer than a row; what a row holds (see `row_of`); what draws who goes where."""
        assert instances.lengths.max() <= packing.tokens
        row = pack(instances.lengths, packing, seed, epoch, _PACKED)
        self._instances = instances
        self._order = np.argsort(row, kind="stable")
        self._sizes = np.bincount(row)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.lengths = np.add.reduceat(instances.lengths[self._order], self._starts)

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """The rows of some indices, padded with zeros to `length`; an index of -1 stands for an empty row."""
        sizes = np.where(indices < 0, 0, self._sizes[indices])
        chosen = np.repeat(self._starts[indices], sizes) + places_in_groups(sizes)
        return self._instances.packed(self._order[chosen], sizes, length)


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """Training batches of packed rows, which each epoch packs anew; as `BucketedBatches` otherwise.

    Attributes:
      instances: what to train on.
      packing: what a row holds.
      batch_size: rows of a global batch.
      seed: of the packing and the order.
    """

    instances: Packable
    packing: Packing
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, which are as many in each."""
        return -(-_num_rows(self.instances.lengths, self.packing) // self.batch_size)

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Rows `rows` of the global batch of each step from `start` on, without end."""
        steps = self.steps_per_epoch
        for epoch in itertools.count(start // steps):
            packed = PackedRows(self.instances, self.packing, self.seed, epoch)
            batches = BucketedBatches(packed, (self.packing.tokens,), (self.batch_size,), self.seed)
            first = max(start, epoch * steps)
            yield from itertools.islice(batches.training(first, rows), (epoch + 1) * steps - first)


def training_batches(
    rows: Padded, length: int, packing: bool, batch_size: int, seed: int
) -> BucketedBatches | PackedBatches:
    """Batches to fine-tune on: of rows up to `length`, of one example or of several; as many rows of each length.

    Those that are packed have to be `Packable` too, as `Rows` are.
    """
    if packing:
        return PackedBatches(cast(Packable, rows), row_of(length, examples_in(length)), batch_size, seed)
    lengths = bucket_lengths(length)
    return BucketedBatches(rows, lengths, [batch_size] * len(lengths), seed)


def count_rows(lengths: Indices, length: int, packing: bool) -> int:
    """How many rows an epoch of `training_batches` has, for examples of these lengths."""
    return _num_rows(lengths, row_of(length, examples_in(length))) if packing else len(lengths)


def row_of(length: int, instances: int) -> Packing:
    """A row of so many tokens (of pairs: on each side), and so many instances at most."""
    return Packing(tokens=length, predictions=instances, segments=instances, wanted=(1,) * (length + 1))


def _num_rows(lengths: Indices, packing: Packing) -> int:
    """How many rows instances of these lengths are packed into, in any epoch."""
    counts = np.bincount(lengths, minlength=packing.tokens + 1)
    return sum(recipe.rows for recipe in make_recipes(counts, packing))
