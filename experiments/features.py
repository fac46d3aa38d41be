"""Vectors of word pieces, words or texts from a frozen BERT (Devlin et al. 2019, section 5.3)."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import Constrained, Size, always, choice, one_of
from bertjax.contract import Batch, Example, Output, Params
from bertjax.data.codecs.codec import Columns
from bertjax.data.codecs.labeled_text import TextColumns
from bertjax.data.codecs.texts import PromptedTextCodec, TextCodec, UnitCodec
from bertjax.data.readers import feature_files
from bertjax.data.readers.lines import OnBadRow
from bertjax.data.rows.buckets import check_seq_len
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import VocabularyConfig
from bertjax.errors import UserError
from bertjax.interop import sentence_transformers
from bertjax.interop.published import Published
from bertjax.interop.sentence_transformers import Sentences
from bertjax.models.heads import POOLINGS, BertFeatures, DenseConfig, SentenceDense, check_layers, pool_spans
from bertjax.tasks import bert, completion
from bertjax.tasks.bert import BertTask
from bertjax.tasks.text_encoders import chosen_prompt, scaled, text_vectors

_BEST_LAYERS = 4  # the last four are best in table 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(bert.InferenceModelConfig):
    """The encoder, and the layers that the features come from, and how they are combined into one vector per token.

    Attributes:
      layers: numbers of layers: 0 is the embeddings, -1 the last. Default: the last four; for vectors of sentences the
        last.
      mixing: "concatenation", or "sum".
    """

    layers: tuple[int, ...] = always(())
    mixing: Annotated[str, one_of("concatenation", "sum")] = always("concatenation")  # "weighted" would need training


@dataclasses.dataclass(frozen=True)
class DataConfig(VocabularyConfig):
    """How texts become rows.

    Attributes:
      seq_len: the maximum number of tokens of a row. Default: for vectors of texts that of `init_from`; otherwise the
        model's positions.
      text_columns: the column of the text, or the two columns of a pair.
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
    """

    seq_len: int = always(None)
    text_columns: TextColumns = always(("text",))
    on_bad_row: OnBadRow = always("stop")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Constrained):
    """The config keys that this experiment reads.

    Attributes:
      experiment: the name of its file.
      init_from: a folder of Hugging Face or sentence-transformers, a google-research checkpoint or a bertjax run to
        take weights, sizes and vocabulary from; or "".
      pooling: the unit that a vector represents: "piece", "word" (separated by white space), or "sentence" (a whole
        text, or both texts of a pair).
      word_pooling: the vector of a word: "first", that of its first piece, or "mean", over all its pieces.
      sentence_pooling: "mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean" or "lasttoken", or several such as
        "cls+mean". Default: that of `init_from`, or "mean".
      dense: maps of the vectors of texts. Default: those of a sentence-transformers folder; () for none.
      normalize: whether vectors are scaled to length 1.
      prompt_name: the name of a prompt of a sentence-transformers folder. Default: the folder's default, if any.
      prompt: a text that precedes each text, or the first text of each pair. Default: that of `prompt_name`, or "".
      include_prompt: whether `sentence_pooling` includes the tokens of the prompt. Default: as in a
        sentence-transformers folder, otherwise True. If not, [CLS] is excluded too, as there.
      truncate_dim: how many first elements of a vector of a text are kept, not scaled again. Default: as in a
        sentence-transformers folder, otherwise all.
      dtype_out: "float32", or "float16", which halves the size.
      model: the encoder, and the layers to read.
      data: how texts are encoded.
    """

    experiment: str
    init_from: str = always("")
    pooling: Annotated[str, one_of("piece", "word", "sentence")] = always("word")
    word_pooling: Annotated[str, one_of("first", "mean")] = always("first")
    sentence_pooling: str = always(None)
    dense: tuple[DenseConfig, ...] = always(None)
    normalize: bool = always(None)
    prompt_name: str | None = always(None)
    prompt: str = always(None)
    include_prompt: bool = always(None)
    truncate_dim: Size | None = always(None)
    dtype_out: Annotated[str, one_of("float16", "float32")] = always("float32")
    model: ModelConfig
    data: DataConfig

    def codec(self, tokenizer: EncoderTokenizer) -> TextCodec:
        data = self.data
        columns = Columns("data.text_columns", data.text_columns)
        if self.pooling == "sentence":
            return PromptedTextCodec(
                tokenizer, data.seq_len, columns, prompt=self.prompt, includes_prompt=self.include_prompt
            )
        is_of_words = self.pooling == "word"
        takes_first = self.word_pooling == "first"
        return UnitCodec(tokenizer, data.seq_len, columns, is_of_words=is_of_words, takes_first=takes_first)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seq_len(self.data.seq_len, self.model.max_positions)
        check_layers(self.model.layers, self.model.num_layers, "model.layers")
        for pooling in self.sentence_pooling.split("+"):
            choice(pooling, POOLINGS, "sentence_pooling")
        got = f"{self.prompt!r} with pooling={self.pooling}"
        fix = "use configs/features.py:sentence, or omit it"
        is_of_sentences = self.pooling == "sentence"
        self.check(is_of_sentences or not self.prompt, "prompt", "pooling=sentence", got=got, fix=fix)
        is_usable = is_of_sentences or self.truncate_dim is None
        self.check(is_usable, "truncate_dim", "pooling=sentence", fix=fix)


def resolve(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Fills in what `init_from` determines: sizes, casing and sentence pooling. Raises UserError if it is invalid."""
    folder = published.path
    of_sentence = config["pooling"] == "sentence"
    sentences = (published.sentences if of_sentence else None) or Sentences()
    seq_len = published.max_length if of_sentence else None
    if of_sentence:
        sentence_transformers.check_casing(folder, published.lowercase)
    config = completion.bert(config, published, seq_len=seq_len)
    model = dict(config["model"])
    if not model["layers"]:
        model["layers"] = (-1,) if of_sentence else tuple(range(-min(_BEST_LAYERS, model["num_layers"]), 0))
    config = completion.sentences(config, sentences, _size(model))
    name = config["prompt_name"]
    prompt = config["prompt"]
    return {
        **config,
        "model": model,
        "prompt_name": None,  # `prompt` has its text
        "prompt": chosen_prompt(published, name, prompt) if of_sentence or name else prompt or "",
    }


