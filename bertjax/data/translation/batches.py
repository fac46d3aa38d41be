"""Pairs of token sequences as rows of batches, one to a row or several."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import numpy as np
from jaxtyping import Int64

from bertjax.data.rows.layout import Layout, positions_in_groups
from bertjax.data.rows.stored import Fields, Ragged, Row, fields_of
from bertjax.errors import UserError

Indices = Int64[np.ndarray, " n"]
# Of each side: its tokens, which pair they are of, and where in it they stand.
_FIELDS = (
    ("input_ids", "segment_ids", "position_ids"),
    ("labels", "target_segment_ids", "target_position_ids"),
)


class PairRows:
    """Pairs held one after another, each a row.

    Attributes:
      lengths: of the rows: the longer side of each pair.
    """

    def __init__(self, fields: Fields) -> None:
        """Initializes the pairs.

        Args:
          fields: `input_ids` and `labels`, both `Ragged`. No array in them is empty.
        """
        self._sides = [_Side(cast(Ragged, fields[tokens])) for tokens, _, _ in _FIELDS]
        self.lengths = np.maximum(*(side.lengths for side in self._sides))

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "PairRows":
        """Builds at least one pair. Each has `input_ids` [S] and `labels` [T], neither of them empty."""
        return cls(fields_of(rows))

    def check_fits(self, length: int) -> None:
        """Raises UserError if a pair has more tokens than `length`, where none is left out."""
        longest = int(self.lengths.max())
        if longest > length:
            fix = "raise --config.data.seq_len"
            raise UserError(
                "config key data.seq_len", got=length, expected=f"at least {longest}, as of a date", fix=fix
            )

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """The pairs of some indices, padded with zeros to `length`; an index of -1 stands for an empty row.

        Returns:
          input_ids, labels [B, S] int32, S being `length`; segment_ids, target_segment_ids [B, S] int32, 1 at
          tokens and 0 at padding; weights [B] float32, 0 for empty rows.
        """
        batch = self.packed(indices[indices >= 0], (indices >= 0).astype(np.int64), length)
        positions = {positions for _, _, positions in _FIELDS}
        return {name: array for name, array in batch.items() if name not in positions}

    def packed(self, instances: Indices, sizes: Int64[np.ndarray, " rows"], length: int) -> dict[str, np.ndarray]:
        """Rows of several pairs, padded with zeros to `length`; see `packed_rows.Packable`.

        Returns:
          input_ids, labels [B, S] int32, S being `length`, pair after pair on each side; segment_ids,
          target_segment_ids [B, S] int32, the pair's number in its row from 1 on, 0 at padding; position_ids,
          target_position_ids [B, S] int32, from 0 in each pair; weights [B] float32, 0 for empty rows.
        """
        batch: dict[str, np.ndarray] = {"weights": (sizes > 0).astype(np.float32)}
        for side, names in zip(self._sides, _FIELDS, strict=True):
            layout = Layout.of(side.lengths[instances], sizes)
            values = (side.tokens(instances), 1 + layout.number[layout.instance], layout.position)
            for name, value in zip(names, values, strict=True):
                batch[name] = layout.spread_tokens(value.astype(np.int32), (len(sizes), length))
        return batch


@dataclasses.dataclass(frozen=True)
class StreamBatches:
    """Training batches of pairs without end, each taken once, so that there are no epochs.

    Attributes:
      rows: from a pair's number to the rows from that one on.
      length: of the rows.
      batch_size: rows of a global batch.
    """

    rows: Callable[[int], Iterator[Row]]
    length: int
    batch_size: int

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Rows `rows` of the batch of each step from `start` on, without end. Raises UserError for pairs too long."""
        stream = self.rows(start * self.batch_size)
        while True:
            pairs = PairRows.of(itertools.islice(stream, self.batch_size))
            pairs.check_fits(self.length)
            yield pairs.padded(rows, self.length)


class _Side:
    """Sequences held one after another."""

    def __init__(self, sequences: Ragged) -> None:
        self.lengths = sequences.lengths.astype(np.int64)
        assert self.lengths.all(), "a row without tokens"
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._ids = sequences.values

    def tokens(self, numbers: Indices) -> np.ndarray:
        """The tokens of the sequences of these numbers, one after another."""
        lengths = self.lengths[numbers]
        return self._ids[np.repeat(self._starts[numbers], lengths) + positions_in_groups(lengths)]
