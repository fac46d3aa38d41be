"""What all fine-tuning has in common: its config, lengths in epochs, its facts and its data."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import jax
import numpy as np

from bertjax.config import Constrained, Count, DropoutRate, Seed, Size, above, at_least
from bertjax.contract import Batch, Data, RowIndices
from bertjax.data.fine_tuning.given_text import GivenText
from bertjax.data.rows.buckets import BucketedBatches, Padded, Row, Rows, examples_in
from bertjax.data.rows.packed_rows import PackedBatches, count_rows, training_batches
from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError
from bertjax.tasks.bert import INPUTS, BertFacts, batch_specs, read_tokenizer, shapes, stand_in_tokenizer

# Keys of `model` for what knows nothing of packed rows.
_NOT_PACKED = ("lstm_size", "feature_layers")


@dataclasses.dataclass(frozen=True)
class WarmStartConfig(Constrained):
    """The keys of the config that every experiment reads which trains a BERT further.

    Attributes:
      experiment: the name of its file.
      init_from: a Hugging Face folder, a checkpoint of Google's or a run of ours to begin with; or "".
      seed: of parameters, the order of rows, dropout, and whatever else is drawn.
      batch_size: rows of an update, over all devices and micro-batches.
      model: fields of `BertConfig` and of the head.
      data: which rows, and how they are encoded.
    """

    experiment: str
    init_from: str
    seed: Seed
    batch_size: Size
    model: Mapping[str, Any]
    data: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class FineTuningConfig(WarmStartConfig):
    """The keys of those that count epochs; see `resolve_lengths`.

    Attributes:
      num_epochs: how often training goes through the rows, where `num_steps` is not set.
      warmup_fraction: which fraction of the updates, or of `optimizer.schedule_steps`, is warm-up, where
        `optimizer.warmup_steps` is not set.
    """

    num_epochs: Annotated[float, above(0, below=math.inf)]
    warmup_fraction: Annotated[float, at_least(0, at_most=1)]


@dataclasses.dataclass(frozen=True)
class HeadConfig(Constrained, prefix="model"):
    """What classifies on top of the encoder; see `bertjax.models.heads`.

    Attributes:
      classifier_dropout: on what the classifier reads.
      lstm_size: width of each direction of a BiLSTM on top of the encoder; 0 for none.
    """

    classifier_dropout: DropoutRate
    lstm_size: Count


def resolve_lengths(config: Mapping[str, Any], count_rows: Callable[[], int]) -> dict[str, Any]:
    """Fills in what a config leaves open: `num_steps`, the warm-up, and when to evaluate and to save.

    These become `num_epochs`; the fraction `warmup_fraction` of that, or of `optimizer.schedule_steps`; once an epoch.

    Args:
      config: with those keys.
      count_rows: returns the rows of an epoch; not called where nothing that depends on them is open.
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
    """The keys that a config leaves to the number of its rows."""
    values = {key: config[key] for key in ("num_steps", "evaluate_every")}
    values["checkpoint.save_every"] = config["checkpoint"]["save_every"]
    return [key for key, value in values.items() if value is None]


def _fill(tree: dict[str, Any], key: str, value: int) -> None:
    """Sets what is not set; a 0 is, and is told of where it is read."""
    if tree[key] is None:
        tree[key] = value


@dataclasses.dataclass(frozen=True)
class FineTuningFacts(BertFacts):
    """The facts of a task that is fine-tuned for some epochs.

    Attributes:
      labels: the classes, in order; none where there are none, or the config has them.
      count_rows: returns the rows of an epoch.
    """

    labels: tuple[str, ...] = ()
    count_rows: Callable[[], int] = lambda: 1

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Facts.complete`: the classes, and lengths in updates."""
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


class FineTuningData(Data, Generic[C]):
    """Rows that are read as they stand, and a vocabulary that is given. Subclasses read and encode the rows.

    Attributes:
      tokenizer: the vocabulary: the given one, as the folder keeps it; where nothing is trained, that of the folder.
    """

    def __init__(self, config: C, folder: Path, seq_len: int, packing: bool) -> None:
        """Args: settings; see `Trainable.build_data`; tokens of a row at most; whether examples share rows."""
        self._config, self._seq_len, self._packing = config, seq_len, packing
        self._given = GivenText.of(config.data, folder)

    @property
    def is_prepared(self) -> bool:
        """See `Data.is_prepared`."""
        return True

    @property
    def fingerprint(self) -> str:
        """See `Data.fingerprint`."""
        return self._given.fingerprint

    def prepare(self) -> None:
        """Keeps the vocabulary in the folder."""
        self._given.run()

    @functools.cached_property
    def tokenizer(self) -> WordPiece:
        """See the class."""
        folder = self._given.folder
        if not self._config.data["source"] and (folder / "vocab.txt").exists():
            return read_tokenizer(self._config, folder)
        return self._given.kept_tokenizer()

    @property
    def facts(self) -> FineTuningFacts:
        """See `Data.facts`."""
        return FineTuningFacts(self.tokenizer, self.labels, self._count_rows)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes; none where there are none to tell apart."""
        return ()

    @abc.abstractmethod
    def encoded(self) -> Iterable[Row]:
        """The rows to train on: "input_ids", "token_type_ids", and what else the loss needs."""

    @functools.cached_property
    def _rows(self) -> Padded:
        return Rows(self.encoded())

    def _count_rows(self) -> int:
        """The rows of an epoch; 1 where there is nothing to train on."""
        return count_rows(self._rows.lengths, self._seq_len, self._packing) if self._config.data["source"] else 1

    @functools.cached_property
    def _batches(self) -> BucketedBatches | PackedBatches:
        return training_batches(self._rows, self._seq_len, self._packing, self._config.batch_size, self._config.seed)

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Data.batches`."""
        return self._batches.training(start, rows) if split == "train" else iter(())


def training_specs(
    batch_size: int, length: int, packing: bool, of_tokens: Mapping[str, Any], of_examples: Mapping[str, Any]
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Shape and type of each field of `packed_rows.training_batches`; see `Task.batch_specs`.

    Args:
      batch_size, length, packing: as there.
      of_tokens: types of what tokens have beside BERT's inputs.
      of_examples: types of what examples have.
    """
    if not packing:
        return batch_specs(shapes(batch_size, length), of_tokens, of_examples)
    of_tokens = {**dict.fromkeys((*INPUTS, "position_ids"), np.int32), **of_tokens}
    of_examples = {**of_examples, "cls_positions": np.int32, "weights": np.float32}
    places = batch_size, examples_in(length)
    return [
        {name: jax.ShapeDtypeStruct((batch_size, length), kind) for name, kind in of_tokens.items()}
        | {name: jax.ShapeDtypeStruct(places, kind) for name, kind in of_examples.items()}
    ]


def check_packing(packing: bool, model: Mapping[str, Any]) -> None:
    """Raises UserError if rows are to be packed for a model that reads on from one example into the next.

    Args:
      packing: whether they are.
      model: the config's.
    """
    wrong = [f"model.{key}={model[key]}" for key in _NOT_PACKED if model.get(key)]
    if packing and wrong:
        raise UserError(
            "config key data.packing",
            got=f"True with {', '.join(wrong)}",
            expected="False, or a classifier on BERT itself: a BiLSTM reads on from one example of a row into the next",
            fix="leave out --config.data.packing, or that",
        )
