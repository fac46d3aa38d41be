"""Base classes of fine-tuning: config, data and tasks."""

import abc
import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.config import Composed, Count, DropoutRate, Flat, above, always, at_least
from bertjax.contract import Batch, Example, Metrics, Params
from bertjax.data.prepared import PreparationConfig
from bertjax.data.readers import tables
from bertjax.data.rows import buckets
from bertjax.data.rows.buckets import BucketedBatches, BucketsConfig, Padded, Rows
from bertjax.data.rows.packed_rows import PackedBatches, count_rows, training_batches
from bertjax.data.rows.stored import Fields
from bertjax.data.rows.targets import Targets, WithTargets
from bertjax.data.splits import VALID, SplitConfig
from bertjax.data.text import vocabulary_config
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import AddedTokensConfig, VocabularyConfig
from bertjax.files import Fingerprint
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.tasks import bert, completion, inputs
from bertjax.tasks.bert import BertTask, SampledTask
from bertjax.tasks.prepared_data import ExperimentConfig, PreparedData
from bertjax.tasks.teachers import TeacherConfig

_log = logging.getLogger(__name__)

# Keys of `model` for modules that do not support packed rows.
_NOT_PACKED = ("lstm_size", "feature_layers")
_LOGGED_CLASSES = 20  # of each split; rows.json has all


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartConfig(ExperimentConfig):
    """The config keys of every experiment that trains a BERT from `init_from`.

    Attributes:
      init_from: a folder of Hugging Face or sentence-transformers, a google-research checkpoint or a bertjax run to
        take weights, sizes and vocabulary from; or "".
      model: the encoder and the head.
    """

    model: bert.ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochsConfig(WarmStartConfig):
    """The config keys of experiments whose length is set in epochs; see `completion.lengths`.

    Attributes:
      num_epochs: epochs to train for, if `num_steps` is not set.
      warmup_fraction: the warm-up as a fraction of `optimizer.schedule_steps`, or of `num_steps` if that is not set;
        ignored if `optimizer.warmup_steps` is set.
    """

    num_epochs: Annotated[float, above(0, below=math.inf)] = always(3.0)
    warmup_fraction: Annotated[float, at_least(0, at_most=1)] = always(0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Composed, prefix="data"):
    """The keys of `data` of all fine-tuning. Tasks set `rows` to the config of their codec.

    A task also has `data.seq_len`, the maximum number of tokens of a row, including special tokens.
    """

    rows: Flat[SplitConfig]
    vocabulary: Flat[VocabularyConfig]
    added_tokens: Flat[AddedTokensConfig]
    preparation: Flat[PreparationConfig]
    buckets: Flat[BucketsConfig]

    @property
    def is_packed(self) -> bool:
        """Whether training rows hold several examples; `packing` is a key of tasks that can pack rows."""
        return getattr(self, "packing", False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningConfig(EpochsConfig, TeacherConfig):
    """The config keys of fine-tuning on rows of one or two texts."""

    data: DataConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        buckets.check_seq_len(self.data.seq_len, self.model.max_positions)
        wrong = [f"model.{key}={value}" for key in _NOT_PACKED if (value := getattr(self.model, key, None))]
        expected = "False, or a classifier directly on BERT: a BiLSTM would mix the examples of a row"
        got = f"True with {', '.join(wrong)}"
        ok = not (self.data.is_packed and wrong)
        self.data.check(ok, "packing", expected, got=got, fix="omit one of them")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassWeightsConfig(FineTuningConfig):
    """The config keys of fine-tuning with classes that may have unequal weights in the loss.

    Attributes:
      class_weights: weights of the classes in the loss, in the order of `data.labels`; empty for 1 each.
    """

    class_weights: tuple[float, ...] = ()

    def check_weights(self, labels: Sequence[str]) -> None:
        """Raises UserError unless there are no class weights, or a valid one for each class."""
        weights = self.class_weights
        fix = "give the weights in that order"
        ok = not weights or (len(weights) == len(labels) and min(weights) >= 0 and 0 < sum(weights) < math.inf)
        expected = f"a number of 0 or more for each of {', '.join(labels)}, not all of them 0, or no weights"
        self.check(ok, "class_weights", expected, fix=fix)

    def weighted(self, weights: jax.Array, labels: jax.Array) -> jax.Array:
        """Returns the weight of each label in the loss: its weight in the batch times that of its class."""
        weights = jnp.asarray(weights)
        return weights * jnp.asarray(self.class_weights)[labels] if self.class_weights else weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(bert.ModelConfig):
    """The encoder with a classifier on top; see `bertjax.models.heads`.

    Attributes:
      classifier_dropout: dropout rate of the classifier's input.
      lstm_size: width of each direction of a BiLSTM on top of the encoder; 0 for none.
    """

    classifier_dropout: DropoutRate = always(0.1)
    lstm_size: Count = always(0)


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Returns the config for an epoch of one row, and a vocabulary of the special tokens."""
    return bert.example_config(completion.lengths(config, lambda: 1))


C = TypeVar("C", bound=FineTuningConfig)
R = TypeVar("R", bound=tuple[Any, ...])


class FineTuningData(PreparedData[C, R]):
    """Data with a given vocabulary. Subclasses define how the rows are read and encoded."""

    _targets: Targets = MappingProxyType({})

    @property
    def fingerprint(self) -> str:
        """A digest of the rows and their vocabulary. Raises UserError if there are no training rows."""
        self._check_source()
        paths = {f"data.{key}": getattr(self._config.data, key) for key in ("source", "valid_source")}
        sources = {key: tables.fingerprint(source, key) for key, source in paths.items() if source}
        return Fingerprint.of([sources, *self._given().content])

    def write_vocabulary(self) -> None:
        """Copies the vocabulary into the folder, unless the folder has the same tokens and casing already.

        A run therefore keeps the maximum word length that it started with, which is not part of the fingerprint.
        """
        self._check_source()
        if self._kept() is None:
            self._given().save(self._folder)

    def prepare(self) -> None:
        """Logs the number of rows of each class when the rows are prepared."""
        is_new = not self.is_prepared
        super().prepare()
        for split, counts in self.class_counts.items() if is_new else ():
            first = [f"{name} {count:,}" for name, count in itertools.islice(counts.items(), _LOGGED_CLASSES)]
            more = f" and {len(counts) - len(first):,} more classes" if len(counts) > len(first) else ""
            if counts:  # a regression has no classes
                _log.info("%s split by class: %s%s", split, ", ".join(first), more)

    @functools.cached_property
    def vocabulary(self) -> EncoderTokenizer:
        """The folder's copy of the given vocabulary if it exists; without training rows, the folder's vocabulary."""
        if not self._trains and vocabulary_config.saved_file(self._folder):
            data = self._config.data
            return vocabulary_config.load_tokenizer(self._folder, data.lowercase, strip_accents=data.strip_accents)
        return self._kept() or self._given()

    def _kept(self) -> EncoderTokenizer | None:
        """The vocabulary in the folder if it has the tokens and casing of the given one."""
        vocabulary = vocabulary_config.load_saved(self._folder) if vocabulary_config.saved_file(self._folder) else None
        return vocabulary if vocabulary and vocabulary.content == self._given().content else None

    def _given(self) -> EncoderTokenizer:
        data = self._config.data
        fix = "set --config.data.vocab_file or --config.init_from"
        got = "nothing, and no init_from with a vocabulary"
        expected = "a vocab.txt, or a tokenizer.json, or a folder"
        data.check(data.vocab_file, "vocab_file", f"{expected} with a vocabulary", got=got, fix=fix)
        return vocabulary_config.load_tokenizer(
            Path(data.vocab_file), data.lowercase, data.add_tokens, data.strip_accents
        )

    def _check_source(self) -> None:
        fix = "set --config.data.source=FILE"
        self._config.data.check(self._trains, "source", "rows to train on", got="nothing", fix=fix)

    @functools.cached_property
    def valid(self) -> list[Example]:
        """The validation examples. Their sources are `inputs.Source`."""
        return list(inputs.encoded(self.codec, self.read.held_out(VALID)))

    def examples(self, split: str) -> Iterator[Example]:
        """Yields the validation examples; there is no test split."""
        return iter(self.valid if split == VALID else ())

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fills in the classes and, with training rows, the lengths in updates."""
        config = super().complete(config)
        if self.labels:
            config["data"]["labels"] = self.labels
        return completion.lengths(config, self._count_rows) if self._trains else config

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order; empty for tasks without classes."""
        return ()

    @property
    def class_counts(self) -> Mapping[str, Mapping[str, int]]:
        """The training and validation rows of each class, by split; empty for tasks without classes."""
        return self.prepared.facts.get("classes", {})

    def report(self) -> Mapping[str, Any]:
        return {**super().report(), "classes": self.class_counts} if self._trains else {}

    def fields(self) -> Fields:
        """The fields of the training rows."""
        return self.prepared.fields

    @functools.cached_property
    def rows(self) -> Padded:
        return Rows(self.fields())

    def _count_rows(self) -> int:
        """The number of rows in an epoch."""
        return count_rows(self.rows.lengths, self._config.data.seq_len, self._config.data.is_packed)

    def add_targets(self, targets: Targets) -> None:
        """Adds fields with a value for each of `rows` to the training batches, before any of these are made."""
        self._targets = targets

    @functools.cached_property
    def train(self) -> BucketedBatches | PackedBatches:
        config = self._config
        data = self._config.data
        lengths = buckets.bucket_lengths(data.seq_len, self.row_lengths)
        rows = WithTargets(self.rows, self._targets) if self._targets else self.rows
        return training_batches(rows, lengths, data.is_packed, config.batch_size, config.seed)


class FineTuningTask(BertTask[C], SampledTask):
    """A task that trains a BERT with a head on prepared rows.

    Attributes:
      loss_name: the name of the loss.
      heads: modules that keep their random initialization unless the weights in `init_from` are those of this task.
      token_dtypes: dtypes of the token fields of a training batch other than BERT's inputs.
      example_dtypes: dtypes of the fields with a value for each example, other than "weights"; with a shape for several
        values.
    """

    loss_name: str
    heads: Sequence[str] = ()
    token_dtypes: Mapping[str, Any] = MappingProxyType({})
    example_dtypes: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, config: C, vocabulary: EncoderTokenizer) -> None:
        encoder = config.model.encoder(vocabulary.vocab)
        super().__init__(config, vocabulary, encoder, self.with_head(encoder, config), config.data.seq_len)

    @abc.abstractmethod
    def with_head(self, encoder: HeadConfig, config: C) -> nn.Module:
        """Returns the whole model."""

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of the rows of an example: () for one row."""
        return ()

    def reinitialized_modules(self, published: Published) -> Sequence[str]:
        return () if published.experiment == self._config.experiment else self.heads

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """The shapes of `packed_rows.training_batches`."""
        size = self._config.batch_size
        length = self._config.data.seq_len
        if self._config.data.is_packed:
            token_dtypes = {"position_ids": np.int32, **self.token_dtypes}
            example_dtypes = {"cls_positions": np.int32, **self.example_dtypes}
            room = (size, buckets.max_examples(length))
            return bert.batch_specs([(size, length)], token_dtypes, example_dtypes, room)
        shapes = [(size, *self.example_shape, length) for length in super().predict_lengths()]
        return bert.batch_specs(shapes, self.token_dtypes, self.example_dtypes)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The number of examples."""
        return {self.loss_name: jnp.maximum(jnp.sum(batch["weights"]), 1.0)}

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the model's logits."""
        return {"logits": self.apply(params, batch, None)}


def metrics(batch: Batch, right: jax.Array | None, weights: jax.Array) -> Metrics:
    """Returns the metrics "tokens" and, unless `right` is None, "accuracy", its weighted mean."""
    values = {"tokens": (jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(()))}
    if right is not None:
        values["accuracy"] = jnp.sum(right * weights), jnp.sum(weights)
    return values
