"""BERTSUM (Liu 2019; Liu and Lapata 2019, section 3): scores the sentences of a document for extractive summaries.

A document is one row with a [CLS] before each sentence. A scorer on top of BERT's output at these [CLS] gives a logit
for each sentence, as in the code of BertSum and PreSumm.

Shapes: B batch, S length, E sentences, H hidden size.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Float32, Int

from bertjax.config import Constrained, DropoutRate, Size, one_of
from bertjax.models.attention.mask import make_mask
from bertjax.models.bert import Bert, BertConfig, BertInputs
from bertjax.models.embeddings import sinusoids
from bertjax.models.heads import pool_spans
from bertjax.models.layers import Dense, Dropout
from bertjax.models.recurrent import LayerNormBiLSTM
from bertjax.models.stack import Stack, dropout_key, stacked_init
from bertjax.models.transformer import TransformerLayer
from bertjax.models.transformer_config import LayerKind, TransformerConfig, make_norm

SCORERS = ("classifier", "transformer", "rnn")


@dataclasses.dataclass(frozen=True)
class BertSumConfig(Constrained, prefix="model"):
    """Options of the scorer on top of BERT.

    Attributes:
      scorer: "classifier", a linear layer on each sentence; "transformer", PreSumm's Transformer over all sentences of
        a document; "rnn", BertSum's bidirectional LSTM, whose output is added to its input.
      scorer_layers: layers of the Transformer scorer.
      scorer_heads: attention heads of the Transformer scorer.
      scorer_intermediate: feed-forward size of the Transformer scorer.
      scorer_dropout: dropout of the Transformer or LSTM scorer.
      rnn_compat: whether the LSTM scorer reproduces BertSum's code, with which published weights were trained: each
        sentence gets the two final states, and padding is read like sentences, so scores depend on the batch.
      sentence_pooling: the output of BERT that represents a sentence: "cls", that of its [CLS], as in both papers; or
        "mean", the mean over its tokens, [CLS] and [SEP], which suits encoders trained with mean pooling, such as those
        of sentence-transformers.

    Raises:
      UserError: if a value is out of range.
    """

    scorer: Annotated[str, one_of(*SCORERS)]
    scorer_layers: Size
    scorer_heads: Size
    scorer_intermediate: Size
    scorer_dropout: DropoutRate
    rnn_compat: bool = False
    sentence_pooling: Annotated[str, one_of("cls", "mean")] = "cls"


class BertSum(nn.Module):
    """BERT with a scorer of sentences on top.

    Parameters: `bert`, without a pooler; `scorer`, which is a Classifier, a SentenceTransformer or a SentenceLSTM.
    """

    config: BertConfig
    head: BertSumConfig

    def setup(self) -> None:
        """Makes the submodules. Raises UserError if the scorer does not fit BERT's hidden size."""
        config = self.config
        head = self.head
        self.bert = Bert(config)
        self.scorer = _make_scorer(config, head)

    def __call__(
        self,
        inputs: BertInputs,
        sentence_mask: Int[Array, "B E"] | Bool[Array, "B E"],
        first_sentences: Int[Array, " B"] | None = None,
        *,
        deterministic: bool,
    ) -> Float32[Array, "B E"]:
        """Returns the logit of each sentence. Logits at padding are meaningless.

        Args:
          inputs: the documents. Token types alternate between 0 and 1, sentence by sentence ("interval segments").
            `cls_positions` are the positions of each sentence's [CLS], and arbitrary positions at padding.
          sentence_mask: 1 at sentences, 0 at padding, which comes last.
          first_sentences: the number of each row's first sentence in its document, if rows are parts of documents; None
            for 0. The Transformer scorer uses sentence numbers as positions.
          deterministic: whether dropout is off.
        """
        assert inputs.cls_positions is not None
        of_cls = self.head.sentence_pooling == "cls"
        hidden = self.bert(
            inputs,
            deterministic=deterministic,
            return_attention=False,
            output_positions=inputs.cls_positions if of_cls else None,
        ).hidden
        mask = (sentence_mask != 0).astype(jnp.int32)
        if of_cls:
            sentences = jnp.where(mask[..., None] != 0, hidden, 0)
        else:
            lengths = _lengths(inputs.segment_ids, inputs.cls_positions, mask)
            sentences = pool_spans(hidden, inputs.cls_positions, lengths)
        first = jnp.zeros(len(mask), jnp.int32) if first_sentences is None else first_sentences
        return self.scorer(sentences, mask, first, deterministic=deterministic)


def _lengths(
    segment_ids: Int[Array, "B S"], cls_positions: Int[Array, "B E"], mask: Int[Array, "B E"]
) -> Int[Array, "B E"]:
    """The number of tokens from each sentence's [CLS] to the next sentence or the padding; 0 at padding."""
    end = jnp.sum(segment_ids != 0, axis=1, dtype=jnp.int32, keepdims=True)
    starts = jnp.where(mask != 0, cls_positions, end)
    return jnp.diff(starts, axis=1, append=end)


def first_places(flags: Int[Array, "B S"], count: int) -> Int[Array, "B {count}"]:
    """Returns the positions of the first `count` nonzero flags of each row, in order; S - 1 for missing ones."""
    length = flags.shape[1]
    values, _ = jax.lax.top_k(jnp.where(flags != 0, length - jnp.arange(length), 0), count)
    return jnp.where(values > 0, length - values, length - 1)


