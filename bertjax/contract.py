"""The contract between an experiment and the packages that run it, which know no task, as tasks know no mesh."""

import abc
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


class Attended(NamedTuple):
    """Attention weights between words.

    Attributes:
      weights: float32 [L, N, T, S].
      queries: the T words.
      keys: the S words that they attend to.
    """

    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]


Infer = Callable[[Iterable[Example]], Iterator[tuple[Example, Sequence[Output]]]]


class Predicts(abc.ABC):
    """A task that predicts. Methods that are not abstract are for tasks that need them.

    Attributes:
      line: returns the line of text that stands for a record, without its end. None for tasks that write no text.
      official: returns the JSON object that the field's scripts read, of all records but those of bad inputs. None if
        there is no such form.
      open_folder: opens a folder for records that no file of lines could hold. Gives a function that takes each record,
        those of bad inputs too; the folder appears when it has all. None for tasks that write lines.
      attention: returns the attention, by kind, of an example of one row with its outputs. None for tasks without.
    """

    line: Callable[[Mapping[str, Any]], str] | None = None
    official: Callable[[Iterator[Mapping[str, Any]]], Mapping[str, Any]] | None = None
    open_folder: Callable[[Path], AbstractContextManager[Callable[[Mapping[str, Any]], object]]] | None = None
    attention: Callable[[Params, Example, Sequence[Output]], Mapping[str, Attended]] | None = None

    @abc.abstractmethod
    def init(self, rng: jax.Array) -> Params:
        """Returns fresh parameters. Pure and reads no file, so that it works under `jax.eval_shape` and `jit`."""

    def warm_start(self, params: Params) -> Params:
        """Returns the weights that `init_from` names in place of fresh ones; `params` if it names none."""
        return params

    @abc.abstractmethod
    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """For parameter paths that match a pattern: which mesh axis each dimension is split over, if it divides."""

    @abc.abstractmethod
    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """Yields what `--mode=predict` reads; see `bertjax.tasks.inputs` for bad lines.

        Args:
          lines: without their ends; bytes that are not UTF-8 are lone surrogates, as `surrogateescape` decodes them.
        Raises:
          UserError: a bad line, with its number, unless `data.on_bad_row=skip`.
        """

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """Yields what is in a table, a file of another format or a folder; None for a file of lines for `examples`."""
        return None

    @abc.abstractmethod
    def predict_lengths(self) -> Sequence[int]:
        """The lengths that rows are padded to, ascending: a compiled program each."""

    def width(self) -> int:
        """How many beams or samples a row has: the more, the fewer rows are inferred from together."""
        return 1

    @abc.abstractmethod
    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns outputs for a padded batch of rows, each with the batch as its first axis."""

    @abc.abstractmethod
    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record of an example, JSON-able or with arrays of numbers.

        Args:
          example: an example.
          outputs: of its rows, still padded.
        """


class Facts(abc.ABC):
    """What a model and its predictions must know of data: the vocabulary, and classes where there are any.

    Those of a trained run follow from its config and the vocabulary in its folder.
    """

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a config with the values that these facts determine, where it leaves them open."""
        return dict(config)

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the vocabulary into a run's folder, from which `Experiment.read_facts` reads it."""


class Data(abc.ABC):
    """What a run learns from and is scored on, as NumPy arrays. It knows no model and no mesh.

    As with `tfds.core.DatasetBuilder`, construction reads no rows, `prepare` runs once, and then all else may be read.
    """

    @property
    @abc.abstractmethod
    def is_prepared(self) -> bool:
        """Whether all else may be read already, as where `prepare` only keeps a vocabulary that is given."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """What rows and their encoding depend on, as a digest."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Writes what is read later, such as a vocabulary, unless that has been done. In one process alone."""

    @property
    @abc.abstractmethod
    def facts(self) -> Facts:
        """The facts, for which rows may have to be read."""

    @abc.abstractmethod
    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """Yields rows `rows`, numbers below `batch_size`, of each global batch from batch `start` on.

        A batch may have m times as many rows where they are short; then each of these stands for m.

        The "train" split never ends; the "valid" split ends after each of its rows has come once, the last
        batch filled up with rows of weight 0. It is empty where `Task.score` gives all validation metrics.
        """

    def held_out(self) -> Iterator[Example]:
        """Yields validation examples for `Task.score`; none where the metrics of `Task.loss` are all metrics."""
        return iter(())

    def tested(self) -> Iterator[Example]:
        """Yields test examples for `Task.score`; none without a test split."""
        return iter(())

    def baselines(self) -> Mapping[str, float]:
        """Metrics known before training, to be logged once: what a model that has learned nothing scores."""
        return {}


class Task(Predicts):
    """A task that also trains, evaluates and exports. It reads no data: see `Data`."""

    @abc.abstractmethod
    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """Shape and type of each field of a global training batch, for every shape that one may have."""

    @abc.abstractmethod
    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """What each term of the loss is divided by, from a whole global batch alone."""

    @abc.abstractmethod
    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """Returns sums over the rows of a micro-batch; without `rng`, dropout is off.

        The metric "tokens" is the number of tokens that are not padding; of models of a target given a source, of those
        of the targets.
        """

    def score_names(self) -> Sequence[str]:
        """The names of all validation metrics; none where these are the means of the metrics of `loss`."""
        return ()

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns the metrics of the field for all examples of a split and the outputs of their rows."""
        return {}

    def samples(self, params: Params, data: Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Yields records for the run's page, which may hold arrays and `Attended`.

        Their "kind" is one that `bertjax.reporting.samples` lists.

        Args:
          params: the parameters.
          data: the run's, with the examples to show.
          infer: yields the first few examples, however many are given, and the outputs of their rows.
        """
        return iter(())

    @abc.abstractmethod
    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that the published systems open."""


@runtime_checkable
class Experiment(Protocol):
    """A module of `experiments/`."""

    Config: type

    def resolve(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fills in what `init_from` determines; reads no rows. Values that rows determine stay open."""

    def read_facts(self, config: Any, folder: Path) -> Any:
        """The facts of a run or of published weights, from a `Config` and the vocabulary in their folder."""

    def build_task(self, config: Any, facts: Any) -> Predicts:
        """The task of a `Config` that the facts have completed. Raises UserError if they do not fit together."""


@runtime_checkable
class Trainable(Experiment, Protocol):
    """An experiment that trains; the others only predict.

    Attributes:
      FREE_AFTER_TRAINING: config keys that may differ when a trained run is used; a key stands for all keys below it.
    """

    FREE_AFTER_TRAINING: tuple[str, ...]

    def stand_in_facts(self, config: Any) -> Any:
        """Facts in the place of those of the data, to check or to plan with."""

    def build_data(self, config: Any, folder: Path) -> Data:
        """The data of a `Config`, some of whose values may be open.

        Args:
          config: the settings.
          folder: where their vocabulary is, or will be once they are prepared.
        Raises:
          UserError: settings that are wrong, or sources that are not there.
        """

    def build_task(self, config: Any, facts: Any) -> Task:
        """See `Experiment.build_task`."""


@runtime_checkable
class ReadsSettings(Protocol):
    """An experiment whose published folders state settings, as a generation_config.json does."""

    def published_settings(self, folder: Path) -> Mapping[str, Any]:
        """What a folder states, as the config has it; keys that it does not state are left out."""
