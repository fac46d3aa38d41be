"""Base classes of fine-tuning: config, facts and data; lengths of runs in epochs."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import jax
import numpy as np

from bertjax.config import Constrained, Count, DropoutRate, Seed, Size, above, at_least, build_part
from bertjax.contract import Batch, Data, RowIndices
from bertjax.data.fine_tuning.raw_text import RawText
from bertjax.data.prepared import PreparationConfig, PreparedRows, Recipe, ValidRows
from bertjax.data.rows.buckets import BucketedBatches, Padded, Rows, max_examples
from bertjax.data.rows.packed_rows import PackedBatches, count_rows, training_batches
from bertjax.data.rows.stored import Fields
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabulary_config import saved_file
from bertjax.errors import UserError
from bertjax.tasks.bert import INPUTS, BertFacts, batch_specs, read_tokenizer, shapes, stand_in_tokenizer

# Keys of `model` for modules that do not support packed rows.
_NOT_PACKED = ("lstm_size", "feature_layers")


@dataclasses.dataclass(frozen=True)
class WarmStartConfig(Constrained):
    """The config keys of every experiment that trains a BERT from `init_from`.

    Attributes:
      experiment: the name of its file.
      init_from: a Hugging Face folder, a google-research checkpoint or a bertjax run to start from; or "".
      seed: seed of all random numbers: parameters, row order, dropout and others.
      batch_size: rows of an update, over all devices and micro-batches.
      model: fields of `BertConfig` and of the head.
      data: which rows to read, and how to encode them.
    """

    experiment: str
    init_from: str
    seed: Seed
    batch_size: Size
    model: Mapping[str, Any]
    data: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class FineTuningConfig(WarmStartConfig):
    """The config keys of experiments whose length is set in epochs; see `resolve_lengths`.

    Attributes:
      num_epochs: epochs to train for, if `num_steps` is not set.
      warmup_fraction: the warm-up as a fraction of `optimizer.schedule_steps`, or of `num_steps` if that is not set;
        ignored if `optimizer.warmup_steps` is set.
    """

    num_epochs: Annotated[float, above(0, below=math.inf)]
    warmup_fraction: Annotated[float, at_least(0, at_most=1)]


@dataclasses.dataclass(frozen=True)
class HeadConfig(Constrained, prefix="model"):
    """The classifier on top of the encoder; see `bertjax.models.heads`.

    Attributes:
      classifier_dropout: dropout rate of the classifier's input.
      lstm_size: width of each direction of a BiLSTM on top of the encoder; 0 for none.
    """

    classifier_dropout: DropoutRate
    lstm_size: Count


def resolve_lengths(config: Mapping[str, Any], count_rows: Callable[[], int]) -> dict[str, Any]:
    """Fills in `num_steps`, the warm-up, and the intervals of evaluation and saving, where they are None.

    `num_steps` comes from `num_epochs`, `optimizer.warmup_steps` from `warmup_fraction`. Evaluation is once an epoch,
    and saving as often as evaluation.

    Args:
      config: a config with these keys.
      count_rows: returns the number of rows in an epoch; called only if it is needed.
    """
    resolved = {**config, "optimizer": dict(config["optimizer"]), "checkpoint": dict(config["checkpoint"])}
    if open_lengths(config):
        steps_per_epoch = -(-count_rows() // max(config["batch_size"], 1))
        _fill(resolved, "num_steps", max(1, round(config["num_epochs"] * steps_per_epoch)))
        _fill(resolved, "evaluate_every", max(1, min(steps_per_epoch, resolved["num_steps"])))
        _fill(resolved["checkpoint"], "save_every", max(1, resolved["evaluate_every"]))
    scheduled = config["optimizer"].get("schedule_steps") or resolved["num_steps"]
    _fill(resolved["optimizer"], "warmup_steps", round(config["warmup_fraction"] * scheduled))
    return resolved


def open_lengths(config: Mapping[str, Any]) -> list[str]:
    """The unset keys of a config that depend on the number of rows."""
    values = {key: config[key] for key in ("num_steps", "evaluate_every")}
    values["checkpoint.save_every"] = config["checkpoint"]["save_every"]
    return [key for key, value in values.items() if value is None]


def _fill(tree: dict[str, Any], key: str, value: int) -> None:
    """Sets a key that is None. A 0 is kept: the config check reports it if it is invalid."""
    if tree[key] is None:
        tree[key] = value


@dataclasses.dataclass(frozen=True)
class FineTuningFacts(BertFacts):
    """The facts of a task whose length is set in epochs.

    Attributes:
      labels: the classes, in order; empty if the task has none or the config names them.
      count_rows: returns the number of rows in an epoch.
    """

    labels: tuple[str, ...] = ()
    count_rows: Callable[[], int] = lambda: 1

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Facts.complete`; fills in the classes and the lengths in updates."""
        if self.labels:
            config = {**config, "data": {**config["data"], "labels": self.labels}}
        return resolve_lengths(config, self.count_rows)


