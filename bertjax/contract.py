"""The contract between an experiment and the packages that run it.

These packages depend on no specific task, and tasks do not depend on the mesh. An experiment is a module of
`experiments/` with the names of `modes.experiment.Experiment`. The class that its `Task` inherits says what it can do:
`PredictionTask`, `ScoringTask`, `MiningTask`, `TrainingTask` or `StagedTask`. A task of any class may also have the
method of `OfficialFormat` or `AttendingTask`.
"""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from flax import linen as nn
from jaxtyping import Int64

from bertjax.errors import UserError

if TYPE_CHECKING:
    from bertjax.interop.published import Published

RowIndices = Int64[np.ndarray, " rows"]  # which rows of a global batch
Params = Any  # a nested dict of float32 arrays
Batch = Mapping[str, Any]  # NumPy arrays from `Data`, JAX arrays in `TrainingTask`
Sums = dict[str, jax.Array]  # {term: float32 scalar}
Metrics = dict[str, tuple[jax.Array, jax.Array]]  # {name: (sum, count)}, float32, scalars or one for each group
Record = Mapping[str, Any]  # names and values that JSON can hold, or NumPy arrays, such as a prediction
TakeRecord = Callable[[Record], None]
ConfigTree = Mapping[str, Any]  # a config or a subtree of it, as in config.json
FlatConfig = Mapping[str, Any]  # config values by dotted key
Output = Mapping[str, np.ndarray]  # the outputs of `PredictionTask.infer` for one row


class BadInput(NamedTuple):
    """The source of an example that represents a bad line, row or record of the input.

    Such an example has no rows. Its record has only "error" and `Example.columns`; `record` is not called.
    """

    error: str  # one line: the position, the value that was read, and the expected value


class Example(NamedTuple):
    """One input to predict on, such as a text or a pair of texts.

    Attributes:
      rows: one row, or several for windows of a long text. A row maps batch fields to unpadded 1-D arrays.
      source: what the task needs to write or score the record; or a `BadInput`.
      limited: what was done to an input that is longer than a limit, and the limit: "truncated" if the model does not
        read a part of it, "split" if its rows read different parts. Its record has these names with the value true.
      columns: the values of the table's row that the example is made from, by column; empty for other inputs. Its
        record begins with those that `--columns` names.
    """

    rows: Sequence[Mapping[str, np.ndarray]]
    source: Any
    limited: Mapping[str, str] = MappingProxyType({})
    columns: Record = MappingProxyType({})


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


@runtime_checkable
class Vocabulary(Protocol):
    """What a run's folder stores of its data: a tokenizer, or the pair of them of a translation model."""

    def save(self, folder: Path) -> None:
        """Writes the vocabulary into a run's folder, from which `Experiment.open_vocabulary` reads it."""