class Classifier(nn.Module):
    """A scorer that is one linear layer. Parameters: `linear` [H, 1]."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B E H"], mask: Int[Array, "B E"], first: Int[Array, " B"], *, deterministic: bool
    ) -> Float32[Array, "B E"]:
        """Returns the logit of each sentence, computed independently of the others."""
        return _logit("linear", x)


class SentenceTransformer(nn.Module):
    """A pre-norm Transformer over the sentences of a document. Its first layer has no norm before self-attention.

    Sinusoids of the sentence numbers are added to BERT's output, without scaling or dropout. Parameters: `layers`, as
    in `Encoder`, including the unused `attention_norm` of the first layer; `final_norm`; `output` [H, 1].
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B E H"], mask: Int[Array, "B E"], first: Int[Array, " B"], *, deterministic: bool
    ) -> Float32[Array, "B E"]:
        """Returns the logit of each sentence, computed from all sentences of its row."""
        config = self.config
        layer = TransformerLayer(config, cross=False, parent=None)
        params = self.param("layers", stacked_init(layer, config.num_layers))
        x = x + _numbers(first, *x.shape[1:]).astype(x.dtype)
        kinds = [LayerKind(bare_input=True), *[LayerKind()] * (config.num_layers - 1)]
        options = {"deterministic": deterministic, "return_attention": False}
        stack = Stack(layer, kinds, params, return_layers=False, options=options)
        for rows in (slice(0, 1), slice(1, None)):
            key = dropout_key(self, deterministic=deterministic)
            x, _, _ = stack(x, (make_mask(mask, "both"),), key, rows)
        return _logit("output", make_norm(config, "final_norm")(x))


class SentenceLSTM(nn.Module):
    """A bidirectional LSTM with layer norms, and a residual, over the sentences.

    Parameters: `lstm`, `output` [H, 1].
    """

    units: int  # units of each direction: H / 2
    dropout: float
    compat: bool  # see `BertSumConfig.rnn_compat`

    @nn.compact
    def __call__(
        self, x: Float[Array, "B E H"], mask: Int[Array, "B E"], first: Int[Array, " B"], *, deterministic: bool
    ) -> Float32[Array, "B E"]:
        """Returns the logit of each sentence, computed from all sentences of its row."""
        read = LayerNormBiLSTM(self.units, name="lstm")(x, jnp.ones_like(mask) if self.compat else mask)
        states = jnp.broadcast_to(read.final[:, None], x.shape) if self.compat else read.hidden
        return _logit("output", Dropout(self.dropout)(states, deterministic=deterministic) + x)


def _make_scorer(config: BertConfig, head: BertSumConfig) -> nn.Module:
    if head.scorer == "classifier":
        return Classifier()
    if head.scorer == "transformer":
        sizes = head.scorer_layers, head.scorer_heads, head.scorer_intermediate
        return SentenceTransformer(presumm_layers(config, "scorer", *sizes, head.scorer_dropout, "xavier_uniform"))
    even = config.hidden_size % 2 == 0
    config.check(even, "hidden_size", "an even number with model.scorer=rnn")
    return SentenceLSTM(config.hidden_size // 2, head.scorer_dropout, head.rnn_compat)


def _numbers(first: Int[Array, " B"], count: int, size: int) -> Float32[Array, "B {count} {size}"]:
    """The sinusoids of `count` consecutive numbers from `first`: those from 0, rotated by the angles of `first`."""
    sines, cosines = np.moveaxis(sinusoids(count, size, "interleaved").reshape(count, -1, 2), -1, 0)
    angles = first[:, None, None] / 10_000.0 ** (np.arange(size // 2) * 2 / size)
    sine = jnp.sin(angles)
    cosine = jnp.cos(angles)
    turned = sines * cosine + cosines * sine, cosines * cosine - sines * sine
    return jnp.stack(turned, axis=-1).reshape(len(first), count, size)


def presumm_layers(
    config: BertConfig, name: str, layers: int, heads: int, intermediate: int, dropout: float, initializer: str
) -> TransformerConfig:
    """Returns the options of the layers that PreSumm adds on top of BERT. dtype, scan and remat are BERT's.

    Args:
      config: the options of BERT, which has the same hidden size.
      name: the prefix of the layers' config keys in messages, such as `model.{name}_heads`.
      layers, heads, intermediate: the number of layers and their sizes.
      dropout: the rate of all kinds of dropout.
      initializer: see `TransformerConfig`.
    Raises:
      UserError: if the number of heads does not divide the hidden size.
    """
    fits = config.hidden_size % heads == 0
    config.check(fits, f"{name}_heads", f"a divisor of model.hidden_size={config.hidden_size}", got=heads)
    return TransformerConfig(
        hidden_size=config.hidden_size,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=intermediate,
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        activation="gelu_tanh",
        norm="pre",
        norm_eps=1e-6,
        initializer=initializer,
        initializer_range=config.initializer_range,
        dtype=config.dtype,
        scan_layers=config.scan_layers,
        remat=config.remat,
    )


def _logit(name: str, x: Float[Array, "B E H"]) -> Float32[Array, "B E"]:
    return Dense(1, nn.initializers.xavier_uniform(), "float32", name=name)(x)[..., 0]
