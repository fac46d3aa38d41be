"""The mean time of a row, without batches that wait for a compilation."""

import math
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax


class RowClock:
    """Measures the time of rows of batches, each of a shape that is compiled once.

    A batch of a new shape runs alone, outside the measured time.
    """

    def __init__(self) -> None:
        self._shapes: set[Hashable] = set()  # of compiled batches
        self.reset()

    def reset(self) -> None:
        """Forgets the times, but not the shapes."""
        self._rows = 0
        self._seconds = 0.0
        self._began = math.nan

    def start(self) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Stops the clock; what it measures must have ended."""
        self._seconds += time.perf_counter() - self._began

    def run(self, program: Callable[[], Any], shape: Hashable, rows: int, running: Any) -> Any:
        """Returns the output of a batch, while the clock runs.

        Args:
          program: computes it.
          shape: of the batch; another one is another compiled program.
          rows: the number of rows.
          running: the outputs of earlier batches.
        """
        if shape in self._shapes:
            self._rows += rows
            return program()
        jax.block_until_ready(running)
        self.stop()
        output = jax.block_until_ready(program())
        self._shapes.add(shape)
        self.start()
        return output

    @property
    def row_seconds(self) -> float:
        """The mean time of a row; NaN if all waited for a compilation."""
        return self._seconds / self._rows if self._rows else math.nan