class View(abc.ABC):
    """A function of a model: what predictions and evaluations compute for rows.

    Attributes:
      exact: whether the outputs of a row have the same bits in any order of any rows, on one kind and number of devices
        with one number of cores. A few rows then take as long as a batch. It suits rows whose arrays have one length,
        because each combination of lengths is a program.
    """

    exact = False

    @abc.abstractmethod
    def predict_lengths(self) -> Sequence[int]:
        """The lengths that rows are padded to, ascending. Each is one compiled program."""

    def width(self) -> int:
        """Beams or samples per row. Batches for `infer` have fewer rows if this is larger."""
        return 1

    @abc.abstractmethod
    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns outputs for a padded batch of rows; the first axis of each is the batch."""


class Evaluation(NamedTuple):
    """Rows, a view of the model, and metrics; see `bertjax.evaluations`.

    Attributes:
      name: its name; "" for the validation split of a run.
      view: what is computed for the rows.
      examples: yields the rows. The first call reads and checks them.
      score: returns the metrics, from all examples and the outputs of their rows.
      metrics: the names of the metrics, without details.
      every: N to score at every Nth evaluation of the run, and at the last.
    """

    name: str
    view: View
    examples: Callable[[], Iterator[Example]]
    score: Callable[[Sequence[tuple[Example, Sequence[Output]]]], Mapping[str, float]]
    metrics: Sequence[str]
    every: int = 1


class PredictionTask(View):
    """A task that predicts. Methods that are not abstract are optional.

    Attributes:
      line: returns a record as one line of text, without the line break. None for tasks without text output.
      open_folder: opens an output folder, for records that do not fit a file of lines. Yields a function that must be
        called with every record, including those of bad inputs; the folder gets its final name after the last one.
        None for tasks that write lines.
      export: writes the parameters as a folder that other libraries, such as transformers, can open. None for tasks
        that cannot be exported.
    """

    line: Callable[[Record], str] | None = None
    open_folder: Callable[[Path], AbstractContextManager[TakeRecord]] | None = None
    export: Callable[[Params, Path], None] | None = None

    @property
    @abc.abstractmethod
    def model(self) -> nn.Module:
        """The Linen module."""

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Vocabulary:
        """The tokenizer with its vocabulary. A translation model has a pair of them, for source and target."""

    @abc.abstractmethod
    def init(self, rng: jax.Array) -> Params:
        """Returns random initial parameters. A pure function that reads no file, so `jax.eval_shape` and `jit` work."""

    def warm_start(self, params: Params, published: "Published") -> Params:
        """Returns parameters initialized from the weights in `init_from`; called only if it is set."""
        del published
        return params

    def inference_params(self, params: Params) -> Params:
        """Returns the parameters of a checkpoint in the form that `model` applies. Default: they have it."""
        return params

    @abc.abstractmethod
    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """Returns (pattern of parameter paths, mesh axis or None for each dimension) pairs.

        A dimension is split over its axis if its size is divisible.
        """

    @abc.abstractmethod
    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """Yields an example for each input of `--mode=predict`; see `bertjax.tasks.inputs` for bad lines.

        Args:
          lines: without line breaks; decoded with `surrogateescape`, so invalid UTF-8 bytes are lone surrogates.
        Raises:
          UserError: for a bad line, naming its number, unless `data.on_bad_row=skip`.
        """

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """Yields the examples of a table, other file format or folder; returns None for lines that `examples` reads."""
        return None

    def examples_in(self, values: Iterable[Any]) -> Iterator[Example]:
        """Yields an example for each Python value, for `bertjax.load`. Default: the task reads only lines.

        Raises:
          UserError: for a bad value, naming its number, unless `data.on_bad_row=skip`.
        """
        got = "Python objects"
        expected = "a file, because the task has no `examples_in`"
        raise UserError("inputs", got=got, expected=expected, fix="use --mode=predict --input=FILE")

    @abc.abstractmethod
    def record(self, example: Example, outputs: Sequence[Output]) -> Record:
        """Returns the record of an example.

        Args:
          example: an example.
          outputs: the outputs of its rows, still padded.
        """

    @abc.abstractmethod
    def record_fields(self) -> Sequence[str]:
        """Returns the names in records, in order, for the columns of CSV and TSV files.

        "a.b" is name "b" of the mapping "a". A mapping without such names is one column of JSON. A record may lack some
        of the names.
        """


@runtime_checkable
class OfficialFormat(Protocol):
    """A task whose predictions have an official format, which an --output that ends in .json selects."""

    def official(self, records: Iterator[Record]) -> Record:
        """Returns the JSON object that the official evaluation scripts read, from the records of all good inputs."""


@runtime_checkable
class AttendingTask(Protocol):
    """A task with attention weights, which --plot draws."""

    def attention(self, params: Params, example: Example, outputs: Sequence[Output]) -> Mapping[str, Attended]:
        """Returns the attention weights of an example with one row, by kind; empty for a model without attention."""


class ScoringTask(PredictionTask):
    """A task that is evaluated without training, on the validation and test examples of its `Data`."""

    @abc.abstractmethod
    def score(self, results: Iterable[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns the metrics of a split, from its examples and the outputs of their rows, which are read once."""


class MiningTask(ScoringTask):
    """A task that also writes training rows with `--mode=mine`.

    Attributes:
      protocol: the settings that metrics depend on, JSON-serializable, for the record of an evaluation.
    """

    protocol: Record

    @abc.abstractmethod
    def mine(self, results: Iterable[tuple[Example, Sequence[Output]]]) -> Iterator[Record]:
        """Yields training rows from the examples of the `Data` and the outputs of their rows, which are read once."""


class Data(abc.ABC):
    """The training, validation and test data of a run, as NumPy arrays, independent of model and mesh.

    Construction reads no rows. Before `prepare`, only `fingerprint` and `is_prepared` may be used, as with
    `tfds.core.DatasetBuilder`; if `is_prepared` is true, everything may be used.
    """

    @property
    @abc.abstractmethod
    def is_prepared(self) -> bool:
        """Whether the data can be read before `prepare`, for example because the vocabulary is given."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A digest of everything that the rows and their encoding depend on."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Writes what the other methods read, such as a vocabulary, unless it exists. Called by process 0 only."""

    @property
    @abc.abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that the rows are encoded with."""

    def complete(self, config: ConfigTree) -> ConfigTree:
        """Returns the config with what rows determine: classes, tag scheme, lengths in updates. May read rows.

        Raises:
          UserError: for rows that are bad or contradict the config.
        """
        return config

    @abc.abstractmethod
    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """Yields the rows with indices `rows` of each global batch, beginning with batch `start`.

        Indices are below `batch_size`. A batch of short rows may hold m * `batch_size` rows; each index then selects m.
        The "train" split is infinite. The "valid" split yields each row once and fills the last batch with rows of
        weight 0; it is empty if `TrainingTask.score` computes all metrics of the split.
        """

    def validation_examples(self) -> Iterator[Example]:
        """Yields validation examples for `score`; none if `TrainingTask.loss` computes all validation metrics."""
        return iter(())

    def test_examples(self) -> Iterator[Example]:
        """Yields test examples for `TrainingTask.score`; none without a test split."""
        return iter(())

    def review(self) -> None:  # noqa: B027
        """Finds what only `report` needs. Called by process 0 of `--mode=prepare`, after `prepare`."""

    def report(self) -> Record:
        """Counts collected while the data were prepared, for the run's page; empty if there are none."""
        return {}

    def baselines(self) -> Mapping[str, float]:
        """Metrics of predictors without a model, such as always the most frequent class. Logged once, at step 0."""
        return {}


