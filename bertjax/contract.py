"""The contract between an experiment and the packages that run it, which know no task, as tasks know no mesh."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Int64

RowIndices = Int64[np.ndarray, " rows"]  # which rows of a global batch
Params = Any  # a nested dict of float32 arrays
Batch = Mapping[str, Any]  # arrays: of numpy where they are made, of JAX where they are used
Sums = dict[str, jax.Array]  # {term: float32 scalar}
Metrics = dict[str, tuple[jax.Array, jax.Array]]  # {name: (sum, count)}, float32 scalars


Output = Mapping[str, np.ndarray]  # what a model says of a row


class BadInput(NamedTuple):
    """The source of an example that stands for a bad line, row or record of the input.

    Such an example has no rows. Its record is `{"error": error}`, which the task does not make.
    """

    error: str  # one line: where, what was got, what was expected


class Example(NamedTuple):
    """One thing to predict on.

    Attributes:
      rows: the rows of a batch that it takes, one or (windows of a long text) several: one-dimensional arrays of the
        batch fields, unpadded.
      source: what the task needs to write the record, or to score it; or a `BadInput`.
    """

    rows: Sequence[Mapping[str, np.ndarray]]
    source: Any


@runtime_checkable
class Predicts(Protocol):
    """A task that predicts."""

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters. Pure and reads no file, so that it works under `jax.eval_shape` and `jit`."""

    def warm_start(self, params: Params) -> Params:
        """Published weights in place of fresh ones, where `init_from` says so; else `params` as they are."""

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """For parameter paths that match a pattern: which mesh axis each dimension is split over, if it divides."""

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """Yields what `--mode=predict` reads; see `bertjax.tasks.inputs` for bad lines.

        Args:
          lines: without their ends; bytes that are not UTF-8 are lone surrogates, as `surrogateescape` decodes them.
        Raises:
          UserError: a bad line, with its number, unless `data.on_bad_row=skip`.
        """

    def predict_lengths(self) -> Sequence[int]:
        """The lengths that rows are padded to, ascending: a compiled program each."""

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Outputs for a padded batch of rows, each with the batch as its first axis."""

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """One record of an example and the (still padded) outputs of its rows: JSON-able, or with arrays of numbers."""


@runtime_checkable
class HasWidth(Protocol):
    """What a task has besides that follows several hypotheses of each row at once."""

    def width(self) -> int:
        """How many: the more, the fewer rows are inferred from together."""


@runtime_checkable
class WritesFolder(Protocol):
    """What a task has whose records may go to a folder, for want of a file of lines that could hold them."""

    def open_folder(self, folder: Path) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        """Gives what takes each record, those of bad inputs too; the folder appears when it has all."""


@runtime_checkable  # so that a test run checks that an experiment has all of it
class Task(Predicts, Protocol):
    """A task that also trains, evaluates and exports."""

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """Shape and type of each field of a global training batch, for every shape that one may have. Reads no data."""

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """Rows `rows`, numbers below `batch_size`, of each global batch from batch `start` on.

        A batch may have m times as many rows where they are short; then each of these stands for m.

        The "train" split never ends; the "valid" split ends after each of its rows has come once, the last
        batch filled up with rows of weight 0. It has none where `held_out` examples say all that there is to say.
        """

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """What each term of the loss is divided by, from a whole global batch alone."""

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """Sums over the rows of a micro-batch; without `rng`, dropout is off.

        The metric "tokens" is the number of tokens that are not padding; of models of a target given a source, of those
        of the targets.
        """

    def baselines(self) -> Mapping[str, float]:
        """Figures known before training, to be logged once: what a model that has learned nothing scores."""

    def held_out(self) -> Iterator[Example]:
        """Examples for `score`; none where the means of the metrics of `loss` are all that there is to say."""

    def score_names(self) -> Sequence[str]:
        """The names of all held-out figures, those that `score` gives among them."""

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """The figures of the field for all held-out examples and the outputs of their rows."""

    def save_vocabulary(self, folder: Path) -> None:
        """Writes what `predict` needs beside parameters, into the run's folder."""

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that the published systems open."""


@runtime_checkable
class HasTest(Protocol):
    """What a task has besides if it may have a test split."""

    def tested(self) -> Iterator[Example]:
        """Examples of it for `score`; none where there is no test split."""


class Attended(NamedTuple):
    """What some words looked at.

    Attributes:
      weights: float32 [L, N, T, S].
      queries: the T words.
      keys: the S words that they looked at.
    """

    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]


@runtime_checkable
class Attends(Protocol):
    """What a task has besides if it can tell what words looked at."""

    def attention(self, params: Params, example: Example, outputs: Sequence[Output]) -> Mapping[str, Attended]:
        """By the kind of attention, for an example of one row and its outputs."""


Infer = Callable[[Iterable[Example]], Iterator[tuple[Example, Sequence[Output]]]]


@runtime_checkable
class Shows(Protocol):
    """What a task has besides if it shows on its run's page what it makes of held-out examples."""

    def samples(self, params: Params, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Records of a kind, "kind", that `bertjax.reporting.samples` lists, which may hold arrays and `Attended`.

        Args:
          params: what to show.
          infer: gives the first few examples, whatever their number, and the outputs of their rows.
        """


@runtime_checkable
class WritesText(Protocol):
    """What a task has besides whose records are, in short, a line of text each."""

    def line(self, record: Mapping[str, Any]) -> str:
        """That line, without its end."""


@runtime_checkable
class ReadsFiles(Protocol):
    """Implemented by tasks that predict on tables, on files of other kinds, or on folders."""

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """Yields what is in them; None for a file whose lines `examples` reads, as it does those of standard input."""


@runtime_checkable
class OfficialPredictions(Protocol):
    """What a task has besides if its field's scripts read predictions from one JSON object."""

    def official(self, records: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
        """That object, of all records; it is not given those of bad inputs."""


@runtime_checkable
class Text(Protocol):
    """Text to be prepared, and its place."""

    folder: Path

    @property
    def fingerprint(self) -> str:
        """What the prepared text depends on."""

    def run(self) -> None:
        """Prepares it, unless that has been done."""


@runtime_checkable
class Experiment(Protocol):
    """A module of `experiments/`."""

    Config: type

    def resolve(self, config: Mapping[str, Any], reads: bool = True) -> dict[str, Any]:
        """Fills in what `init_from` determines; rows to train on or to score are looked at only if it `reads`."""

    def make(self, config: Any, vocab_dir: Path | None, prepared: Path | None) -> Predicts:
        """The task, with as much of it as can be made from what is given."""


@runtime_checkable
class Trainable(Experiment, Protocol):
    """An experiment that trains; the others only predict.

    Attributes:
      FREE_AFTER_TRAINING: config keys that may differ when a trained run is used; a key stands for all keys below it.
    """

    FREE_AFTER_TRAINING: tuple[str, ...]

    def preparation(self, config: Any, workdir: Path) -> Text:
        """The text that training needs."""

    def make(self, config: Any, vocab_dir: Path | None, prepared: Path | None) -> Task:
        """See `Experiment.make`."""


@runtime_checkable
class ReadsSettings(Protocol):
    """An experiment whose published folders state settings, as a generation_config.json does."""

    def published_settings(self, folder: Path) -> Mapping[str, Any]:
        """What a folder states, as the config has it; keys that it does not state are left out."""
