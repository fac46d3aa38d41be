"""Evaluation and prediction of any task, with static shapes and rows split over the mesh. Each row is used once."""

import functools
import itertools
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bertjax import distributed
from bertjax.contract import (
    Attended,
    AttendingTask,
    BadInput,
    Batch,
    Data,
    Evaluation,
    Example,
    Infer,
    Metrics,
    Output,
    Params,
    PredictionTask,
    ScoringTask,
    TrainingTask,
    View,
)
from bertjax.errors import UserError
from bertjax.progress import log_once, track
from bertjax.runs.checkpoints import find_steps, restore_params
from bertjax.training import sharding
from bertjax.training.config import EvaluationConfig, InferenceConfig
from bertjax.training.metric_log import means
from bertjax.training.row_clock import RowClock
from bertjax.training.step import accumulate, warm_started

Row = Mapping[str, np.ndarray]
# Tokens of the rows that are sorted by length together; their outputs are in memory at the same time.
_WINDOW_TOKENS = 2**16
# Positions of a batch (rows times padded length), for tasks with a width of at most `_WIDTH`.
_BATCH_PLACES = 2**12
_WIDTH = 4
# The positions of an exact batch on a CPU, which computes small batches as fast, so that a single row takes a short
# time. A batch of one row leaves cores idle, so it has at least two.
_EXACT_PLACES = {"cpu": 2**10}
_EXACT_ROWS = 2
_EXACT_BATCHES = 2**8  # in a window of exact outputs, so that few are filled up: one for each length


def checkpoint_name(workdir: Path, which: str) -> str:
    """Returns the step of a run's checkpoint, or several steps joined by "+" for a mean; see `restore_params`."""
    return "+".join(map(str, find_steps(workdir, which)))


