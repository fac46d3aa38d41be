"""Base classes of data with prepared rows: a vocabulary in a folder, and the rows that it encodes."""

import abc
import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from bertjax.config import Constrained, Seed, Size, always
from bertjax.contract import Batch, Data, Example, RowIndices
from bertjax.data.codecs.codec import TrainingCodec
from bertjax.data.prepared import PreparedRows, ValidRows
from bertjax.data.rows.buckets import (
    BucketedBatches,
    Padded,
    bucket_lengths,
    budget_sizes,
    choose_lengths,
    tokens_per_length,
)
from bertjax.data.splits import TRAIN, VALID
from bertjax.data.text.form import Form, contradiction
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.interop.published import Published
from bertjax.progress import log_once


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Constrained):
    """The config keys of every experiment that trains.

    Attributes:
      experiment: the name of its file.
      init_from: the weights to start from; or "".
      seed: seed of all random numbers, such as those of parameters, data order, masks and dropout.
      batch_size: rows of an update, over all devices and micro-batches.
      model: the sizes of the model.
      data: which rows to read, and how to encode them.
    """

    experiment: str
    init_from: str = always("")
    seed: Seed = always(0)
    batch_size: Size = always(32)
    model: Any
    data: Any

    @abc.abstractmethod
    def codec(self, vocabulary: Any) -> Any:
        """Returns the kind of the rows: a `Codec`, or a `TrainingCodec` of rows that are prepared."""


C = TypeVar("C", bound=ExperimentConfig)
R = TypeVar("R", bound=tuple[Any, ...])


@runtime_checkable
class Batches(Protocol):
    """Batches of a split."""

    def training(self, start: int, rows: RowIndices) -> Iterator[Batch]:
        """Yields the rows `rows` of the global batch of each step from `start` on, without end."""


class PreparedData(Data, Generic[C, R]):
    """Data with prepared training rows. Subclasses define the vocabulary, and how rows are read and encoded.

    Without training rows, the folder has the vocabulary of a model, and the other rows are read into memory.
    """

    def __init__(self, config: C, folder: Path, published: Published | None) -> None:
        self._config = config
        self._folder = folder
        self._published = published
        self._trains = bool(config.data.source)

    @property
    def prepares(self) -> bool:
        """Whether there are rows to prepare."""
        return self._trains

    @property
    def has_vocabulary(self) -> bool:
        """Whether the vocabulary is known before `prepare`."""
        return True

    @property
    def is_prepared(self) -> bool:
        return not self._trains or (self.has_vocabulary and (not self.prepares or self.prepared.is_finished))

    def prepare(self) -> None:
        """Writes the vocabulary into the folder, and prepares the rows."""
        self.write_vocabulary()
        if self.prepares:
            self.prepared.run()

    @abc.abstractmethod
    def write_vocabulary(self) -> None:
        """Writes the vocabulary into the folder, unless the folder has it already."""

    @functools.cached_property
    def codec(self) -> TrainingCodec[R]:
        """The kind of the rows."""
        return self._config.codec(self.vocabulary)

    @functools.cached_property
    def prepared(self) -> PreparedRows[R]:
        """The prepared rows."""
        return PreparedRows(self.codec, self._folder, self._config.data.preparation)

    @functools.cached_property
    def read(self) -> PreparedRows[R] | ValidRows[R]:
        """What was found in the rows, and the rows of splits other than "train"."""
        return self.prepared if self.prepares else ValidRows(self.codec)

    def report(self) -> Mapping[str, Any]:
        return self.prepared.report if self.prepares else {}

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fills in `data.row_lengths`."""
        return {**config, "data": {**config["data"], "row_lengths": self.row_lengths}}

    def warn_of_form(self, forms: Mapping[str, Form], tokenizer: Tokenizer, *, at_spaces: bool = False) -> None:
        """Logs a warning if the texts of a split do not have the form that the vocabulary needs."""
        published = self._published
        is_published = bool(self._config.data.vocab_file or (published and not published.is_run))
        for split, form in forms.items():
            if message := contradiction(form, tokenizer, is_published=is_published, at_spaces=at_spaces):
                log_once(f"{split}: {message}", logging.WARNING)

    @functools.cached_property
    def row_lengths(self) -> tuple[int, ...]:
        """Those of `BucketsConfig`; () for many, for packed rows, and without prepared rows."""
        data = self._config.data
        if data.row_lengths is not None or getattr(data, "packing", False) or not self.prepares:
            return data.row_lengths or ()
        model = self._config.model
        # A layer has four products in attention, and two of usually four times the width. The recurrent model has about
        # as many, and no key for layers.
        parameters = 12 * getattr(model, "num_layers", 1) * model.hidden_size**2
        return choose_lengths(self.rows.lengths, data.seq_len, tokens_per_length(parameters))

    @functools.cached_property
    @abc.abstractmethod
    def rows(self) -> Padded:
        """The prepared training rows."""

    @functools.cached_property
    @abc.abstractmethod
    def train(self) -> Batches:
        """The training batches."""

    @functools.cached_property
    def valid_batches(self) -> BucketedBatches | None:
        """The validation batches; None if `score` computes all validation metrics."""
        return None

    def bucketed(self, rows: Padded) -> BucketedBatches:
        """Returns batches of rows of about the same length, with about as many tokens each."""
        lengths = bucket_lengths(self._config.data.seq_len, self.row_lengths)
        return BucketedBatches(rows, lengths, budget_sizes(lengths, self._config.batch_size), self._config.seed)

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        if split == TRAIN:
            return self.train.training(start, rows)
        return self.valid_batches.evaluation(rows) if self.valid_batches else iter(())

    @abc.abstractmethod
    def examples(self, split: str) -> Iterator[Example]:
        """Yields the examples of "valid" or "test" to score; none without that split."""

    def validation_examples(self) -> Iterator[Example]:
        return self.examples(VALID)

    def test_examples(self) -> Iterator[Example]:
        return self.examples("test")
