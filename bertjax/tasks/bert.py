"""Base classes of tasks with a BERT: model config, inputs, vocabulary, initial weights and export."""

import abc
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.config import build_all, build_part
from bertjax.contract import Batch, Data, Example, Facts, Infer, Output, Params, Predicts, Task
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.data.text.tokenizers import SPECIALS, Tokenizer, WordPiece
from bertjax.data.text.vocabularies import has_only_specials
from bertjax.data.text.vocabulary_config import VocabularyConfig, load_tokenizer
from bertjax.errors import UserError
from bertjax.interop import huggingface
from bertjax.models.bert import BertConfig, BertInputs
from bertjax.models.transformer import TENSOR_RULES
from bertjax.tasks import pretrained, samples

_log = logging.getLogger(__name__)
_MOST_PADDING = 128  # embeddings without a token: some models round the vocabulary size up to a multiple of this
INPUTS = ("input_ids", "token_type_ids", "segment_ids")


@runtime_checkable
class HasModel(Protocol):
    """The config keys that every experiment with a BERT has, including those that only predict."""

    @property
    def init_from(self) -> str:
        """A folder with weights, or ""."""

    @property
    def model(self) -> Mapping[str, Any]:
        """Fields of `BertConfig` and of the head."""

    @property
    def data(self) -> Mapping[str, Any]:
        """How text is read and encoded; includes the fields of `VocabularyConfig`."""


C = TypeVar("C", bound=HasModel)


def model_configs(config: HasModel, head: type, vocab: Sequence[str]) -> tuple[BertConfig, Any]:
    """Returns the configuration of the encoder and of the head.

    Args:
      config: the config; its `model` has the fields of both.
      head: the dataclass of the head.
      vocab: the vocabulary. Its size is the default of `model.vocab_size`.
    Raises:
      UserError: for an unknown or missing key, a value out of range, or a vocabulary larger than `model.vocab_size`.
    """
    size = len(vocab)
    values = {**config.model, "vocab_size": config.model.get("vocab_size") or size, "next_sentence": False}
    bert, found = build_all((BertConfig, head), values, "model")
    if size > bert.vocab_size:
        raise UserError(
            "config key data.vocab_file",
            got=f"{size} tokens",
            expected=f"at most {bert.vocab_size}, model.vocab_size",
            fix="restore the vocabulary that the weights in init_from were trained with"
            if config.init_from
            else "omit --config.model.vocab_size, which follows from the vocabulary",
        )
    if bert.vocab_size - size > _MOST_PADDING and not has_only_specials(vocab):
        _log.warning(
            "data.vocab_file has %d tokens for %d embeddings: is it the vocabulary of these weights?",
            size,
            bert.vocab_size,
        )
    return bert, found


def check_two_segments(config: BertConfig) -> None:
    """Raises UserError if the model has only one token type. Without any, [SEP] alone separates two segments."""
    if config.type_vocab_size == 1:
        raise UserError(
            "config key model.type_vocab_size",
            got=config.type_vocab_size,
            expected="at least 2, a token type for each of two segments, or 0",
            fix="use a BERT that has them",
        )


@dataclasses.dataclass(frozen=True)
class BertFacts(Facts):
    """The facts of a task that needs only a vocabulary.

    Attributes:
      tokenizer: the tokenizer, with the vocabulary.
    """

    tokenizer: Tokenizer

    def save(self, folder: Path) -> None:
        """See `Facts.save`."""
        self.tokenizer.save(folder)


def read_tokenizer(config: HasModel, folder: Path) -> Tokenizer:
    """Reads the vocabulary in a folder; `data.lowercase` determines the casing."""
    return load_tokenizer(folder, build_part(VocabularyConfig, config.data, "data").lowercase)


def stand_in_tokenizer(more: Sequence[str] = ()) -> Tokenizer:
    """A vocabulary of the special tokens and `more` of them only, for checks of settings."""
    return WordPiece((*SPECIALS, *more), lowercase=True)


def read_facts(config: HasModel, folder: Path) -> BertFacts:
    """See `Experiment.read_facts`."""
    return BertFacts(read_tokenizer(config, folder))


def stand_in_facts(config: HasModel) -> BertFacts:
    """See `Trainable.stand_in_facts`."""
    return BertFacts(stand_in_tokenizer())


