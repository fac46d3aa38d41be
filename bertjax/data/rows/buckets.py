"""Batches of rows of many lengths, in few static shapes: a pure function of (seed, step)."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Int64

from bertjax.data.random import permutation
from bertjax.data.rows.layout import Layout
from bertjax.data.rows.stored import Fields, Ragged, Row, fields_of
from bertjax.errors import UserError

Indices = Int64[np.ndarray, " n"]
# Each takes seconds to compile, where there are rows for it; fewer of them would mean more padding.
_LENGTHS = (8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
_SHUFFLED_ROWS, _SHUFFLED_BATCHES = 0, 1  # parts of the permutation's stream
# A packed row has room for an example every so many tokens: few sets have shorter ones on average.
_TOKENS_PER_EXAMPLE = 4


def bucket_lengths(limit: int) -> tuple[int, ...]:
    """The lengths that rows of up to `limit` tokens are padded to; a compiled program each.

    >>> bucket_lengths(100)
    (8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100)
    """
    return (*(length for length in _LENGTHS if length < limit), limit)


def budget_sizes(lengths: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """The rows of a batch of each length, if all batches shall hold about as many tokens as one of the longest.

    Multiples of `batch_size`, the rows of the longest, so that they divide over devices as those do.

    >>> budget_sizes((16, 48, 64), 8)
    (32, 8, 8)
    """
    return tuple(batch_size * (lengths[-1] // length) for length in lengths)


def examples_in(length: int) -> int:
    """How many examples a packed row of so many tokens has room for."""
    return -(-length // _TOKENS_PER_EXAMPLE)


@runtime_checkable
class Padded(Protocol):
    """Rows of different lengths."""

    @property
    def lengths(self) -> Indices:
        """Of the rows."""

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """The rows of some indices, padded to `length`; an index of -1 stands for an empty row of weight 0."""


class Rows:
    """Rows of different lengths.

    Attributes:
      lengths: the length of each row.
      fields: the names of the fields, "input_ids" among them.
    """

    def __init__(self, fields: Fields) -> None:
        """Initializes the rows.

        Args:
          fields: the fields of at least one row. "input_ids" gives the lengths of all `Ragged` fields.
        """
        self.fields = tuple(fields)
        self._ragged = {name: field.values for name, field in fields.items() if isinstance(field, Ragged)}
        self._scalars = {name: field for name, field in fields.items() if isinstance(field, np.ndarray)}
        self.lengths = cast(Ragged, fields["input_ids"]).lengths.astype(np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Rows":
        """Builds at least one row. All rows have the same fields."""
        return cls(fields_of(rows))

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """The rows of some indices, padded with zeros to `length`; an index of -1 stands for an empty row.

        Returns:
          the fields; segment_ids [B, S] int32, 1 at tokens and 0 at padding; weights [B] float32, 0 for empty rows.
        """
        lengths = np.where(indices < 0, 0, self.lengths[indices])
        inside = np.arange(length) < lengths[:, None]
        places = (self._starts[indices][:, None] + np.arange(length))[inside]
        batch = {"segment_ids": inside.astype(np.int32), "weights": (indices >= 0).astype(np.float32)}
        for name, values in self._ragged.items():
            batch[name] = np.zeros(inside.shape, values.dtype)
            batch[name][inside] = values[places]
        for name, values in self._scalars.items():
            batch[name] = np.where(indices < 0, np.zeros((), values.dtype), values[indices])
        return batch

    def packed(self, instances: Indices, sizes: Int64[np.ndarray, " rows"], length: int) -> dict[str, np.ndarray]:
        """Rows of several of these rows, the examples, padded with zeros to `length`; see `packed_rows.Packable`.

        Returns, for B rows of S tokens with room for E = `examples_in(S)` examples each:
          of tokens [B, S]: the fields; segment_ids int32, the example's number in its row from 1 on, 0 at padding;
          position_ids int32, from 0 in each example;
          of examples [B, E]: the fields that are scalars; cls_positions int32, where each begins; weights float32, 1
          for an example, and 0 for a place that is left.
        """
        layout = Layout.of(self.lengths[instances], sizes)
        tokens = np.repeat(self._starts[instances], layout.lengths) + layout.place
        of_tokens = {name: values[tokens] for name, values in self._ragged.items()}
        of_tokens["segment_ids"] = (1 + layout.number[layout.instance]).astype(np.int32)
        of_tokens["position_ids"] = layout.place.astype(np.int32)
        of_examples = {name: values[instances] for name, values in self._scalars.items()}
        of_examples["cls_positions"] = layout.offset.astype(np.int32)
        of_examples["weights"] = np.ones(len(instances), np.float32)
        shape, places = (len(sizes), length), (len(sizes), examples_in(length))
        batch = {name: layout.spread_tokens(values, shape) for name, values in of_tokens.items()}
        return batch | {name: layout.spread_instances(values, places) for name, values in of_examples.items()}


@dataclasses.dataclass(frozen=True)
class BucketedBatches:
    """Training batches of rows of about the same length.

    An epoch goes through all rows in a random order. Each bucket's rows fill its batches in that order; what is left
    of a bucket joins the next longer one, so that all batches of an epoch are full but the last that was filled,
    whose empty rows have weight 0. Then the batches are shuffled. Every row comes once in each epoch.

    Attributes:
      rows: what to train on.
      lengths: of the buckets, ascending; the last is at least as long as any row.
      sizes: rows of a global batch of each bucket, descending; multiples of the last (see `budget_sizes`).
      seed: of the order.
    """

    rows: Padded
    lengths: Sequence[int]
    sizes: Sequence[int]
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, which are as many in each."""
        counts = np.bincount(np.searchsorted(self.lengths, self.rows.lengths), minlength=len(self.lengths))
        batches = left = 0
        for count, size in zip(counts, self.sizes, strict=True):
            full, left = divmod(left + int(count), size)
            batches += full
        return batches + (left > 0)

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Rows `rows` of the global batch of each step from `start` on, without end.

        These are numbers below the last of `sizes`; in a batch of m times as many rows, each stands for m.
        """
        steps = self.steps_per_epoch
        for epoch in itertools.count(start // steps):
            yield from self._padded(self._plan(epoch)[max(0, start - epoch * steps) :], rows)

    def evaluation(self, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Rows `rows` of the batches of one epoch, in which each row comes once."""
        yield from self._padded(self._plan(0), rows)

    def _padded(self, batches: Iterable[tuple[int, np.ndarray]], rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        for length, indices in batches:
            yield self.rows.padded(indices.reshape(self.sizes[-1], -1)[rows].ravel(), length)

    def _plan(self, epoch: int) -> list[tuple[int, Indices]]:
        """Length and rows of each batch of an epoch."""
        order = permutation(self.seed, epoch, len(self.rows.lengths), _SHUFFLED_ROWS)
        bucket = np.searchsorted(self.lengths, self.rows.lengths[order])
        batches, left = [], order[:0]
        for number, (length, size) in enumerate(zip(self.lengths, self.sizes, strict=True)):
            waiting = np.concatenate([left, order[bucket == number]])
            full = len(waiting) - len(waiting) % size
            batches += [(length, part) for part in waiting[:full].reshape(-1, size)]
            left = waiting[full:]
        if len(left):
            longest = np.searchsorted(self.lengths, self.rows.lengths[left].max())
            empty = np.full(self.sizes[longest] - len(left), -1)
            batches.append((self.lengths[longest], np.concatenate([left, empty])))
        return [batches[i] for i in permutation(self.seed, epoch, len(batches), _SHUFFLED_BATCHES)]


def fitting_length(default: int | None, max_positions: int | None) -> int | None:
    """The length of rows where a config sets none: the default, or all positions that there are if these are fewer.

    Only what a user sets may contradict a model; values of another type are left to the check of the config.
    """
    return min((each for each in (default, max_positions) if isinstance(each, int)), default=None)


def check_seq_len(seq_len: int, max_positions: int) -> None:
    """Raises UserError unless rows of that length have room for a token between their special ones, and positions."""
    if not 8 <= seq_len <= max_positions:
        raise UserError(
            "config key data.seq_len",
            got=seq_len,
            expected=f"8 to model.max_positions={max_positions}",
            fix="choose a length in between",
        )