class Predictor:
    """Runs `View.infer` on rows of any length. Rows are padded to few shapes, each compiled once.

    Attributes:
      mesh: the devices that rows are split over.
      clock: the time of rows.
    """

    def __init__(self, view: View, mesh: Mesh, *, exact: bool | None = None) -> None:
        """Makes a predictor for a view of a model on a mesh.

        Args:
          view: the view, such as a task.
          mesh: the mesh.
          exact: see `View.exact`, which is the default. The lengths of a row's arrays alone then decide its
            program: their padding, and the number of rows of the batch, which is filled up.
        """
        self._infer = jax.jit(view.infer)
        self._exact = view.exact if exact is None else exact
        self._lengths = view.predict_lengths()
        self.mesh = mesh
        self.clock = RowClock()
        places = _EXACT_PLACES.get(mesh.devices.flat[0].platform, _BATCH_PLACES) if self._exact else _BATCH_PLACES
        self._places = places // max(1, view.width() // _WIDTH)
        self._window = self._places * _EXACT_BATCHES if self._exact else _WINDOW_TOKENS

    def __call__(
        self, params: Params, examples: Iterable[Example], done: int = 0
    ) -> Iterator[tuple[Example, list[Output]]]:
        """Yields examples with the outputs of their rows, in order, skipping the first `done` examples.

        Reads one window of examples at a time. Windows and batches do not depend on `done`, so outputs are bitwise
        equal for any `done`.
        """
        for window in _windows(examples, self._window):
            if done < len(window):
                outputs = iter(self._outputs(params, [row for example in window for row in example.rows]))
                results = [(example, list(itertools.islice(outputs, len(example.rows)))) for example in window]
                yield from results[done:]
            done = max(0, done - len(window))

    def _outputs(self, params: Params, rows: Sequence[Row]) -> list[Output]:
        """The outputs of rows, in the same order."""
        running: list[tuple[list[int], Any]] = []
        self.clock.start()
        shards = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        for members, shape in self._batches(rows):
            filled = self._full(shape) if self._exact else 1 << (len(members) - 1).bit_length()
            count = -(-filled // shards) * shards
            stacked = _stack([rows[i] for i in members], shape, count)
            local = {name: values[sharding.local_rows(self.mesh, count)] for name, values in stacked.items()}
            with jax.set_mesh(self.mesh):
                program = functools.partial(self._infer, params, sharding.put_batch(local, self.mesh))
                running.append((members, self.clock.run(program, (count, *shape.items()), len(members), running)))
        outputs: dict[int, Output] = {}
        for members, result in running:
            fetched = multihost_utils.process_allgather(result, tiled=True)
            for place, i in enumerate(members):
                outputs[i] = {name: np.asarray(value[place]) for name, value in fetched.items()}
        self.clock.stop()
        return [outputs[i] for i in range(len(rows))]

    def _batches(self, rows: Sequence[Row]) -> Iterator[tuple[list[int], dict[str, int]]]:
        """Yields batches as indices of rows and padded lengths of arrays, from the longest rows to the shortest.

        All batches are full except the last one or, if exact, the last of each shape.
        """
        shapes = [{name: self._padded_length(len(a)) for name, a in row.items() if a.ndim} for row in rows]
        kinds = [(max(shape.values()), *shape.values()) if self._exact else () for shape in shapes]
        order = sorted(range(len(rows)), key=lambda i: (kinds[i], _length(rows[i])))
        for waiting in reversed([list(group) for _, group in itertools.groupby(order, lambda i: kinds[i])]):
            while waiting:
                count = self._full(shapes[waiting[-1]])
                members = waiting[-count:]
                waiting = waiting[:-count]
                yield members, {name: max(shapes[i][name] for i in members) for name in shapes[members[0]]}

    def _full(self, shape: Mapping[str, int]) -> int:
        """The rows of a full batch, given padded lengths: a power of two, so that few shapes are compiled."""
        fitting = max(_EXACT_ROWS if self._exact else 1, self._places // max(shape.values()))
        return 1 << (fitting.bit_length() - 1)

    def _padded_length(self, length: int) -> int:
        return next(padded for padded in self._lengths if padded >= length)


def _length(row: Row) -> int:
    """The length of a row's longest array; a given target may be longer than its source."""
    return max(len(array) for array in row.values() if array.ndim)


def _windows(examples: Iterable[Example], most: int) -> Iterator[list[Example]]:
    window = []
    tokens = 0
    for example in examples:
        window.append(example)
        tokens += sum(len(row["input_ids"]) for row in example.rows)
        if tokens >= most:
            yield window
            window = []
            tokens = 0
    if window:
        yield window


def _stack(rows: Sequence[Row], shape: Mapping[str, int], count: int) -> dict[str, np.ndarray]:
    """Pads arrays with zeros to the lengths in `shape`, and adds copies of the first row up to `count` rows."""
    stacked = {}
    for name, first in rows[0].items():
        stacked[name] = np.zeros((count, shape[name]) if first.ndim else count, first.dtype)
        for i, row in enumerate(rows):
            place = (i, slice(len(row[name]))) if first.ndim else i
            stacked[name][place] = row[name]
        stacked[name][len(rows) :] = stacked[name][0]
    return stacked


def reported(examples: Iterable[Example], what: str) -> Iterator[Example]:
    """Yields the examples. At the end, logs how many were truncated or split; see `Example.limited`.

    Args:
      examples: the examples.
      what: their name, in the plural.
    """
    count = 0
    limited = Counter[tuple[str, str]]()
    for count, example in enumerate(examples, start=1):  # noqa: B007
        limited.update(example.limited.items())
        yield example
    for (done, limit), number in limited.items():
        level = logging.WARNING if done == "truncated" else logging.INFO
        log_once(f"{number:,} of {count:,} {what} are {done}: they have more than {limit}", level)


class Validation:
    """Computes the validation metrics of parameters: those of the validation split and of further evaluations.

    Attributes:
      row_seconds: the mean time of the loss of a row in the last call or, of tasks without validation batches, of its
        prediction, without batches that waited for a compilation; NaN if all did.
    """

    row_seconds = math.nan

    def __init__(
        self, task: TrainingTask, mesh: Mesh, config: EvaluationConfig, evaluations: Sequence[Evaluation] = ()
    ) -> None:
        """Compiles nothing yet.

        Args:
          task: the task.
          mesh: the devices.
          config: the settings.
          evaluations: the further evaluations.
        """
        self._task = task
        self._mesh = mesh
        self._batch_size = config.batch_size
        self._evaluations = evaluations
        self._predictors = {evaluation.name: Predictor(evaluation.view, mesh) for evaluation in evaluations}
        self._predictor = Predictor(task, mesh)
        self._clock = RowClock()

        def metrics(params: Params, batch: Batch) -> Metrics:
            micro_batches = jnp.arange(config.accumulation_steps)
            return accumulate(lambda rows, _: task.loss(params, rows, None)[1], batch, micro_batches)

        self._metrics = jax.jit(metrics)

    def __call__(
        self, params: Params, data: Data, stop: Callable[[], bool], number: int | None = None
    ) -> dict[str, float] | None:
        """Returns the validation metrics as "valid/NAME", or None if `stop` returned True before the end.

        Args:
          params: the parameters.
          data: the data.
          stop: whether to stop.
          number: how many evaluations of the run there are with this one; see `Evaluation.every`. None to make all.
        """
        rows = sharding.local_rows(self._mesh, self._batch_size)
        total = None
        self._clock.reset()
        self._clock.start()
        for batch in track(data.batches("valid", 0, rows), "evaluating", "batch"):
            if stop():
                return None
            with jax.set_mesh(self._mesh):
                program = functools.partial(self._metrics, params, sharding.put_batch(batch, self._mesh))
                shapes = tuple(array.shape for array in batch.values())
                metrics = self._clock.run(program, shapes, self._batch_size, total)
            total = metrics if total is None else jax.tree.map(jnp.add, total, metrics)
        scores = dict(means(total or {}, "valid"))  # waits for the devices
        self._clock.stop()
        self._predictor.clock.reset()
        split = Evaluation("", self._task, data.validation_examples, self._task.score, self._task.score_names())
        further = [evaluation for evaluation in self._evaluations if number is None or number % evaluation.every == 0]
        for evaluation in (split, *further):
            predictor = self._predictors.get(evaluation.name, self._predictor)
            label = f"examples of {evaluation.name}" if evaluation.name else "validation examples"
            results = []
            for result in track(predictor(params, reported(evaluation.examples(), label)), "evaluating", "example"):
                if stop():
                    return None
                results.append(result)
            values = evaluation.score(results) if results else {}
            scores |= {f"valid/{name}": value for name, value in values.items()}
            missing = [name for name in evaluation.metrics if f"valid/{name}" not in scores]
            assert not missing, f"missing metrics: {missing}"
        assert scores, "the validation split must not be empty"
        clock = self._predictor.clock if total is None else self._clock
        self.row_seconds = clock.row_seconds
        return scores


def _check_all_loaded(has_none: Params, task: PredictionTask, published: Any) -> None:
    """Raises UserError if a module has no weights, which makes predictions meaningless; see `warm_started`."""
    leaves = jax.tree_util.tree_leaves_with_path(has_none)
    modules = dict.fromkeys("/".join(part.key for part in path[:-1] or path) for path, lacks in leaves if lacks)
    labels = getattr(task, "labels", ())
    published_labels = getattr(published, "labels", ())
    if modules and labels and published_labels and tuple(labels) != tuple(published_labels):
        expected = f"{', '.join(published_labels)}, the classes of {published.path}"
        fix = "omit it"
        raise UserError("config key data.labels", got=", ".join(labels), expected=expected, fix=fix)
    if modules:
        raise UserError(
            "config key init_from",
            got="no weights of " + ", ".join(modules) + " for this task",
            expected="a model that was trained for it",
            fix="name such a model, or first train one that starts from this init_from",
        )


class Inference:
    """A trained task with its parameters on the mesh.

    Attributes:
      task: the task.
      params: the parameters.
      mesh: the devices.
      checkpoint: the name of the run's checkpoint, see `checkpoint_name`; "" for published weights.
    """

    def __init__(
        self,
        task: PredictionTask,
        config: InferenceConfig,
        workdir: Path | None,
        checkpoint: str,
        published: Any = None,
    ) -> None:
        """Restores the parameters.

        Args:
          task: the task.
          config: its settings.
          workdir: the run; None for the weights in `init_from`.
          checkpoint: which of the run's checkpoints, see `restore_params`; "final" for `init_from`.
          published: the weights in `init_from`, without a run.
        Raises:
          UserError: if the checkpoint does not exist, or if `init_from` has no weights for a module.
        """
        if workdir is None and checkpoint != "final":
            got = f"{checkpoint!r}, but weights without checkpoints"
            expected = "a run, which has checkpoints"
            fix = "omit --checkpoint; for a run in init_from, its checkpoint.final is used"
            raise UserError("--checkpoint", got=got, expected=expected, fix=fix)
        self.task = task
        self._config = config
        self.mesh = mesh = sharding.make_mesh(config.mesh, jax.devices())
        self._predictor = Predictor(task, mesh)
        self.checkpoint = "" if workdir is None else checkpoint_name(workdir, checkpoint)
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        shardings = sharding.tree_shardings(shapes, mesh, task.partition_rules())
        if workdir is None:
            params, has_none = warm_started(task, published, shapes, shardings)
            _check_all_loaded(has_none, task, published)
        else:
            params = restore_params(workdir, checkpoint, sharding.with_shardings(shapes, shardings))
        self.params = task.inference_params(params)

    def evaluate(self, data: Data, evaluations: Sequence[Evaluation] = ()) -> dict[str, float]:
        """Returns the metrics of the validation and test splits and of further evaluations, and the baselines."""
        config = self._config
        if isinstance(self.task, ScoringTask):
            results = self._predictor(self.params, reported(data.validation_examples(), "validation examples"))
            values = self.task.score(track(results, "evaluating", "example"))
            return {f"valid/{name}": value for name, value in values.items()}
        assert isinstance(self.task, TrainingTask) and isinstance(config, EvaluationConfig), "the task only predicts"
        scores = Validation(self.task, self.mesh, config, evaluations)(self.params, data, lambda: False)
        assert scores is not None
        return {**scores, **data.baselines(), **self.test(data)}

    def test(self, data: Data) -> dict[str, float]:
        """Returns the metrics of the test split as "test/NAME"; empty without a test split."""
        assert isinstance(self.task, TrainingTask), "the task only predicts"
        results = list(self._predictor(self.params, reported(data.test_examples(), "test examples")))
        scores = self.task.score(results) if results else {}
        return {f"test/{name}": value for name, value in scores.items()}

    def records(self, examples: Iterable[Example], done: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yields a record for each example, in order, skipping the first `done` examples.

        Logs the numbers of inputs that are truncated or split, and of predicted texts that are empty or truncated.
        """
        texts = empty = incomplete = 0
        for example, outputs in self._predictor(self.params, reported(examples, "inputs"), done):
            if isinstance(example.source, BadInput):
                yield {**example.columns, "error": example.source.error}
                continue
            limited = dict.fromkeys(example.limited, True)
            record = {**example.columns, **self.task.record(example, outputs), **limited}
            if self.task.line and example.rows:
                texts += 1
                empty = empty + (not self.task.line(record))
                incomplete += not record.get("complete", True)
            yield record
        if empty:
            log_once(f"{empty:,} of {texts:,} predicted texts are empty", logging.WARNING)
        if incomplete:
            log_once(f"{incomplete:,} of {texts:,} predicted texts are truncated at the maximum length of `decoding`")

    def attention(self, example: Example) -> Mapping[str, Attended] | None:
        """Returns the attention weights of an example, by kind; None unless the example has exactly one row."""
        ((_, outputs),) = self._predictor(self.params, [example])
        assert isinstance(self.task, AttendingTask), "the task has no attention"
        return self.task.attention(self.params, example, outputs) if len(outputs) == 1 else None

    def samples(self, data: Data, count: int) -> Iterator[Mapping[str, Any]]:
        """Returns the task's samples for the run's page, from `count` validation examples."""
        assert isinstance(self.task, TrainingTask), "the task only predicts"
        return self.task.samples(self.params, data, self._first(count))

    def errors(self, data: Data, count: int) -> Iterator[Mapping[str, Any]]:
        """Returns the records of up to `count` validation examples for the error analysis."""
        assert isinstance(self.task, TrainingTask), "the task only predicts"
        return self.task.errors(data, self._first(count))

    def _first(self, count: int) -> Infer:
        """Returns a function that yields the first `count` of examples with the outputs of their rows."""
        return lambda examples: self._predictor(self.params, itertools.islice(examples, count))

    def export(self, folder: str | os.PathLike[str]) -> None:
        """Exports the model to a folder. Parameters that are split over processes are gathered first.

        Raises:
          UserError: for a model that the task cannot export.
        """
        export = self.task.export
        params = multihost_utils.process_allgather(self.params, tiled=True)
        if not export:
            got = "a task that only predicts"
            expected = "a task that writes a folder for other libraries"
            raise UserError("export", got=got, expected=expected, fix="load the folder with another experiment")
        distributed.on_first_process(lambda: export(params, Path(folder)))
