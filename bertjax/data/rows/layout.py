"""Row and column of every token in packed rows."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Shaped


class Layout(NamedTuple):
    """The rows and positions of instances and their tokens in packed rows."""

    lengths: Int64[np.ndarray, " n"]  # the number of tokens of each instance
    row: Int64[np.ndarray, " n"]  # the row of each instance
    number: Int64[np.ndarray, " n"]  # the number of each instance within its row, from 0 on
    offset: Int64[np.ndarray, " n"]  # the number of tokens before each instance in its row
    instance: Int64[np.ndarray, " tokens"]  # the instance of each token
    position: Int64[np.ndarray, " tokens"]  # the position of each token within its instance

    @classmethod
    def of(cls, lengths: Int64[np.ndarray, " n"], sizes: Int64[np.ndarray, " rows"]) -> "Layout":
        """Computes the layout.

        Args:
          lengths: the number of tokens of each instance, row after row.
          sizes: the number of instances of each row.
        """
        starts = np.cumsum(lengths) - lengths
        row = np.repeat(np.arange(len(sizes)), sizes)
        number = positions_in_groups(sizes)
        offset = starts - starts[np.arange(len(lengths)) - number]
        instance = np.repeat(np.arange(len(lengths)), lengths)
        return cls(lengths, row, number, offset, instance, positions_in_groups(lengths))

    @property
    def token_row(self) -> Int64[np.ndarray, " tokens"]:
        """The row of each token."""
        return self.row[self.instance]

    @property
    def token_column(self) -> Int64[np.ndarray, " tokens"]:
        """The position of each token in its row."""
        return self.offset[self.instance] + self.position

    def spread_tokens(self, values: Shaped[np.ndarray, " tokens"], shape: tuple[int, int]) -> Shaped[np.ndarray, "B S"]:
        """Returns rows with `values` at the tokens, and zeros elsewhere."""
        rows = np.zeros(shape, values.dtype)
        rows[self.token_row, self.token_column] = values
        return rows

    def spread_instances(
        self, values: Shaped[np.ndarray, "n *size"], shape: tuple[int, int]
    ) -> Shaped[np.ndarray, "B E *size"]:
        """Returns rows whose first entries are the `values` of the row's instances, followed by zeros."""
        rows = np.zeros((*shape, *values.shape[1:]), values.dtype)
        rows[self.row, self.number] = values
        return rows


def positions_in_groups(sizes: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, " n"]:
    """Returns the position of each member within its group, for consecutive groups of the given sizes.

    >>> positions_in_groups(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
