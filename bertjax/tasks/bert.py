"""What all tasks of a BERT have in common: configuration, inputs, weights to begin with, vocabulary and export."""

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
from bertjax.data.text.given_vocabulary import VocabularyConfig, given_vocabulary
from bertjax.data.text.tokenizers import SPECIALS, WordPiece
from bertjax.data.text.vocabularies import is_bare
from bertjax.errors import UserError
from bertjax.interop import huggingface
from bertjax.models.bert import BertConfig, BertInputs
from bertjax.models.transformer import TENSOR_RULES
from bertjax.tasks import pretrained, samples

_log = logging.getLogger(__name__)
_MOST_PADDING = 128  # embeddings without a token, which some have to fill up a multiple of that
INPUTS = ("input_ids", "token_type_ids", "segment_ids")


@runtime_checkable
class HasModel(Protocol):
    """The config of an experiment with a BERT, which may have nothing to train."""

    @property
    def init_from(self) -> str:
        """A folder with weights, or ""."""

    @property
    def model(self) -> Mapping[str, Any]:
        """Fields of `BertConfig` and of what is on top of it."""

    @property
    def data(self) -> Mapping[str, Any]:
        """How text is read and encoded, "lowercase" among it."""


C = TypeVar("C", bound=HasModel)


def model_configs(config: HasModel, head: type, vocab: Sequence[str]) -> tuple[BertConfig, Any]:
    """The encoder's configuration, and that of the head on top of it.

    Args:
      config: whose `model` has the fields of both.
      head: the dataclass of the head.
      vocab: the vocabulary, as large as the model's where `model.vocab_size` does not say another size.
    Raises:
      UserError: a key that neither knows or that is missing, or a value out of range.
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
            else "leave out --config.model.vocab_size, which follows from the vocabulary",
        )
    if bert.vocab_size - size > _MOST_PADDING and not is_bare(vocab):
        _log.warning(
            "data.vocab_file has %d tokens for %d embeddings: is it that of the weights?", size, bert.vocab_size
        )
    return bert, found


def check_two_segments(config: BertConfig) -> None:
    """Raises UserError for a BERT without a token type for each of two texts."""
    if config.type_vocab_size < 2:
        raise UserError(
            "config key model.type_vocab_size",
            got=config.type_vocab_size,
            expected="at least 2, a token type for each of two segments",
            fix="begin with a BERT that has them",
        )


@dataclasses.dataclass(frozen=True)
class BertFacts(Facts):
    """The facts of a task whose data determine a vocabulary alone.

    Attributes:
      tokenizer: with the vocabulary.
    """

    tokenizer: WordPiece

    def save(self, folder: Path) -> None:
        """See `Facts.save`."""
        self.tokenizer.save(folder)


def read_tokenizer(config: HasModel, folder: Path) -> WordPiece:
    """The vocabulary in a folder, cased as `data.lowercase` says."""
    return given_vocabulary(folder, build_part(VocabularyConfig, config.data, "data").lowercase)


def stand_in_tokenizer() -> WordPiece:
    """Special tokens in the place of a vocabulary, where only settings are checked."""
    return WordPiece(SPECIALS, lowercase=True)


def read_facts(config: HasModel, folder: Path) -> BertFacts:
    """See `Experiment.read_facts`."""
    return BertFacts(read_tokenizer(config, folder))


def stand_in_facts(config: HasModel) -> BertFacts:
    """See `Trainable.stand_in_facts`."""
    return BertFacts(stand_in_tokenizer())


class BertPredicts(Predicts, Generic[C]):
    """A task with a model that has BERT as `bert`."""

    def __init__(self, config: C, tokenizer: WordPiece, bert: BertConfig, model: nn.Module, seq_len: int) -> None:
        """Initializes the task.

        Args:
          config: its settings.
          tokenizer: with the vocabulary.
          bert: the configuration of `bert`.
          model: the whole model.
          seq_len: tokens of a row to predict on, at most.
        """
        self._config, self._tokenizer, self._seq_len = config, tokenizer, seq_len
        self._model_config, self._model = bert, model

    def init(self, rng: jax.Array) -> Params:
        """See `Predicts.init`."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return self._model.init(rng, BertInputs(ids, ids, ids), deterministic=True)["params"]

    def warm_start(self, params: Params) -> Params:
        """See `Predicts.warm_start`."""
        if not self._config.init_from:
            return params
        folder = Path(self._config.init_from)
        return pretrained.warm_start(params, folder, self.modules_afresh(folder))

    def modules_afresh(self, folder: Path) -> Sequence[str]:
        """The modules that start afresh even if a folder has weights of that name."""
        return ()

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        """See `Predicts.partition_rules`."""
        return TENSOR_RULES

    def predict_lengths(self) -> Sequence[int]:
        """See `Predicts.predict_lengths`."""
        return bucket_lengths(self._seq_len)

    def apply(self, params: Params, batch: Batch, rng: jax.Array | None) -> Any:
        """Returns the model's output for BERT's inputs; without `rng`, dropout is off."""
        rngs = {} if rng is None else {"dropout": rng}
        inputs = BertInputs.of(batch)
        return self._model.apply({"params": params}, inputs, deterministic=rng is None, rngs=rngs)


class BertTask(BertPredicts[C], Task):
    """A task that trains such a model.

    Attributes:
      architecture: the class of transformers that opens what is exported.
      labels: the names of the classes, in order; none where there are none.
    """

    architecture: str
    labels: Sequence[str] = ()

    def samples(self, params: Params, data: Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Yields held-out examples, the first of them with what their tokens attend to; and the positions."""
        for number, (example, outputs) in enumerate(infer(self.shown(data))):
            seen = samples.attention(number, example, params, self._model_config, self._tokenizer.vocab)
            yield {**self.sample(example, outputs), **seen}
        yield from samples.bert_positions(params)

    def shown(self, data: Data) -> Iterator[Example]:
        """Yields the examples that the run's page may show."""
        return data.held_out()

    @abc.abstractmethod
    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record of a held-out example as the run's page shows it: with its "kind" and the reference."""

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that `from_pretrained` of transformers' `architecture` opens."""
        huggingface.save(folder, params, self._model_config, self.architecture, self.labels or None)
        self._tokenizer.save(folder, self._model_config.max_positions)


def batch_specs(
    shapes: Iterable[tuple[int, ...]], of_tokens: Mapping[str, Any], of_rows: Mapping[str, Any]
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Shape and type of each field of a batch; see `Task.batch_specs`.

    Args:
      shapes: of the tokens of a batch: rows and length, see `shapes`, or rows, choices of each and length.
      of_tokens: types of what tokens have beside BERT's inputs.
      of_rows: types of what rows have.
    """
    of_tokens = {**dict.fromkeys(INPUTS, np.int32), **of_tokens}
    of_rows = {**of_rows, "weights": np.float32}
    return [
        {name: jax.ShapeDtypeStruct(shape, kind) for name, kind in of_tokens.items()}
        | {name: jax.ShapeDtypeStruct(shape[:1], kind) for name, kind in of_rows.items()}
        for shape in shapes
    ]


def shapes(batch_size: int, seq_len: int) -> list[tuple[int, int]]:
    """As many rows of each bucket's length."""
    return [(batch_size, length) for length in bucket_lengths(seq_len)]


def to_example(rows: Sequence[Mapping[str, np.ndarray]], source: Any) -> Example:
    """An example whose rows have BERT's inputs, `segment_ids` among them."""
    return Example([{**row, "segment_ids": np.ones(len(row["input_ids"]), np.int32)} for row in rows], source)
