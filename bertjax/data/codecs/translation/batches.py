"""Batches of pairs of token sequences, with one pair per row or several."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from jaxtyping import Int64

from bertjax.data.rows.buckets import Indices, Rows
from bertjax.data.rows.layout import Layout
from bertjax.data.rows.stored import Fields, Row, fields_of
from bertjax.errors import UserError

# For each side, the names of its tokens, of the number of each token's pair, and of each token's position in the pair.
_FIELDS = (("input_ids", "segment_ids", "position_ids"), ("labels", "target_segment_ids", "target_position_ids"))


class PairRows:
    """Pairs of token sequences. Each pair is a row.

    Attributes:
      lengths: the length of each row, that of the longer side.
    """

    def __init__(self, fields: Fields, target_len: int | None = None) -> None:
        """Initializes the pairs.

        Args:
          fields: `input_ids` and `labels`, both `Ragged`. No sequence is empty.
          target_len: the maximum number of tokens of a target; None for that of the source.
        """
        self._target_len = target_len
        self._sides = [Rows({"input_ids": fields[tokens]}) for tokens, _, _ in _FIELDS]
        assert all(side.lengths.all() for side in self._sides), "a row without tokens"
        self.lengths = np.maximum(*(side.lengths for side in self._sides))

    @classmethod
    def of(cls, rows: Iterable[Row], target_len: int | None = None) -> "PairRows":
        """Builds at least one pair from rows with `input_ids` [S] and `labels` [T]. No sequence is empty."""
        return cls(fields_of(rows), target_len)

    def check_fits(self, length: int) -> None:
        """Raises UserError if a pair has more tokens than `length`. For dates, which are never dropped."""
        longest = int(self.lengths.max())
        if longest > length:
            fix = "raise --config.data.seq_len"
            expected = f"at least {longest}, the longest pair of dates"
            raise UserError("config key data.seq_len", got=length, expected=expected, fix=fix)

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """Returns pairs by index, padded with zeros to `length`. The index -1 is an empty row.

        Returns:
          input_ids [B, S] and labels [B, T] int32, where S is `length`, and T too, up to `target_len`;
          segment_ids [B, S] and target_segment_ids [B, T] int32, 1 at tokens and 0 at padding; weights [B] float32, 0
          for empty rows.
        """
        batch = self.packed(indices[indices >= 0], (indices >= 0).astype(np.int64), length)
        positions = {positions for _, _, positions in _FIELDS}
        return {name: array for name, array in batch.items() if name not in positions}

    def packed(self, instances: Indices, sizes: Int64[np.ndarray, " rows"], length: int) -> dict[str, np.ndarray]:
        """Returns packed rows of several pairs, padded with zeros to `length`; see `packed_rows.Packable`.

        Returns:
          input_ids, labels [B, S] int32, where S is `length`, with the pairs in the same order on both sides;
          segment_ids, target_segment_ids [B, S] int32, the number of the pair in its row from 1 on, 0 at padding;
          position_ids, target_position_ids [B, S] int32, counted from 0 in each pair; weights [B] float32, 0 for empty
          rows.
        """
        batch: dict[str, np.ndarray] = {"weights": (sizes > 0).astype(np.float32)}
        for side, names in zip(self._sides, _FIELDS, strict=True):
            layout = Layout.of(side.lengths[instances], sizes)
            is_target = names[0] == "labels"
            room = min(length, self._target_len or length) if is_target else length
            tokens = side.packed_tokens(instances, layout, (len(sizes), room))
            batch |= {name: tokens[field] for name, field in zip(names, _FIELDS[0], strict=True)}
        return batch


@dataclasses.dataclass(frozen=True)
class StreamBatches:
    """Training batches of an endless stream of pairs. Each pair is used once, so there are no epochs.

    Attributes:
      rows: returns the rows from a given number on.
      length: the length to which rows are padded.
      batch_size: rows per global batch.
    """

    rows: Callable[[int], Iterator[Row]]
    length: int
    batch_size: int

    def training(self, start: int, rows: Indices) -> Iterator[dict[str, np.ndarray]]:
        """Yields the rows `rows` of the batch of each step from `start` on, without end.

        Raises:
          UserError: if a pair is too long.
        """
        stream = self.rows(start * self.batch_size)
        while True:
            pairs = PairRows.of(itertools.islice(stream, self.batch_size))
            pairs.check_fits(self.length)
            yield pairs.padded(rows, self.length)
