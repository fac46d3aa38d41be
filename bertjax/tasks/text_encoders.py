"""Vectors of texts by the encoder of any task, as sentence-transformers makes them."""

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.config import build_part, choice
from bertjax.contract import Batch, Example, Params, View
from bertjax.data.codecs.codec import Columns
from bertjax.data.codecs.texts import PromptedTextCodec
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.errors import UserError
from bertjax.interop import sentence_transformers
from bertjax.interop.published import Published
from bertjax.interop.sentence_transformers import Sentences
from bertjax.models.bert import BertInputs
from bertjax.models.heads import POOLINGS, BertFeatures, DenseConfig, SentenceDense, check_layers, pool
from bertjax.tasks import completion, inputs, pretrained
from bertjax.tasks.bert import BertTask

_LEAST_NORM = 1e-12  # as in torch.nn.functional.normalize


class TextEncoder(View):
    """One vector for each text: the tokens of a layer are pooled, mapped and scaled.

    Parameters: `bert`, without a pooler; and, if there are maps, `dense`, see `SentenceDense`.

    Attributes:
      size: the size of a vector.
      normalizes: whether vectors have length 1.
      made_with: a description of the vectors, without the weights and the tokenizer.
    """

    exact = True

    def __init__(
        self,
        task: BertTask[Any],
        layers: tuple[int, ...],
        sentences: Sentences,
        seq_len: int,
        prompt: str,
        on_bad_row: str,
    ) -> None:
        """Raises UserError for an unknown layer or pooling.

        Args:
          task: the task whose encoder and tokenizer are used.
          layers: the layer, 0 for the embeddings, -1 for the last layer.
          sentences: how a text becomes a vector.
          seq_len: the maximum number of tokens of a text; the rest is truncated.
          prompt: a text that precedes each text, or the first of each pair.
          on_bad_row: the policy for bad texts; see `BadRows`.
        """
        check_layers(layers, task.encoder.num_layers, "model.layers")
        for pooling in sentences.pooling.split("+"):
            choice(pooling, POOLINGS, "sentence_pooling")
        self._encoder = BertFeatures(task.encoder, layers, "concatenation")
        self._sentences = sentences
        self._dense = SentenceDense(sentences.dense)
        self._lengths = bucket_lengths(seq_len)
        self._on_bad_row = on_bad_row
        no_table = Columns("", ())
        is_included = sentences.includes_prompt
        self._codec = PromptedTextCodec(task.tokenizer, seq_len, no_table, prompt=prompt, includes_prompt=is_included)
        self._pooled_size = task.encoder.hidden_size * (1 + sentences.pooling.count("+"))
        size = sentences.dense[-1].size if sentences.dense else self._pooled_size
        self.size = min(size, sentences.truncate_dim or size)
        self.normalizes = sentences.normalizes and self.size == size

    @property
    def made_with(self) -> Mapping[str, Any]:
        codec = self._codec
        sentences = self._sentences
        return {
            "model": dataclasses.asdict(self._encoder.config),
            "model.layers": self._encoder.layers,
            "sentence_pooling": sentences.pooling,
            "dense": [dataclasses.asdict(dense) for dense in sentences.dense],
            "normalize": sentences.normalizes,
            "include_prompt": sentences.includes_prompt,
            "prompt": codec.prompt,
            "data.seq_len": codec.seq_len,
            "data.on_bad_row": self._on_bad_row,
            "size": self.size,
        }

    def prompted(self, prompt: str) -> "TextEncoder":
        """Returns the encoder with another prompt, and the same programs."""
        encoder = copy.copy(self)
        encoder._codec = dataclasses.replace(self._codec, prompt=prompt)
        return encoder

    def init(self, rng: jax.Array) -> Params:
        """Returns random parameters."""
        ids = jnp.zeros((1, 1), jnp.int32)
        params = self._encoder.init(rng, BertInputs(ids, ids, ids), deterministic=True)["params"]
        if not self._sentences.dense:
            return params
        return {**params, "dense": self._dense.init(rng, jnp.zeros((1, self._pooled_size)))["params"]}

    def params_of(self, params: Params, published: Published) -> Params:
        """Returns the parameters among those of the task; maps that the task does not have are those of its folder."""
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        if not shapes.keys() <= params.keys():
            params = pretrained.warm_start(shapes, published)
        return _subtree(params, shapes)

    def examples(self, texts: Iterable[Any], first: int = 1) -> Iterator[Example]:
        """Yields an example for each text or pair. Messages count them from `first` on."""
        return inputs.of_objects(self._codec, texts, self._on_bad_row, first)

    def predict_lengths(self) -> Sequence[int]:
        return self._lengths

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the vector of each row, [B, D]."""
        x = self._encoder.apply({"params": {"bert": params["bert"]}}, BertInputs.of(batch), deterministic=True)
        return {"features": text_vectors(x, batch, self._sentences, params)}


def text_vectors(x: Any, batch: Batch, sentences: Sentences, params: Params) -> jax.Array:
    """Returns the vectors [B, D] of texts from those of their tokens [B, S, F]."""
    x = pool(x, batch.get("pooled", batch["segment_ids"]), sentences.pooling)
    x = SentenceDense(sentences.dense).apply({"params": params.get("dense", {})}, x)
    return (scaled(x) if sentences.normalizes else x)[:, : sentences.truncate_dim]


def scaled(x: jax.Array) -> jax.Array:
    """Returns vectors scaled to length 1."""
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), _LEAST_NORM)


@dataclasses.dataclass(frozen=True)
class _VectorsConfig:
    """The arguments of `Model.encode`, by key of the experiment "features"."""

    layers: tuple[int, ...]
    sentence_pooling: str
    dense: tuple[DenseConfig, ...]
    normalize: bool
    include_prompt: bool
    truncate_dim: int | None


def chosen_prompt(published: Published, name: str | None, prompt: str | None) -> str:
    """Returns the prompt with a name, or the given one, or the default of `published`.

    Raises:
      UserError: if both are given, or there is no prompt of this name.
    """
    if prompt is None:
        return sentence_transformers.prompt_of(published.sentences or Sentences(), name, published.path)
    if name is not None or not isinstance(prompt, str):
        got = f"{prompt!r}" if name is None else f"{prompt!r} with prompt_name={name!r}"
        raise UserError("prompt", got=got, expected="a text (str), without prompt_name", fix="omit one of them")
    return prompt


def text_encoder(
    task: Any, config: Mapping[str, Any], published: Published, layer: int, pooling: str | None, normalize: bool | None
) -> TextEncoder:
    """Returns the encoder of a task's model, as its config or its folder states it.

    Args:
      task: the task.
      config: its config. With `pooling` "sentence", the experiment "features" states how texts become vectors.
      published: the folder of the model.
      layer: see `TextEncoder`.
      pooling: the pooling; None for that of the config or the folder.
      normalize: whether vectors are scaled to length 1; None for the value of the config or the folder.
    Raises:
      UserError: for a model without a BERT, or options that do not fit the folder.
    """
    if not isinstance(task, BertTask):
        got = f"a model of the task {config['experiment']}"
        expected = "a model with a BERT"
        raise UserError("encode", got=got, expected=expected, fix="load another folder")
    folder = published.path
    folder_sentences = published.sentences or Sentences()
    sentence_transformers.check_casing(folder, published.lowercase)
    is_stated = config["experiment"] == "features" and config["pooling"] == "sentence"
    keys = ("sentence_pooling", "dense", "normalize", "include_prompt", "truncate_dim")
    settings = {key: config[key] if is_stated else None for key in keys}
    arguments = {"sentence_pooling": pooling, "normalize": normalize}
    settings |= {key: value for key, value in arguments.items() if value is not None}
    settings |= {"layers": (layer,), "init_from": str(folder)}
    vectors = build_part(_VectorsConfig, completion.sentences(settings, folder_sentences, task.encoder.hidden_size))
    sentences = Sentences(
        *(vectors.sentence_pooling, vectors.dense, vectors.normalize, vectors.include_prompt),
        truncate_dim=vectors.truncate_dim,
    )
    seq_len = min(published.max_length or task.encoder.max_positions, task.encoder.max_positions)
    prompt = sentence_transformers.prompt_of(folder_sentences, None, folder)
    if is_stated:
        seq_len = config["data"]["seq_len"]
        prompt = config["prompt"]
    on_bad_row = config["data"].get("on_bad_row", "stop")
    return TextEncoder(task, vectors.layers, sentences, seq_len, prompt, on_bad_row)


def _subtree(params: Params, like: Params) -> Params:
    return {
        name: _subtree(params[name], part) if isinstance(part, Mapping) else params[name] for name, part in like.items()
    }