def _size(model: Mapping[str, Any]) -> int:
    """The size of the vector of a token."""
    return int(model["hidden_size"]) * (len(model["layers"]) if model["mixing"] == "concatenation" else 1)


open_vocabulary = bert.open_vocabulary


class Task(BertTask[Config]):
    """Returns the vectors of pieces, words or texts.

    Parameters: those of `BertFeatures`, and `dense`, those of `SentenceDense`, if there are such maps.

    Attributes:
      size: the size of a vector.
      normalizes: whether vectors have length 1.
    """

    _codec: TextCodec

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        encoder = config.model.encoder(vocabulary.vocab)
        head = config.model
        model = BertFeatures(encoder, head.layers, head.mixing)
        super().__init__(config, vocabulary, encoder, model, config.data.seq_len)
        poolings = config.sentence_pooling if config.pooling == "sentence" else ""
        self._pooled_size = _size(dataclasses.asdict(head)) * (1 + poolings.count("+"))
        self._dense = SentenceDense(config.dense)
        self._sentences = Sentences(
            *(config.sentence_pooling, config.dense, config.normalize, config.include_prompt),
            truncate_dim=config.truncate_dim,
        )
        size = config.dense[-1].size if config.dense else self._pooled_size
        self.size = min(size, config.truncate_dim or size)
        self.normalizes = config.normalize and self.size == size
        self.exact = config.pooling == "sentence"  # the other rows have arrays of units, too

    def init(self, rng: jax.Array) -> Params:
        params = super().init(rng)
        if not self._config.dense:
            return params
        return {**params, "dense": self._dense.init(rng, jnp.zeros((1, self._pooled_size)))["params"]}

    @property
    def made_with(self) -> Mapping[str, Any]:
        """The description of the vectors."""
        return {**dataclasses.asdict(self._config), "size": self.size}

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The vectors of each row: [B, D], or [B, U, D] of its units."""
        x = self.apply(params, batch, None)
        if self._config.pooling == "sentence":
            x = text_vectors(x, batch, self._sentences, params)
        else:
            x = pool_spans(x, batch["unit_starts"], batch["unit_lengths"])
            x = scaled(x) if self._config.normalize else x
        return {"features": x.astype(self._config.dtype_out)}

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder of sentence-transformers.

        Raises:
          UserError: unless the vectors are of texts, from the last layer.
        """
        config = self._config
        bert = self._model_config
        if config.pooling != "sentence" or config.model.layers not in ((-1,), (bert.num_layers,)):
            got = f"{config.pooling} and {config.model.layers}"
            expected = "sentence and (-1,), the last layer"
            fix = "use configs/features.py:sentence"
            raise UserError("config keys pooling and model.layers", got=got, expected=expected, fix=fix)
        self.save({"bert": params["bert"]}, folder, "BertModel")
        sizes = bert.hidden_size, self._seq_len
        source = Path(config.init_from)
        prompts = {"": config.prompt}
        sentence_transformers.save(folder, self._sentences, params.get("dense", {}), sizes, prompts, source)

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The `units`, their `features` [n, D], and for a pair the number of the first unit of its `second` text."""
        parts = [np.zeros((0, self.size), self._config.dtype_out)]
        for row, output in zip(example.rows, outputs, strict=True):
            vectors = output["features"]
            parts.append(vectors[None] if vectors.ndim == 1 else vectors[: len(row["unit_starts"])])
        units, second = example.source.extra
        pair = {} if second is None else {"second": second}
        return {"units": units, **pair, "features": np.concatenate(parts)}

    def record_fields(self) -> Sequence[str]:
        return ("units", "second", "features")

    @contextlib.contextmanager
    def open_folder(self, folder: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """Opens a folder of `readers.feature_files`. A bad input is a text without units."""
        none = {"units": [], "features": np.zeros((0, self.size), self._config.dtype_out)}
        with feature_files.writing(folder, self.made_with, self.size, self._config.dtype_out) as writer:
            yield lambda record: writer.add({**none, **record})
