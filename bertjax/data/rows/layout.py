"""Where things stand that stand one after another: members in their groups, tokens in packed rows."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Shaped


class Layout(NamedTuple):
    """Where instances and their tokens stand."""

    lengths: Int64[np.ndarray, " n"]  # of instances
    row: Int64[np.ndarray, " n"]  # the row of each instance
    number: Int64[np.ndarray, " n"]  # which of the row's instances it is
    offset: Int64[np.ndarray, " n"]  # tokens before it in the row
    instance: Int64[np.ndarray, " tokens"]  # the instance of each token
    place: Int64[np.ndarray, " tokens"]  # its place there

    @classmethod
    def of(cls, lengths: Int64[np.ndarray, " n"], sizes: Int64[np.ndarray, " rows"]) -> "Layout":
        """Args: tokens of instances, row after row; how many instances each row has."""
        starts = np.cumsum(lengths) - lengths
        row, number = np.repeat(np.arange(len(sizes)), sizes), places_in_groups(sizes)
        offset = starts - starts[np.arange(len(lengths)) - number]
        return cls(lengths, row, number, offset, np.repeat(np.arange(len(lengths)), lengths), places_in_groups(lengths))

    @property
    def token_row(self) -> Int64[np.ndarray, " tokens"]:
        """The row of each token."""
        return self.row[self.instance]

    @property
    def token_column(self) -> Int64[np.ndarray, " tokens"]:
        """The place of each token in its row."""
        return self.offset[self.instance] + self.place

    def spread_tokens(self, values: Shaped[np.ndarray, " tokens"], shape: tuple[int, int]) -> Shaped[np.ndarray, "B S"]:
        """Rows with a value at each token, and zeros elsewhere."""
        rows = np.zeros(shape, values.dtype)
        rows[self.token_row, self.token_column] = values
        return rows

    def spread_instances(self, values: Shaped[np.ndarray, " n"], shape: tuple[int, int]) -> Shaped[np.ndarray, "B E"]:
        """Rows with a value for each of their instances, and zeros in what is left of their E places."""
        rows = np.zeros(shape, values.dtype)
        rows[self.row, self.number] = values
        return rows


def places_in_groups(sizes: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, " n"]:
    """For groups of these sizes that stand one after another: the place of each member in its group.

    >>> places_in_groups(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