class TrainingTask(PredictionTask):
    """A task that also trains, evaluates and exports. Only `samples` is passed the `Data`.

    Attributes:
      uses_dropout: whether updates pass a key to `loss`.
      couples_rows: whether the loss of a row depends on other rows. `loss` then gets the whole global batch, which it
        encodes in `accumulation_steps` slices; see `bertjax.models.slices`.
      decodes: whether `score` reads generated texts, which take so long that weights are not scored before training.
    """

    uses_dropout = True
    couples_rows = False
    decodes = False

    @abc.abstractmethod
    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """Shape and dtype of each field of a global training batch, one mapping for each possible shape."""

    @abc.abstractmethod
    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The divisor of each term of the loss, computed from the whole global batch."""

    @abc.abstractmethod
    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """Returns sums over the rows of a micro-batch. Dropout is off if `rng` is None.

        The metric "tokens" counts tokens that are not padding; sequence-to-sequence models count those of the targets.
        """

    def score_names(self) -> Sequence[str]:
        """The names of all validation metrics, except details of `score`; empty if they are those of `loss`."""
        return ()

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns the metrics of a split, from all of its examples and the outputs of their rows."""
        return {}

    def samples(self, params: Params, data: Data, infer: Infer) -> Iterator[Record]:
        """Yields records for the run's page. Values may be arrays and `Attended`.

        Each "kind" is one that `bertjax.tools.reporting.samples` lists; "loss" orders them by how wrong they are.

        Args:
          params: the parameters.
          data: the run's data.
          infer: takes any number of examples; yields only the first few, with the outputs of their rows.
        """
        return iter(())

    def errors(self, data: Data, infer: Infer) -> Iterator[Record]:
        """Yields a record as `samples` does for each example that `infer` takes, with its "tokens" and "row_tokens"."""
        return iter(())

    @abc.abstractmethod
    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that other libraries, such as transformers, can open."""


class StagedTask(TrainingTask):
    """A task whose updates depend on their position in the run, such as pretraining on short rows first."""

    @abc.abstractmethod
    def stage(self, update: int, num_steps: int) -> int:
        """Returns the index in `batch_specs` of the shapes of an update.

        Args:
          update: the number of the update, from 0 on.
          num_steps: the number of updates of the run.
        """

    @abc.abstractmethod
    def after_update(self, tree: Params, batch: Batch) -> Params:
        """Returns parameters and the optimizer's state after an update on a batch; part of the compiled update.

        Args:
          tree: a pair of parameters and state.
          batch: the batch, or the rows of it on a device.
        """


@runtime_checkable
class TaughtTask(Protocol):
    """A `TrainingTask` whose training batches have fields with the outputs of another model.

    Attributes:
      teacher: the task of that model.
      weights: its weights.
      start: the same if training starts from layers of that model, else None.
      stores: whether its outputs for all rows are computed before training; see `store`.
      learns_labels: whether the loss has the terms of the task without a teacher.
    """

    teacher: TrainingTask
    weights: "Published"
    start: "Published | None"
    stores: bool
    learns_labels: bool

    def batch_specs_of_task(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """Returns the shapes of batches without the further fields, as those of evaluations; see `batch_specs`."""

    def teacher_fields(self, params: Params, batch: Batch) -> Batch:
        """Returns the further fields of a training batch, from the parameters of the teacher; a compiled program."""

    def store(self, data: Data, program: Callable[[Batch], Batch], folder: Path) -> None:
        """Adds the outputs for all training rows to the data, computed by the teacher's program or read.

        Args:
          data: the prepared data.
          program: makes the further fields of a batch.
          folder: where the outputs are kept.
        """

    def check_weights(self, lacks: Params) -> None:
        """Raises UserError if the teacher's weights lack parameters that the student learns from.

        Args:
          lacks: for each parameter of the teacher, whether there are no weights.
        """

    def review(self, metrics: Mapping[str, float]) -> None:
        """Warns of a student that does not learn, by the metrics of updates."""
