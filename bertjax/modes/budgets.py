"""Budgets: the number of updates that a number of tokens or FLOPs pays for, and what a run has used."""

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

from bertjax.contract import Data, TrainingTask
from bertjax.errors import UserError
from bertjax.training.flops import count_positions, largest_spec, stage_of, training_flops

Spec = Mapping[str, jax.ShapeDtypeStruct]
_MOST_UPDATES = 2**31  # updates are counted in 32 bits
_COSTS: dict[str, Callable[[TrainingTask, Spec], float]] = {
    "tokens": lambda task, spec: count_positions(spec),
    "flops": training_flops,
}


def shapes_of_updates(task: TrainingTask, data: Data, batch_size: int) -> Iterator[int]:
    """Yields the index in `TrainingTask.batch_specs` of each update's shapes, if they depend on the rows, without end.

    Args:
      task: the task.
      data: the prepared data. Only the first row of each batch is read.
      batch_size: rows of an update.
    """
    specs = [{name: field.shape for name, field in spec.items()} for spec in task.batch_specs()]
    names = next(data.batches("train", 0, np.arange(1))).keys()  # not those of a teacher's outputs
    specs = [{name: shape for name, shape in spec.items() if name in names} for spec in specs]
    for batch in data.batches("train", 0, np.arange(1)):  # a batch has equally many rows for each row number
        yield specs.index({name: (len(x) * batch_size, *x.shape[1:]) for name, x in batch.items()})


class Meter:
    """The cost of the first updates of a run.

    Tokens are positions of rows, padding included. FLOPs are those of matrix products in training, without
    recomputation; see `training_flops`.
    """

    def __init__(self, task: TrainingTask, data: Data | None, batch_size: int) -> None:
        """Reads no rows yet.

        Args:
          task: the task.
          data: the prepared data. Without them, shapes that depend on the rows are taken for the largest ones.
          batch_size: rows of an update.
        """
        self._task = task
        self._specs = task.batch_specs()
        self._counts = [0] * len(self._specs)  # of the updates that were read, by shape
        self._by_rows = stage_of(task, 0, 1) is None
        self._has_data = data is not None
        self._largest = self._specs.index(largest_spec(task))
        self._shapes = shapes_of_updates(task, data, batch_size) if data and self._by_rows else iter(())
        self._costs: dict[tuple[str, int], float] = {}

    def used(self, name: str, done: int, num_steps: int | None) -> float:
        """Returns the cost of the first `done` updates of `num_steps`.

        Args:
          name: "tokens" or "flops".
          done: a number of updates, not smaller than in earlier calls if the shapes are read from the rows.
          num_steps: the number of updates of the run, which determines its stages; None if it has only one.
        """
        counts = self._read(done) if self._by_rows else self._of_stages(done, num_steps or 0)
        return sum((count * self._cost(name, shape) for shape, count in enumerate(counts) if count), 0.0)

    def _cost(self, name: str, shape: int) -> float:
        """The cost of an update with a shape."""
        if (name, shape) not in self._costs:
            self._costs[name, shape] = float(_COSTS[name](self._task, self._specs[shape]))
        return self._costs[name, shape]

    def _read(self, done: int) -> list[int]:
        """How many of the first updates have each shape, read from the rows; without data, all have the largest."""
        if not self._has_data:
            return [done if shape == self._largest else 0 for shape in range(len(self._specs))]
        for shape in itertools.islice(self._shapes, done - sum(self._counts)):
            self._counts[shape] += 1
        return self._counts

    def _of_stages(self, done: int, num_steps: int) -> list[int]:
        """How many of the first updates have each shape, from the stages of the run, which are in this order."""

        def begin(shape: int) -> int:
            return bisect.bisect_left(
                range(done), shape, key=lambda update: stage_of(self._task, update, num_steps) or 0
            )

        return list(np.diff([*map(begin, range(len(self._specs))), done]).tolist())

    def num_steps(self, name: str, most: float) -> int:
        """Returns the largest number of updates within a budget.

        Args:
          name: "tokens" or "flops".
          most: the budget.
        Raises:
          UserError: if the budget does not pay for one update, or pays for too many.
        """
        first = self.used(name, 1, 1)
        if first > most:
            expected = f"at least {first:.10g}, the cost of one update"
            fix = "raise it, or lower batch_size"
            raise UserError(f"config key budget.{name}", got=most, expected=expected, fix=fix)
        if most / first > _MOST_UPDATES:
            expected = f"at most {first * _MOST_UPDATES:.3g}, the cost of 2^31 updates"
            raise UserError(f"config key budget.{name}", got=most, expected=expected, fix="lower it")
        if self._has_data and self._by_rows:
            return next(done for done in itertools.count(1) if self.used(name, done + 1, 0) > most)
        upper = 1
        while self.used(name, upper, upper) <= most:
            upper *= 2
        return bisect.bisect_right(range(upper), most, key=lambda done: self.used(name, done, done)) - 1
