"""Base classes of tasks with a BERT: model config, inputs, vocabulary, initial weights and export."""

import abc
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.config import DropoutRate, Size, one_of, part
from bertjax.contract import Batch, Data, Example, Infer, Output, Params, PredictionTask, TrainingTask
from bertjax.data.codecs.codec import Codec
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabularies import SPECIALS, has_only_specials
from bertjax.data.text.vocabulary_config import load_tokenizer, with_strip_accents
from bertjax.data.text.wordpiece import WordPiece
from bertjax.interop import families, huggingface
from bertjax.interop.published import Published
from bertjax.models.bert import BertInputs, HeadConfig
from bertjax.models.transformer import TENSOR_RULES
from bertjax.tasks import completion, inputs, pretrained, samples

_log = logging.getLogger(__name__)
_MOST_PADDING = 128  # embeddings without a token: some models round the vocabulary size up to a multiple of this
INPUTS = ("input_ids", "token_type_ids", "segment_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(HeadConfig):
    """The keys of `model` of a task with a BERT. Tasks with further keys extend it.

    Attributes:
      vocab_size: rows of the word embeddings. Default: the size of the vocabulary; may be larger.
      family: the family of encoders whose form exports have. Default: that of `init_from`, otherwise "bert",
        "modernbert" or "mpnet", by the kind of positions.
    """

    vocab_size: Size | None = None  # type: ignore[assignment]  # a HeadConfig always has a size
    family: Annotated[str, one_of(*families.ENCODERS)] | None = None

    def encoder(self, vocab: Sequence[str]) -> HeadConfig:
        """Returns the config of the encoder. Raises UserError if the vocabulary is larger than `vocab_size`."""
        size = len(vocab)
        room = self.vocab_size or len(vocab)
        completion.check_vocab_size(size, room)
        return part(HeadConfig, dataclasses.replace(self, vocab_size=room))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceModelConfig(ModelConfig):
    """The keys of `model` of a task that trains nothing, without those that only training needs."""

    dropout: DropoutRate = 0.0
    attention_dropout: DropoutRate = 0.0


@runtime_checkable
class HasModel(Protocol):
    """The config keys that every experiment with a BERT has, including those that only predict."""

    @property
    def init_from(self) -> str:
        """A folder with weights, or ""."""

    @property
    def model(self) -> ModelConfig:
        """The encoder and the head."""

    @property
    def data(self) -> Any:
        """How text is read and encoded; includes the fields of `VocabularyConfig`."""

    def codec(self, tokenizer: EncoderTokenizer) -> Codec[Any]:
        """Returns the kind of the rows."""


class Predictions(NamedTuple):
    """What a student learns from the predictions of a teacher; see `bertjax.tasks.distillation`.

    Attributes:
      logits: the logits of classes or flags, or numbers, on the last axis [B, ..., C].
      weights: the weight of each prediction in the loss [B, ...].
      kind: "classification", "multi_label" or, for numbers and vectors, "regression".
    """

    logits: jax.Array
    weights: jax.Array
    kind: str


C = TypeVar("C", bound=HasModel)


def open_vocabulary(config: HasModel, published: Published) -> EncoderTokenizer:
    """Returns the vocabulary of weights, or that of `data.vocab_file` if they have none."""
    data = config.data
    if published.has_vocabulary:
        return with_strip_accents(published.tokenizer(data.lowercase), data.strip_accents)
    return load_tokenizer(Path(data.vocab_file), data.lowercase, strip_accents=data.strip_accents)


def example_config(config: Mapping[str, Any], more: Sequence[str] = ()) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Returns the config, and a vocabulary of the special tokens and `more` only."""
    return dict(config), WordPiece((*SPECIALS, *more), lowercase=True)


class BertTask(inputs.CodecInputs, PredictionTask, Generic[C]):
    """A task of a model whose encoder is a BERT named `bert`.

    Attributes:
      architecture: the class of transformers that opens the exported folder.
      labels: the names of the classes, in order; empty for tasks without classes.
      predicts_positions: whether the model also takes the positions to predict.
      predicts_tokens: whether `predictions` are those of tokens, not of texts.
    """

    architecture = ""
    labels: Sequence[str] = ()
    predicts_positions = False
    predicts_tokens = False
    _config: C

    def __init__(
        self, config: C, tokenizer: EncoderTokenizer, bert: HeadConfig, model: nn.Module, seq_len: int
    ) -> None:
        """Initializes the task.

        Args:
          config: the settings.
          tokenizer: the tokenizer, with the vocabulary.
          bert: the configuration of the encoder.
          model: the whole model.
          seq_len: the maximum number of tokens of a row to predict on.
        """
        size = len(tokenizer.vocab)
        room = bert.vocab_size
        if config.init_from and room - size > _MOST_PADDING and not has_only_specials(tokenizer.vocab):
            text = "data.vocab_file has %d tokens for %d embeddings: is it the vocabulary of these weights?"
            _log.warning(text, size, room)
        self._config = config
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._model_config = bert
        self._model = model
        self._codec = config.codec(tokenizer)

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def tokenizer(self) -> EncoderTokenizer:
        return self._tokenizer

    def init(self, rng: jax.Array) -> Params:
        ids = jnp.zeros((1, 1), jnp.int32)
        positions = (ids,) if self.predicts_positions else ()
        return self._model.init(rng, BertInputs(ids, ids, ids), *positions, deterministic=True)["params"]

    def warm_start(self, params: Params, published: Published) -> Params:
        reinitialized = self.reinitialized_modules(published)
        return pretrained.warm_start(params, published, reinitialized, tokens=self.new_tokens(published))

    def new_tokens(self, published: Published) -> pretrained.NewTokens | None:
        """Returns the tokens that training adds; None if weights of a run that has added them have all of them."""
        data = self._config.data
        if not (getattr(data, "add_tokens", ()) or getattr(data, "add_words", 0)):
            return None
        return pretrained.NewTokens.of(open_vocabulary(self._config, published), self._tokenizer)

    def reinitialized_modules(self, published: Published) -> Sequence[str]:
        """Names of modules that keep their random initialization even if there are weights for them."""
        return ()

    def partition_rules(self) -> Sequence[tuple[str, tuple[str | None, ...]]]:
        return TENSOR_RULES

    def predict_lengths(self) -> Sequence[int]:
        return bucket_lengths(self._seq_len, getattr(self._config.data, "row_lengths", ()))

    def apply(self, params: Params, batch: Batch, rng: jax.Array | None, *arguments: Any, **options: Any) -> Any:
        """Returns the model's output for the `BertInputs` of a batch, and for further arguments of the model.

        Dropout is off if `rng` is None.
        """
        options = {**options, "deterministic": rng is None, "rngs": {} if rng is None else {"dropout": rng}}
        return self._model.apply({"params": params}, BertInputs.of(batch), *arguments, **options)

    def predictions(self, output: Any, batch: Batch) -> Predictions:
        """Returns the predictions for a training batch, from the model's output."""
        return Predictions(output, batch["weights"], "classification")

    @property
    def encoder(self) -> HeadConfig:
        """The config of the encoder."""
        return self._model_config

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a row to predict on."""
        return self._seq_len

    @property
    def _special(self) -> dict[str, int]:
        """The ids of special tokens that config.json of an export states."""
        ids = self._tokenizer
        return {"pad": ids.pad_id, "cls": ids.cls_id, "sep": ids.sep_id, "mask": ids.mask_id}

    def save(
        self,
        params: Params,
        folder: Path,
        architecture: str,
        labels: Sequence[str] | None = None,
        config: HeadConfig | None = None,
        family: str = "",
        more: Mapping[str, Any] = MappingProxyType({}),
        max_length: int | None = None,
    ) -> None:
        """Writes a folder of transformers with the tokenizer; see `huggingface.save`.

        Args:
          params: see `huggingface.save`, as the next two.
          folder: the folder.
          architecture: the class.
          labels: the names of the classes.
          config: the config of the encoder. Default: that of the task.
          family: its family. Default: that of the task.
          more: additional keys of config.json.
          max_length: the tokens to which the tokenizer truncates. Default: the positions of the encoder.
        """
        tokenizer = self._tokenizer
        config = config or self._model_config
        family = family or self._config.model.family or families.of_model(vars(config))
        huggingface.save(folder, params, config, architecture, labels, more, self._special, family)
        tokenizer.save(folder, max_length or config.max_positions, token_types=config.type_vocab_size > 1)

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that `from_pretrained` of the transformers class `architecture` opens."""
        self.save(params, folder, self.architecture, self.labels or None)


class SampledTask(TrainingTask):
    """A task whose run's page shows validation examples, attention and positions of a BERT."""

    _model_config: HeadConfig
    _tokenizer: EncoderTokenizer

    def samples(self, params: Params, data: Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        """Yields validation examples, the first few with attention weights, and the position embeddings."""
        for number, (example, outputs) in enumerate(infer(self.shown(data))):
            seen = samples.attention(number, example, params, self._model_config, self._tokenizer)
            yield {**self.sample(example, outputs), **seen}
        yield from samples.bert_positions(params)

    def errors(self, data: Data, infer: Infer) -> Iterator[Mapping[str, Any]]:
        for example, outputs in infer(self.shown(data)):
            yield {**self.sample(example, outputs), **samples.lengths(example)}

    def shown(self, data: Data) -> Iterator[Example]:
        """Yields candidates for the examples on the run's page."""
        return data.validation_examples()

    @abc.abstractmethod
    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record of a validation example for the run's page, with "kind", "reference" and "loss"."""


def batch_specs(
    shapes: Iterable[tuple[int, ...]],
    token_dtypes: Mapping[str, Any],
    row_dtypes: Mapping[str, Any],
    row_shape: tuple[int, ...] = (),
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Shape and dtype of each field of a batch; see `TrainingTask.batch_specs`.

    Args:
      shapes: shapes of the token fields: (rows, length), or (rows, choices, length).
      token_dtypes: dtypes of the token fields other than BERT's inputs.
      row_dtypes: dtypes of the row fields other than "weights"; with a shape for several values of a row.
      row_shape: the shape of the row fields; () for (rows,).
    """
    token_dtypes = {**dict.fromkeys(INPUTS, np.int32), **token_dtypes}
    row_dtypes = {**row_dtypes, "weights": np.float32}
    return [
        {name: _spec(shape, dtype) for name, dtype in token_dtypes.items()}
        | {name: _spec(row_shape or shape[:1], dtype) for name, dtype in row_dtypes.items()}
        for shape in shapes
    ]


def _spec(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    dtype = np.dtype(dtype)
    return jax.ShapeDtypeStruct((*shape, *dtype.shape), dtype.base)
