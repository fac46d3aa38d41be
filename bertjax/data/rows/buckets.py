"""Batches of rows of different lengths, in few static shapes. A batch is a pure function of (seed, step)."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Int64

from bertjax.config import Constrained
from bertjax.data.random import permutation
from bertjax.data.rows.layout import Layout
from bertjax.data.rows.stored import Fields, Ragged
from bertjax.errors import UserError

Indices = Int64[np.ndarray, " n"]
_LENGTHS = (8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
# A further length compiles in 10 to 25 seconds on two CPU cores. An epoch must save as many tokens of padding as these
# cores train on meanwhile, which is a number of operations. A model of any size has a length per 100,000 tokens. Large
# models have none for less than 10,000: accelerators, on which they are trained, compute such savings in a second.
_PARAMETERS_TIMES_TOKENS = 1.4e11
_MIN_TOKENS, _MAX_TOKENS = 10_000, 100_000
_SHUFFLED_ROWS, _SHUFFLED_BATCHES = 0, 1  # parts of the permutation's stream
# Tokens of a packed row per example that it has room for. Few data sets have shorter examples on average.
_TOKENS_PER_EXAMPLE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketsConfig(Constrained, prefix="data"):
    """The lengths of rows.

    Attributes:
      row_lengths: the lengths to which rows are padded, beside `seq_len`, each a compiled program; () for many.
        Default: the few that are worth it, see `choose_lengths`.
    """

    row_lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = self.row_lengths or ()
        ok = all(length >= 1 for length in lengths) and list(lengths) == sorted(set(lengths))
        self.check(ok, "row_lengths", "ascending positive numbers", fix="write them as (32, 64, 128)")


def bucket_lengths(limit: int, chosen: Sequence[int] | None = ()) -> tuple[int, ...]:
    """Returns the lengths to which rows of up to `limit` tokens are padded. Each length is a compiled program.

    >>> bucket_lengths(100), bucket_lengths(100, (32, 64))
    ((8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100), (32, 64, 100))
    """
    return (*(length for length in chosen or _LENGTHS if length < limit), limit)


def tokens_per_length(parameters: int) -> int:
    """Returns the tokens of padding that a further length must save in an epoch.

    Args:
      parameters: the number of parameters with which a token is multiplied.

    >>> tokens_per_length(12 * 12 * 768**2), tokens_per_length(6 * 12 * 384**2), tokens_per_length(2 * 12 * 128**2)
    (10000, 13187, 100000)
    """
    return min(max(round(_PARAMETERS_TIMES_TOKENS / parameters), _MIN_TOKENS), _MAX_TOKENS)


def choose_lengths(lengths: Indices, limit: int, cost: int) -> tuple[int, ...]:
    """Returns the lengths to which the rows of a data set are best padded, up to that of the longest row.

    They minimize the tokens of an epoch, where each length costs as much as `cost` tokens.

    >>> choose_lengths(np.repeat([10, 50, 60], [3_000, 1_000, 1_000]), limit=128, cost=10_000)
    (12, 64)
    """
    bounds = bucket_lengths(limit)
    bucket = np.searchsorted(bounds, lengths)
    counts = np.bincount(bucket, minlength=len(bounds))
    best: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # of the rows up to each bound: the cost, and the lengths
    for end, bound in enumerate(bounds, start=1):
        options = ((tokens + bound * int(counts[i:end].sum()), chosen) for i, (tokens, chosen) in enumerate(best))
        tokens, chosen = min(options)
        best.append((tokens + cost, (*chosen, bound)))
    return best[1 + bucket.max(initial=0)][1]


def budget_sizes(lengths: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """Returns the rows per batch for each length, so that all batches have about as many tokens.

    The longest rows get `batch_size`. The others get multiples of it, so that they divide over devices in the same way.

    >>> budget_sizes((16, 48, 64), 8)
    (32, 8, 8)
    """
    return tuple(batch_size * (lengths[-1] // length) for length in lengths)


def max_examples(length: int) -> int:
    """Returns the number of examples that a packed row of `length` tokens has room for."""
    return -(-length // _TOKENS_PER_EXAMPLE)


@runtime_checkable
class Padded(Protocol):
    """Rows of different lengths."""

    @property
    def lengths(self) -> Indices:
        """The length of each row."""

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """Returns rows by index, padded to `length`. The index -1 is an empty row of weight 0."""


class Rows:
    """Rows of different lengths.

    Attributes:
      lengths: the length of each row.
    """

    def __init__(self, fields: Fields) -> None:
        """Initializes the rows.

        Args:
          fields: the fields of at least one row. "input_ids" determines the lengths of all `Ragged` fields.
        """
        self._ragged = {name: field.values for name, field in fields.items() if isinstance(field, Ragged)}
        self._scalars = {name: field for name, field in fields.items() if isinstance(field, np.ndarray)}
        self.lengths = cast(Ragged, fields["input_ids"]).lengths.astype(np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """Returns rows by index, padded with zeros to `length`. The index -1 is an empty row.

        Returns:
          the fields; segment_ids [B, S] int32, 1 at tokens and 0 at padding; weights [B] float32, 0 for empty rows.
        """
        lengths = np.where(indices < 0, 0, self.lengths[indices])
        inside = np.arange(length) < lengths[:, None]
        positions = (self._starts[indices][:, None] + np.arange(length))[inside]
        batch = {"segment_ids": inside.astype(np.int32), "weights": (indices >= 0).astype(np.float32)}
        for name, values in self._ragged.items():
            batch[name] = np.zeros(inside.shape, values.dtype)
            batch[name][inside] = values[positions]
        for name, values in self._scalars.items():
            batch[name] = values[indices]
            batch[name][indices < 0] = 0
        return batch

    def packed(self, instances: Indices, sizes: Int64[np.ndarray, " rows"], length: int) -> dict[str, np.ndarray]:
        """Returns packed rows of several examples each, padded with zeros to `length`; see `packed_rows.Packable`.

        Returns, for B rows of S tokens with room for E = `max_examples(S)` examples each:
          per token, [B, S]: the ragged fields; segment_ids int32, the number of the example in its row from 1 on, 0 at
          padding; position_ids int32, counted from 0 in each example;
          per example, [B, E]: the scalar fields; cls_positions int32, the first position of each example; weights
          float32, 1 for an example and 0 for unused room.
        """
        layout = Layout.of(self.lengths[instances], sizes)
        of_examples = {name: values[instances] for name, values in self._scalars.items()}
        of_examples["cls_positions"] = layout.offset.astype(np.int32)
        of_examples["weights"] = np.ones(len(instances), np.float32)
        batch = self.packed_tokens(instances, layout, (len(sizes), length))
        room = (len(sizes), max_examples(length))
        return batch | {name: layout.spread_instances(values, room) for name, values in of_examples.items()}

    def packed_tokens(self, instances: Indices, layout: Layout, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        """Returns the fields of `packed` per token, for the instances in a layout of rows."""
        tokens = np.repeat(self._starts[instances], layout.lengths) + layout.position
        of_tokens = {name: values[tokens] for name, values in self._ragged.items()}
        of_tokens["segment_ids"] = (1 + layout.number[layout.instance]).astype(np.int32)
        of_tokens["position_ids"] = layout.position.astype(np.int32)
        return {name: layout.spread_tokens(values, shape) for name, values in of_tokens.items()}


@dataclasses.dataclass(frozen=True)
class BucketedBatches:
    """Training batches of rows of about the same length.

    An epoch visits all rows in a random order. The rows of each bucket fill its batches in that order. Rows that do not
    fill a batch move to the next longer bucket. So at most one batch of an epoch, the last one filled, has empty rows,
    which have weight 0. Finally the batches are shuffled. Every row occurs once per epoch.

    Attributes:
      rows: the training rows.
      lengths: the lengths of the buckets, ascending; no row is longer than the last.
      sizes: rows per global batch of each bucket, descending; multiples of the last (see `budget_sizes`).
      seed: the seed of the order.
    """

    rows: Padded
    lengths: Sequence[int]
    sizes: Sequence[int]
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch; the same in every epoch."""
        counts = np.bincount(np.searchsorted(self.lengths, self.rows.lengths), minlength=len(self.lengths))
        batches = remainder = 0
        for count, size in zip(counts, self.sizes, strict=True):
            full, remainder = divmod(remainder + int(count), size)
            batches += full
        return batches + (remainder > 0)

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Yields the rows `rows` of the global batch of each step from `start` on, without end.

        `rows` are numbers below the last of `sizes`. In a batch with m times as many rows, each number selects m rows.
        """
        steps = self.steps_per_epoch
        for epoch in itertools.count(start // steps):
            yield from self._padded(self._plan(epoch)[max(0, start - epoch * steps) :], rows)

    def evaluation(self, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Yields the rows `rows` of the batches of one epoch, in which each row occurs once."""
        yield from self._padded(self._plan(0), rows)

    def _padded(self, batches: Iterable[tuple[int, np.ndarray]], rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        for length, indices in batches:
            yield self.rows.padded(indices.reshape(self.sizes[-1], -1)[rows].ravel(), length)

    def _plan(self, epoch: int) -> list[tuple[int, Indices]]:
        """Returns the length and the rows of each batch of an epoch."""
        order = permutation(self.seed, epoch, len(self.rows.lengths), _SHUFFLED_ROWS)
        bucket = np.searchsorted(self.lengths, self.rows.lengths[order])
        batches = []
        remainder = order[:0]
        for number, (length, size) in enumerate(zip(self.lengths, self.sizes, strict=True)):
            waiting = np.concatenate([remainder, order[bucket == number]])
            full = len(waiting) - len(waiting) % size
            batches += [(length, part) for part in waiting[:full].reshape(-1, size)]
            remainder = waiting[full:]
        if len(remainder):
            longest = np.searchsorted(self.lengths, self.rows.lengths[remainder].max())
            empty = np.full(self.sizes[longest] - len(remainder), -1)
            batches.append((self.lengths[longest], np.concatenate([remainder, empty])))
        return [batches[i] for i in permutation(self.seed, epoch, len(batches), _SHUFFLED_BATCHES)]


def default_seq_len(default: int | None, max_positions: int | None) -> int | None:
    """Returns the row length for a config that sets none: the smaller of `default` and `max_positions`.

    An explicit length is never reduced here. Values that are not integers are skipped; the config check reports them.
    """
    return min((length for length in (default, max_positions) if isinstance(length, int)), default=None)


def check_seq_len(seq_len: int, max_positions: int) -> None:
    """Raises UserError unless 8 <= seq_len <= max_positions."""
    if not 8 <= seq_len <= max_positions:
        expected = f"8 to model.max_positions={max_positions}"
        raise UserError("config key data.seq_len", got=seq_len, expected=expected, fix="choose a length in this range")
