"""Batches of examples of several rows, one of which is right."""

from typing import cast

import numpy as np

from bertjax.data.rows.buckets import Indices, Rows
from bertjax.data.rows.stored import Fields


class ChoiceRows:
    """Examples of several rows each, such as a question with choices, as rows [B, C, S]; see `buckets.Padded`.

    Attributes:
      lengths: the length of the longest row of each example.
    """

    def __init__(self, fields: Fields, num_choices: int) -> None:
        """Initializes the rows.

        Args:
          fields: the fields of all rows: "choice", the number of a row in its example; "label", that of the right row.
          num_choices: C, the maximum number of rows of an example.
        """
        choice = cast(np.ndarray, fields["choice"])
        labels = cast(np.ndarray, fields["label"])
        self._rows = Rows({name: field for name, field in fields.items() if name not in ("choice", "label")})
        self._starts = np.flatnonzero(choice == 0)
        self._counts = np.diff(self._starts, append=len(choice))
        self._labels = labels[self._starts]
        self._choices = np.arange(num_choices)
        self.lengths = np.maximum.reduceat(self._rows.lengths, self._starts)

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """Returns examples by index, padded to `length`. `labels` [B] are the indices of the correct choices.

        Scalars of rows have the shape [B, C]. The index -1 is an empty example of weight 0.
        """
        is_choice = (self._choices < self._counts[indices][:, None]) & (indices >= 0)[:, None]
        numbers = np.where(is_choice, self._starts[indices][:, None] + self._choices, -1)
        rows = self._rows.padded(numbers.ravel(), length)
        del rows["weights"]
        batch = {name: field.reshape(*is_choice.shape, *field.shape[1:]) for name, field in rows.items()}
        return {**batch, "labels": self._labels[indices], "weights": (indices >= 0).astype(np.float32)}
