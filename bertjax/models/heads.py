"""BERT with the heads of its fine-tuning (Devlin et al. 2019, section 4 and figure 4), and its feature-based tagger.

Inputs with `position_ids` are rows of packed instances. A BiLSTM would read across their borders, so models with one
raise UserError for them. Logits are float32.

Shapes: B batch, S length, H hidden size, C classes, K chosen layers, E instances of a packed row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, Int

from bertjax.config import choice
from bertjax.errors import UserError
from bertjax.models.bert import Bert, BertConfig, BertInputs
from bertjax.models.layers import Dense, Dropout
from bertjax.models.recurrent import BiLSTM
from bertjax.models.transformer import check_value, kernel_init

MIXINGS = ("concatenation", "sum", "weighted")
POOLINGS = ("cls", "mean", "max")


def choose_layers(layers: Float[Array, "layers B S H"], chosen: Sequence[int]) -> Float[Array, "B S K H"]:
    """Some of `BertOutput.layers`: 0 is the embeddings, -1 the last layer."""
    return jnp.moveaxis(layers[jnp.asarray(chosen)], 0, 2)


class LayerMix(nn.Module):
    """One vector from those of several layers, for each token.

    `mixing` is "concatenation"; "sum"; or "weighted", ELMo's sum with learned weights (Peters et al. 2018, equation
    1), whose parameters are `weights` [K], from 0, which a softmax is taken of, and the scale `gamma`, from 1.
    """

    mixing: str

    @nn.compact
    def __call__(self, features: Float[Array, "*rows K H"]) -> Float[Array, "*rows F"]:
        """Returns vectors of size F: K H if concatenated, else H."""
        choice(self.mixing, MIXINGS, "model.mixing")
        if self.mixing == "concatenation":
            return features.reshape(*features.shape[:-2], -1)
        if self.mixing == "sum":
            return jnp.sum(features, axis=-2)
        weights = self.param("weights", nn.initializers.zeros, (features.shape[-2],))
        gamma = self.param("gamma", nn.initializers.ones, ())
        return gamma * jnp.einsum("...KH,K->...H", features, jax.nn.softmax(weights))


class BertFeatures(nn.Module):
    """One vector for each token from some layers of BERT.

    Parameters: `bert`, without a pooler; `mix` if `mixing` is "weighted".
    """

    config: BertConfig
    layers: tuple[int, ...]  # of `BertOutput.layers`: 0 is the embeddings, -1 the last layer
    mixing: str  # see `LayerMix`

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B S F"]:
        """Returns the vectors, those of padding too."""
        check_layers(self.layers, self.config.num_layers, "model.layers")
        output = Bert(self.config, use_pooler=False, name="bert")(
            inputs, deterministic=deterministic, return_attention=False, return_layers=True
        )
        assert output.layers is not None
        return LayerMix(self.mixing, name="mix")(choose_layers(output.layers, self.layers).astype(jnp.float32))


def check_layers(chosen: Sequence[int], num_layers: int, key: str) -> None:
    """Raises UserError about a config key unless some layers, each once, are chosen of what `BertOutput.layers` has."""
    places = {layer % (num_layers + 1) for layer in chosen if -num_layers - 1 <= layer <= num_layers}
    if not chosen or len(places) < len(chosen):
        raise UserError(
            f"config key {key}",
            got=tuple(chosen),
            expected=f"one or more of 0 (the embeddings) to {num_layers}, or -{num_layers + 1} to -1, each once",
            fix=f"for example {tuple(range(-min(4, num_layers), 0))}, the last ones",
        )


def pool_spans(
    hidden: Float[Array, "B S F"], starts: Int[Array, "B U"], lengths: Int[Array, "B U"]
) -> Float[Array, "B U F"]:
    """The mean of the tokens of each unit, such as a word: `lengths` of them from `starts` on; 0 where that is none."""
    places = jnp.arange(hidden.shape[1])
    inside = (starts[..., None] <= places) & (places < (starts + lengths)[..., None])
    weights = inside / jnp.maximum(lengths, 1)[..., None]
    return jnp.einsum("BUS,BSF->BUF", weights, hidden.astype(jnp.float32), precision="highest")


def pool(hidden: Float[Array, "B S H"], segment_ids: Int[Array, "B S"], pooling: str) -> Float[Array, "B H"]:
    """One float32 vector for each row, as sentence-transformers makes it; from a row of padding alone it is finite.

    Args:
      hidden: a vector for each token.
      segment_ids: 0 at padding, which does not count.
      pooling: "cls", the first token's; "mean" over the tokens, [CLS] and [SEP] among them; or their "max".
    """
    choice(pooling, POOLINGS, "sentence_pooling")
    hidden, real = hidden.astype(jnp.float32), (segment_ids != 0)[..., None]
    if pooling == "cls":
        return hidden[:, 0]
    count = jnp.sum(real, axis=1)
    if pooling == "mean":
        return jnp.sum(jnp.where(real, hidden, 0), axis=1) / jnp.maximum(count, 1)
    return jnp.where(count > 0, jnp.max(jnp.where(real, hidden, -jnp.inf), axis=1), 0)


class SpanLogits(NamedTuple):
    """What `BertForQuestionAnswering` returns."""

    start: Array  # [B, S] float32
    end: Array  # [B, S] float32


class BertForSequenceClassification(nn.Module):
    """Classes of whole instances; with one label, a number for each (regression), or a score for each choice.

    What is classified is the pooled [CLS], which is the first token; the last token's in its place if the model looks
    from left to right alone, since [CLS] then sees nothing but itself. With a BiLSTM ("+ BiLSTM" of table 5) it is
    that one's two final states, and there is no pooler.

    Parameters: `bert`, with `pooler` unless there is an `lstm`; `lstm`; `classifier` [H or 2 lstm_size, C].
    """

    config: BertConfig
    num_labels: int
    classifier_dropout: float  # on what goes into the head; BERT's is .1
    lstm_size: int  # units of each direction; 0 for no BiLSTM

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B *E C"]:
        """Returns the logits of each row; of a packed row those of each instance, which begin at `cls_positions`."""
        _check_head(self.num_labels, self.classifier_dropout, self.lstm_size, inputs)
        pooled = inputs
        if self.config.direction == "left_to_right":
            pooled = inputs._replace(cls_positions=_last_tokens(inputs.segment_ids, inputs.cls_positions))
        output = Bert(self.config, use_pooler=not self.lstm_size, name="bert")(
            pooled, deterministic=deterministic, return_attention=False
        )
        x = output.hidden if output.pooled is None else output.pooled
        if output.pooled is not None and inputs.cls_positions is None:
            x = x[:, 0]
        x = Dropout(self.classifier_dropout)(x, deterministic=deterministic)
        if self.lstm_size:
            x = BiLSTM(self.lstm_size, name="lstm")(x, inputs.segment_ids).final
        return _classifier(self.config, self.num_labels, "classifier")(x)


class BertForTokenClassification(nn.Module):
    """Classes of each token, padding included.

    Parameters: `bert`, without a pooler; `lstm` if `lstm_size` is not 0; `classifier` [H or 2 lstm_size, C].
    """

    config: BertConfig
    num_labels: int
    classifier_dropout: float  # on what goes into the head; BERT's is .1
    lstm_size: int  # units of each direction; 0 for no BiLSTM

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B S C"]:
        """Returns the logits of each token."""
        _check_head(self.num_labels, self.classifier_dropout, self.lstm_size, inputs)
        x = Bert(self.config, use_pooler=False, name="bert")(
            inputs, deterministic=deterministic, return_attention=False
        ).hidden
        x = Dropout(self.classifier_dropout)(x, deterministic=deterministic)
        if self.lstm_size:
            x = BiLSTM(self.lstm_size, name="lstm")(x, inputs.segment_ids).hidden
        return _classifier(self.config, self.num_labels, "classifier")(x)


class BertForQuestionAnswering(nn.Module):
    """How likely each token is the first and the last of the answer; no dropout before the head, as in BERT.

    Padding has logits as well: the loss or the search for the best span leaves it out.

    Parameters: `bert`, without a pooler; `lstm` if `lstm_size` is not 0; `qa_outputs` [H or 2 lstm_size, 2].
    """

    config: BertConfig
    lstm_size: int  # units of each direction; 0 for no BiLSTM

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> SpanLogits:
        """Returns the logits of each token."""
        _check_lstm(self.lstm_size, inputs)
        x = Bert(self.config, use_pooler=False, name="bert")(
            inputs, deterministic=deterministic, return_attention=False
        ).hidden
        if self.lstm_size:
            x = BiLSTM(self.lstm_size, name="lstm")(x, inputs.segment_ids).hidden
        logits = _classifier(self.config, 2, "qa_outputs")(x)
        return SpanLogits(logits[..., 0], logits[..., 1])


class FeatureTagger(nn.Module):
    """Classes of tokens from the features of a BERT that is not trained (Devlin et al. 2019, section 5.3 and table 7).

    BERT's has two layers of BiLSTM of 768 units; whether a direction's or both directions' together the paper does
    not say, and here they are a direction's.

    Parameters: `mix` if `mixing` is "weighted", `lstm_0`, `lstm_1`, ..., `classifier` [2 lstm_size, C].
    """

    num_labels: int
    mixing: str  # "concatenation", "sum" or "weighted": see `LayerMix`
    num_layers: int
    lstm_size: int  # units of each direction
    dropout: float  # on what goes into each layer and into the classifier
    initializer_range: float

    @nn.compact
    def __call__(
        self, features: Float[Array, "B S K H"], segment_ids: Int[Array, "B S"], *, deterministic: bool
    ) -> Float32[Array, "B S C"]:
        """Returns the logits of each token; `features` are those of K layers, by `choose_layers`."""
        _check_head(self.num_labels, self.dropout, self.lstm_size)
        check_value(self.lstm_size >= 1, "lstm_size", self.lstm_size, "at least 1")
        x = LayerMix(self.mixing, name="mix")(features.astype(jnp.float32))
        for layer in range(self.num_layers):
            x = Dropout(self.dropout)(x, deterministic=deterministic)
            x = BiLSTM(self.lstm_size, name=f"lstm_{layer}")(x, segment_ids).hidden
        x = Dropout(self.dropout)(x, deterministic=deterministic)
        kernel_init = nn.initializers.truncated_normal(self.initializer_range)
        return Dense(self.num_labels, kernel_init, "float32", name="classifier")(x)


class BertFeatureTagger(nn.Module):
    """Classes of each token from a BERT that stays as it is, with `FeatureTagger` on top.

    BERT has no dropout, and no gradient reaches it.

    Parameters: `bert`, without a pooler; `tagger`.
    """

    config: BertConfig
    num_labels: int
    layers: tuple[int, ...]  # of `BertOutput.layers`: 0 is the embeddings, -1 the last layer
    mixing: str
    num_lstm_layers: int
    lstm_size: int  # units of each direction
    dropout: float  # of the tagger

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B S C"]:
        """Returns the logits of each token, padding included."""
        _check_lstm(self.lstm_size, inputs)
        check_layers(self.layers, self.config.num_layers, "model.feature_layers")
        output = Bert(self.config, use_pooler=False, name="bert")(
            inputs, deterministic=True, return_attention=False, return_layers=True
        )
        assert output.layers is not None
        features = choose_layers(jax.lax.stop_gradient(output.layers), self.layers)
        tagger = FeatureTagger(
            self.num_labels,
            self.mixing,
            self.num_lstm_layers,
            self.lstm_size,
            self.dropout,
            self.config.initializer_range,
            name="tagger",
        )
        return tagger(features, inputs.segment_ids, deterministic=deterministic)


def _last_tokens(segment_ids: Int[Array, "B S"], first: Int[Array, "B E"] | None) -> Int[Array, "B E"]:
    """Where each instance ends that begins at `first`; without it, where the one of each row does."""
    first = jnp.zeros_like(segment_ids[:, :1]) if first is None else first
    sizes = jnp.sum(segment_ids[:, None] == 1 + jnp.arange(first.shape[1])[:, None], axis=-1)
    return jnp.maximum(first + sizes - 1, 0)


def _classifier(config: BertConfig, num_labels: int, name: str) -> Dense:
    return Dense(num_labels, kernel_init(config), "float32", name=name)


def _check_head(num_labels: int, dropout: float, lstm_size: int, inputs: BertInputs | None = None) -> None:
    check_value(num_labels >= 1, "num_labels", num_labels, "at least 1")
    check_value(0 <= dropout < 1, "classifier_dropout", dropout, "at least 0 and below 1")
    _check_lstm(lstm_size, inputs)


def _check_lstm(lstm_size: int, inputs: BertInputs | None) -> None:
    packed = inputs is not None and inputs.position_ids is not None
    check_value(lstm_size >= 0, "lstm_size", lstm_size, "at least 0")
    check_value(not (lstm_size and packed), "lstm_size", lstm_size, "0 with packed rows, data.packing=True")