def read_facts(config: FineTuningConfig, folder: Path) -> FineTuningFacts:
    """See `Experiment.read_facts`."""
    return FineTuningFacts(read_tokenizer(config, folder))


def stand_in_facts(config: FineTuningConfig) -> FineTuningFacts:
    """See `Trainable.stand_in_facts`."""
    return FineTuningFacts(stand_in_tokenizer())


C = TypeVar("C", bound=FineTuningConfig)
R = TypeVar("R", bound=tuple[Any, ...])


class FineTuningData(Data, Generic[C, R]):
    """Data with a given vocabulary and prepared rows. Subclasses define how the rows are read and encoded.

    Without training rows, the validation rows are read into memory instead.
    """

    def __init__(self, config: C, folder: Path, seq_len: int, packing: bool) -> None:
        """Initializes the data.

        Args:
          config: the settings.
          folder: see `Trainable.build_data`.
          seq_len: the maximum number of tokens of a row.
          packing: whether training examples share rows.
        """
        self._config, self._folder, self._seq_len, self._packing = config, folder, seq_len, packing
        self._raw_text = RawText.of(config.data, folder)
        self._preparation = build_part(PreparationConfig, config.data, "data")
        self._trains = bool(config.data["source"])

    @property
    def is_prepared(self) -> bool:
        """See `Data.is_prepared`."""
        return not self._trains or self.prepared.is_finished

    @property
    def fingerprint(self) -> str:
        """See `Data.fingerprint`."""
        return self._raw_text.fingerprint

    def prepare(self) -> None:
        """Copies the vocabulary into the folder, and prepares the rows."""
        self._raw_text.run()
        self.prepared.run()

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The folder's copy of the given vocabulary if it exists; without training rows, the folder's vocabulary."""
        folder = self._raw_text.folder
        if not self._trains and saved_file(folder):
            return read_tokenizer(self._config, folder)
        return self._raw_text.kept_tokenizer()

    @functools.cached_property
    @abc.abstractmethod
    def recipe(self) -> Recipe[R]:
        """How the rows are read and encoded."""

    @functools.cached_property
    def prepared(self) -> PreparedRows[R]:
        """The prepared rows."""
        return PreparedRows(self.recipe, self._folder, self._preparation)

    @functools.cached_property
    def read(self) -> PreparedRows[R] | ValidRows[R]:
        """The facts about the rows, and the validation rows."""
        return self.prepared if self._trains else ValidRows(self.recipe)

    @property
    def facts(self) -> FineTuningFacts:
        """See `Data.facts`."""
        return FineTuningFacts(self.tokenizer, self.labels, self._count_rows)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order; empty for tasks without classes."""
        return ()

    def report(self) -> Mapping[str, Any]:
        """See `Data.report`."""
        if not self._trains:
            return {}
        return {**self.prepared.report, "classes": self.prepared.facts.get("classes", {})}

    def fields(self) -> Fields:
        """The fields of the training rows."""
        return self.prepared.train

    @functools.cached_property
    def _rows(self) -> Padded:
        return Rows(self.fields())

    def _count_rows(self) -> int:
        """The number of rows in an epoch; 1 without training rows."""
        return count_rows(self._rows.lengths, self._seq_len, self._packing) if self._trains else 1

    @functools.cached_property
    def _batches(self) -> BucketedBatches | PackedBatches:
        return training_batches(self._rows, self._seq_len, self._packing, self._config.batch_size, self._config.seed)

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Data.batches`."""
        return self._batches.training(start, rows) if split == "train" else iter(())


def training_specs(
    batch_size: int, length: int, packing: bool, of_tokens: Mapping[str, Any], of_examples: Mapping[str, Any]
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Shape and dtype of each field of `packed_rows.training_batches`; see `Task.batch_specs`.

    Args:
      batch_size, length, packing: see `packed_rows.training_batches`.
      of_tokens: dtypes of the token fields other than BERT's inputs.
      of_examples: dtypes of the example fields.
    """
    if not packing:
        return batch_specs(shapes(batch_size, length), of_tokens, of_examples)
    of_tokens = {**dict.fromkeys((*INPUTS, "position_ids"), np.int32), **of_tokens}
    of_examples = {**of_examples, "cls_positions": np.int32, "weights": np.float32}
    places = batch_size, max_examples(length)
    return [
        {name: jax.ShapeDtypeStruct((batch_size, length), kind) for name, kind in of_tokens.items()}
        | {name: jax.ShapeDtypeStruct(places, kind) for name, kind in of_examples.items()}
    ]


def check_packing(packing: bool, model: Mapping[str, Any]) -> None:
    """Raises UserError if packing is on for a model that would mix the examples of a row.

    Args:
      packing: whether packing is on.
      model: the subtree `model` of the config.
    """
    wrong = [f"model.{key}={model[key]}" for key in _NOT_PACKED if model.get(key)]
    if packing and wrong:
        raise UserError(
            "config key data.packing",
            got=f"True with {', '.join(wrong)}",
            expected="False, or a classifier directly on BERT: a BiLSTM would mix the examples of a row",
            fix="omit one of them",
        )