class BertPredicts(Predicts, Generic[C]):
    """A task that predicts with a model whose encoder is a BERT named `bert`."""

    def __init__(self, config: C, tokenizer: Tokenizer, bert: BertConfig, model: nn.Module, seq_len: int) -> None:
        """Initializes the task.

        Args:
          config: the settings.
          tokenizer: the tokenizer, with the vocabulary.
          bert: the configuration of the encoder.
          model: the whole model.
          seq_len: the maximum number of tokens of a row to predict on.
        """
        self._config, self._tokenizer, self._seq_len = config, tokenizer, seq_len
        self._model_config, self._model = bert, model

    @property
    def model(self) -> nn.Module:
        """See `Predicts.model`."""
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        """See `Predicts.tokenizer`."""
        return self._tokenizer

    def init(self, rng: jax.Array) -> Params:
        """See `Predicts.init`."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return self._model.init(rng, BertInputs(ids, ids, ids), deterministic=True)["params"]

    def warm_start(self, params: Params) -> Params:
        """See `Predicts.warm_start`."""
        if not self._config.init_from:
            return params
        folder = Path(self._config.init_from)
        return pretrained.warm_start(params, folder, self.reinitialized_modules(folder))

    def reinitialized_modules(self, folder: Path) -> Sequence[str]:
        """Names of modules that keep their random initialization even if the folder has weights for them."""
        return ()

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """See `Predicts.partition_rules`."""
        return TENSOR_RULES

    def predict_lengths(self) -> Sequence[int]:
        """See `Predicts.predict_lengths`."""
        return bucket_lengths(self._seq_len)

    def apply(self, params: Params, batch: Batch, rng: jax.Array | None) -> Any:
        """Returns the model's output for the `BertInputs` of a batch. Dropout is off if `rng` is None."""
        rngs = {} if rng is None else {"dropout": rng}
        inputs = BertInputs.of(batch)
        return self._model.apply({"params": params}, inputs, deterministic=rng is None, rngs=rngs)


class BertTask(BertPredicts[C], Task):
    """A task that trains a model whose encoder is a BERT.

    Attributes:
      architecture: the class of transformers that opens the exported folder.
      labels: the names of the classes, in order; empty for tasks without classes.
    """

    architecture: str
    labels: Sequence[str] = ()

    def samples(self, params: Params, data: Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Yields validation examples, the first few with attention weights, and the position embeddings."""
        for number, (example, outputs) in enumerate(infer(self.shown(data))):
            seen = samples.attention(number, example, params, self._model_config, self._tokenizer)
            yield {**self.sample(example, outputs), **seen}
        yield from samples.bert_positions(params)

    def shown(self, data: Data) -> Iterator[Example]:
        """Yields candidates for the examples on the run's page."""
        return data.held_out()

    @abc.abstractmethod
    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record of a validation example for the run's page, with its "kind" and the reference."""

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that `from_pretrained` of the transformers class `architecture` opens."""
        tokenizer, labels = self._tokenizer, self.labels or None
        special = {"pad": tokenizer.pad_id, "cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
        huggingface.save(folder, params, self._model_config, self.architecture, labels, special=special)
        has_types = self._model_config.type_vocab_size > 0
        tokenizer.save(folder, self._model_config.max_positions, token_types=has_types)


def batch_specs(
    shapes: Iterable[tuple[int, ...]], of_tokens: Mapping[str, Any], of_rows: Mapping[str, Any]
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Shape and dtype of each field of a batch; see `Task.batch_specs`.

    Args:
      shapes: shapes of the token fields: (rows, length) as `shapes` returns, or (rows, choices, length).
      of_tokens: dtypes of the token fields other than BERT's inputs.
      of_rows: dtypes of the row fields other than "weights".
    """
    of_tokens = {**dict.fromkeys(INPUTS, np.int32), **of_tokens}
    of_rows = {**of_rows, "weights": np.float32}
    return [
        {name: jax.ShapeDtypeStruct(shape, kind) for name, kind in of_tokens.items()}
        | {name: jax.ShapeDtypeStruct(shape[:1], kind) for name, kind in of_rows.items()}
        for shape in shapes
    ]


def shapes(batch_size: int, seq_len: int) -> list[tuple[int, int]]:
    """The shape of a batch for each bucket length; all have `batch_size` rows."""
    return [(batch_size, length) for length in bucket_lengths(seq_len)]


def to_example(rows: Sequence[Mapping[str, np.ndarray]], source: Any) -> Example:
    """Returns an example whose rows also have `segment_ids`, 1 at every token."""
    return Example([{**row, "segment_ids": np.ones(len(row["input_ids"]), np.int32)} for row in rows], source)
