"""Evaluation and prediction, once for all tasks: static shapes, rows over the mesh, nothing dropped or doubled."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bertjax.checkpoints import restore_params
from bertjax.task import Batch, Example, Metrics, Params, Task
from bertjax.training import sharding
from bertjax.training.config import TrainingConfig
from bertjax.training.metric_log import means
from bertjax.training.step import accumulate

# Examples that are sorted by length together, so that rows of a batch are of a length.
_WINDOW = 4096
_ROWS = 32

Output = Mapping[str, np.ndarray]


class Evaluation:
    """Scores parameters on the held-out split; compiled once."""

    def __init__(self, task: Task, mesh: Mesh, batch_size: int, accumulation: int) -> None:
        """Args: the task, the mesh, the rows of a global batch, and in how many parts they are worked through."""
        self._task, self._mesh, self._batch_size = task, mesh, batch_size

        def metrics(params: Params, batch: Batch) -> Metrics:
            return accumulate(lambda rows, _: task.loss(params, rows, None)[1], batch, jnp.arange(accumulation))

        self._metrics = jax.jit(metrics)

    def __call__(self, params: Params, stop: Callable[[], bool]) -> dict[str, float] | None:
        """The mean of each metric over the held-out split, as "valid/NAME"; None if `stop` said so on the way."""
        rows = sharding.local_rows(self._mesh, self._batch_size)
        total = None
        for batch in self._task.batches("valid", 0, rows):
            if stop():
                return None
            with jax.set_mesh(self._mesh):
                metrics = self._metrics(params, sharding.put_batch(batch, self._mesh, self._batch_size))
            total = metrics if total is None else jax.tree.map(jnp.add, total, metrics)
        assert total is not None, "the held-out split is not empty"
        return means(total, "valid")


def predict(task: Task, params: Params, examples: Iterable[Example], mesh: Mesh) -> Iterator[tuple[Example, Output]]:
    """Yields each example with its outputs, in order; inputs are padded to the first length they fit in.

    Args:
      task: what infers.
      params: its parameters.
      examples: read a window at a time.
      mesh: rows are split over it.
    """
    infer, lengths = jax.jit(task.infer), task.predict_lengths()
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    for window in _windows(examples):
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, example in enumerate(window):
            groups.setdefault(_shape(example, lengths), []).append(i)
        outputs: list[Output | None] = [None] * len(window)
        for shape, members in groups.items():
            for start in range(0, len(members), _ROWS):
                part = members[start : start + _ROWS]
                # A power of two, so that few shapes are compiled, and a multiple of the devices.
                count = -(-(1 << (len(part) - 1).bit_length()) // shards) * shards
                stacked = _stack([window[i] for i in part], shape, count)
                local = {name: rows[sharding.local_rows(mesh, count)] for name, rows in stacked.items()}
                with jax.set_mesh(mesh):
                    result = infer(params, sharding.put_batch(local, mesh, count))
                result = multihost_utils.process_allgather(result, tiled=True)
                for row, i in enumerate(part):
                    outputs[i] = {name: np.asarray(value[row]) for name, value in result.items()}
        for example, output in zip(window, outputs, strict=True):
            assert output is not None
            yield example, output


def _windows(examples: Iterable[Example]) -> Iterator[tuple[Example, ...]]:
    iterator = iter(examples)
    while window := tuple(itertools.islice(iterator, _WINDOW)):
        yield window


def _shape(example: Example, lengths: Sequence[int]) -> tuple[int, ...]:
    """The padded length of each input, in the order of their names."""
    return tuple(
        next(length for length in lengths if length >= len(example.inputs[name])) for name in sorted(example.inputs)
    )


def _stack(examples: Sequence[Example], shape: tuple[int, ...], count: int) -> dict[str, np.ndarray]:
    """Pads inputs with zeros to `shape`, and rows with copies of the first to `count`."""
    stacked = {}
    for name, length in zip(sorted(examples[0].inputs), shape, strict=True):
        rows = [np.pad(e.inputs[name], (0, length - len(e.inputs[name]))) for e in examples]
        stacked[name] = np.stack(rows + rows[:1] * (count - len(rows)))
    return stacked


class Inference:
    """A trained task: its parameters, on the mesh."""

    def __init__(self, task: Task, config: TrainingConfig, workdir: Path | None, checkpoint: str) -> None:
        """Args: the task; its settings; the run and which of its checkpoints, or None for published weights."""
        self._task, self._config = task, config
        self._mesh = sharding.make_mesh(config.mesh, jax.devices())
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        shardings = sharding.tree_shardings(shapes, self._mesh, task.partition_rules())
        if workdir is None:
            fresh = jax.jit(task.init, out_shardings=shardings)(jax.random.key(config.seed))
            self._params = jax.device_put(task.warm_start(fresh), shardings)
        else:
            self._params = restore_params(workdir, checkpoint, sharding.with_shardings(shapes, shardings))

    def evaluate(self) -> dict[str, float]:
        """The metrics of the held-out split, and its baselines."""
        config = self._config
        scores = Evaluation(self._task, self._mesh, config.batch_size, config.accumulation_steps)(
            self._params, lambda: False
        )
        assert scores is not None
        return {**scores, **self._task.baselines()}

    def records(self, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
        """A record for each example in `lines`, in order."""
        examples = self._task.examples(iter(lines))
        for example, output in predict(self._task, self._params, examples, self._mesh):
            yield self._task.record(example, output)

    def export(self, folder: Path) -> None:
        """Writes the published form; parameters that are split over processes are gathered first."""
        params = multihost_utils.process_allgather(self._params, tiled=True)
        if jax.process_index() == 0:
            self._task.export(params, folder)
