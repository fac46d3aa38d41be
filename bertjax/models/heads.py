"""BERT with fine-tuning heads (Devlin et al. 2019, section 4 and figure 4), and the feature-based tagger.

Inputs with `position_ids` are packed rows. A BiLSTM would read across the instances of a row, so models with a BiLSTM
raise UserError for packed rows. Logits are float32.

Shapes: B batch, S length, H hidden size, C classes, K chosen layers, E instances of a packed row.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Float32, Int

from bertjax.config import Constrained, Constraint, Size, choice, one_of
from bertjax.errors import UserError
from bertjax.models.bert import Bert, BertConfig, BertInputs, HeadConfig, instances, transform
from bertjax.models.encoder import take_positions
from bertjax.models.layers import Dense, Dropout
from bertjax.models.recurrent import BiLSTM
from bertjax.models.transformer import ACTIVATIONS
from bertjax.models.transformer_config import kernel_init

MIXINGS = ("concatenation", "sum", "weighted")
# The names of sentence-transformers.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
Pooling = Annotated[
    str,
    Constraint(
        f"one of {', '.join(POOLINGS)}, or several joined by +",
        lambda value: isinstance(value, str) and set(value.split("+")) <= set(POOLINGS),
    ),
]


def choose_layers(layers: Float[Array, "layers B S H"], chosen: Sequence[int]) -> Float[Array, "B S K H"]:
    """Returns the chosen layers of `BertOutput.layers`; 0 is the embeddings, -1 the last layer."""
    return jnp.moveaxis(layers[jnp.asarray(chosen)], 0, 2)


class LayerMix(nn.Module):
    """Combines the vectors of several layers into one vector per token.

    `mixing` is "concatenation"; "sum"; or "weighted", ELMo's learned weighted sum (Peters et al. 2018, equation 1).
    Parameters of "weighted": the scale `gamma`, initially 1, and `weights` [K], initially 0, to which softmax is
    applied.
    """

    mixing: str

    @nn.compact
    def __call__(self, features: Float[Array, "*rows K H"]) -> Float[Array, "*rows F"]:
        """Returns vectors of size F, which is K H for "concatenation" and H otherwise."""
        choice(self.mixing, MIXINGS, "model.mixing")
        if self.mixing == "concatenation":
            return features.reshape(*features.shape[:-2], -1)
        if self.mixing == "sum":
            return jnp.sum(features, axis=-2)
        weights = self.param("weights", nn.initializers.zeros, (features.shape[-2],))
        gamma = self.param("gamma", nn.initializers.ones, ())
        return gamma * jnp.einsum("...KH,K->...H", features, jax.nn.softmax(weights))


class BertFeatures(nn.Module):
    """One vector per token, combined from the chosen layers of BERT.

    Parameters: `bert`, without a pooler; `mix` if `mixing` is "weighted".
    """

    config: BertConfig
    layers: tuple[int, ...]  # of `BertOutput.layers`: 0 is the embeddings, -1 the last layer
    mixing: str  # see `LayerMix`

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B S F"]:
        """Returns the vectors of all tokens, including padding."""
        check_layers(self.layers, self.config.num_layers, "model.layers")
        output = Bert(self.config, name="bert")(
            inputs, deterministic=deterministic, return_attention=False, return_layers=True
        )
        assert output.layers is not None
        return LayerMix(self.mixing, name="mix")(choose_layers(output.layers, self.layers).astype(jnp.float32))


def check_layers(chosen: Sequence[int], num_layers: int, key: str) -> None:
    """Raises UserError for the config key unless `chosen` are one or more distinct layers of `BertOutput.layers`."""
    places = {layer % (num_layers + 1) for layer in chosen if -num_layers - 1 <= layer <= num_layers}
    if not chosen or len(places) < len(chosen):
        expected = f"one or more of 0 (the embeddings) to {num_layers}, or -{num_layers + 1} to -1, each once"
        fix = f"use for example {tuple(range(-min(4, num_layers), 0))}, the last layers"
        raise UserError(f"config key {key}", got=tuple(chosen), expected=expected, fix=fix)


def pool_spans(
    hidden: Float[Array, "B S F"], starts: Int[Array, "B U"], lengths: Int[Array, "B U"]
) -> Float[Array, "B U F"]:
    """Returns the mean over each span of tokens, such as a word: `lengths` tokens from `starts`; 0 for empty spans."""
    places = jnp.arange(hidden.shape[1])
    inside = (starts[..., None] <= places) & (places < (starts + lengths)[..., None])
    weights = inside / jnp.maximum(lengths, 1)[..., None]
    return jnp.einsum("BUS,BSF->BUF", weights, hidden.astype(jnp.float32), precision="highest")


def pool(hidden: Float[Array, "B S H"], segment_ids: Int[Array, "B S"], pooling: str) -> Float[Array, "B F"]:
    """Returns one float32 vector per row, as in sentence-transformers. It is finite even for rows of padding.

    Args:
      hidden: a vector for each token.
      segment_ids: 0 at tokens that are excluded, such as padding.
      pooling: see `pool_texts`.
    """
    positions = jnp.broadcast_to(jnp.arange(hidden.shape[1]), segment_ids.shape)
    return pool_texts(hidden, (segment_ids != 0)[:, None], positions, pooling)[:, 0]


def pool_texts(
    hidden: Float[Array, "B S H"], members: Bool[Array, "B E S"], positions: Int[Array, "B S"], pooling: str
) -> Float[Array, "B E F"]:
    """Returns one float32 vector for each text of each row.

    Args:
      hidden: a vector for each token.
      members: which tokens each text has.
      positions: the position of each token in its text, from 0 on.
      pooling: "cls" or "lasttoken", the vector of the first or last token; "mean" or "max" over the tokens, including
        [CLS] and [SEP]; "mean_sqrt_len_tokens", their sum divided by the root of their number; "weightedmean", a mean
        with the positions from 1 on as weights; or several, such as "cls+mean", whose vectors are concatenated.
    """
    hidden = hidden.astype(jnp.float32)
    positions = positions[:, None]
    names = [choice(name, POOLINGS, "sentence_pooling") for name in pooling.split("+")]
    return jnp.concatenate([_pool(hidden, members, positions, name) for name in names], axis=-1)


def places_of_vectors(
    members: Bool[Array, "B E S"], positions: Int[Array, "B S"], pooling: str
) -> Int[Array, "B E"] | None:
    """Returns the token whose vector is that of each text, or None if `pooling` reads several; see `pool_texts`."""
    if pooling == "cls":
        return jnp.argmin(jnp.where(members, positions[:, None], jnp.inf), axis=-1)
    if pooling == "lasttoken":
        return jnp.argmax(jnp.where(members, positions[:, None], -1), axis=-1)
    return None


def _pool(
    hidden: Float[Array, "B S H"], members: Bool[Array, "B E S"], positions: Int[Array, "B 1 S"], pooling: str
) -> Float[Array, "B E H"]:
    if pooling == "max":
        candidates = jnp.where(members[..., None], hidden[:, None], -jnp.inf)
        return jnp.where(members.any(axis=-1)[..., None], jnp.max(candidates, axis=2), 0)
    places = places_of_vectors(members, positions[:, 0], pooling)
    if places is not None:
        return take_positions(hidden, places)
    weights = jnp.where(members, positions + 1 if pooling == "weightedmean" else 1, 0)
    total = jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1)
    weights = weights / (jnp.sqrt(total) if pooling == "mean_sqrt_len_tokens" else total)
    hidden = jnp.where(members.any(axis=1)[..., None], hidden, 0)
    return jnp.einsum("BES,BSH->BEH", weights, hidden, precision="highest")


@dataclasses.dataclass(frozen=True)
class DenseConfig(Constrained, prefix="dense"):
    """A map of the vectors of texts.

    Attributes:
      size: the size of its results.
      activation: the activation of its results; "identity" for none.
      bias: whether it has a bias.
    """

    size: Size
    activation: Annotated[str, one_of("tanh", "identity", "relu", "gelu", "silu")] = "tanh"
    bias: bool = True


class SentenceDense(nn.Module):
    """Maps of the vectors of texts, one after another, as the modules `Dense` of sentence-transformers.

    Parameters: `0`, `1` and so on, each with `kernel` [I, O] and, if it has one, `bias` [O].
    """

    maps: tuple[DenseConfig, ...]

    @nn.compact
    def __call__(self, x: Float[Array, "B I"]) -> Float[Array, "B O"]:
        """Returns the mapped vectors."""
        for number, dense in enumerate(self.maps):
            y = Dense(dense.size, nn.initializers.lecun_normal(), "float32", dense.bias, name=f"{number}")(x)
            x = y if dense.activation == "identity" else ACTIVATIONS[dense.activation](y)
        return x


class SpanLogits(NamedTuple):
    """The output of `BertForQuestionAnswering`."""

    start: Array  # [B, S] float32
    end: Array  # [B, S] float32


class BertForSequenceClassification(nn.Module):
    """Logits of the classes of whole instances. With one label: a number (regression) or the score of a choice.

    The input of the classifier is the pooled output of [CLS], the first token. If `direction` is "left_to_right", it is
    that of the last token, because [CLS] then attends only to itself. With a BiLSTM ("+ BiLSTM" in table 5), it is the
    two final states of the BiLSTM, and there is no pooler. For other values of `head` and `pooling` see `HeadConfig`.

    Parameters: `bert`, with `pooler` unless there is an `lstm` or `head` is "transform", and then `transform` and
    `norm`; `lstm`; `classifier` [H or 2 lstm_size, C].
    """

    config: HeadConfig
    num_labels: int
    classifier_dropout: float  # dropout of the head's input; 0.1 in BERT
    lstm_size: int  # units of each direction; 0 for no BiLSTM

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B *E C"]:
        """Returns the logits of each row; for packed rows, those of each instance, in the order of `cls_positions`."""
        pooled = inputs
        if self.config.direction == "left_to_right":
            pooled = inputs._replace(cls_positions=_last_tokens(inputs.segment_ids, inputs.cls_positions))
        has_pooler = self.config.head == "pooler" and not self.lstm_size
        pooler_activation = self.config.pooler_activation if has_pooler else ""
        read = pooled.instance_positions if self.config.pooling == "cls" and not self.lstm_size else None
        output = Bert(self.config, pooler_activation, self.config.pooling, name="bert")(
            pooled, deterministic=deterministic, return_attention=False, output_positions=read
        )
        x = output.hidden if output.pooled is None else output.pooled
        if not self.lstm_size:
            x = x if has_pooler or read is not None else instances(self.config.pooling, x, pooled)
            x = x[:, 0] if inputs.cls_positions is None else x
        x = _transformed(self.config, x)
        x = Dropout(self.classifier_dropout)(x, deterministic=deterministic)
        if self.lstm_size:
            _check_unpacked(self.lstm_size, inputs)
            x = BiLSTM(self.lstm_size, name="lstm")(x, inputs.segment_ids).final
        return _classifier(self.config, self.num_labels, "classifier")(x)


class BertForTokenClassification(nn.Module):
    """Logits of the classes of each token, including padding.

    Parameters: `bert`, without a pooler; `lstm` if `lstm_size` is not 0; `classifier` [H or 2 lstm_size, C].
    """

    config: HeadConfig
    num_labels: int
    classifier_dropout: float  # dropout of the head's input; 0.1 in BERT
    lstm_size: int  # units of each direction; 0 for no BiLSTM

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B S C"]:
        """Returns the logits of each token."""
        x = Bert(self.config, name="bert")(inputs, deterministic=deterministic, return_attention=False).hidden
        x = _transformed(self.config, x)
        x = Dropout(self.classifier_dropout)(x, deterministic=deterministic)
        if self.lstm_size:
            _check_unpacked(self.lstm_size, inputs)
            x = BiLSTM(self.lstm_size, name="lstm")(x, inputs.segment_ids).hidden
        return _classifier(self.config, self.num_labels, "classifier")(x)


class BertForQuestionAnswering(nn.Module):
    """Logits of each token as first and last token of the answer. No dropout before the head, as in BERT.

    Padding has logits too; the loss and the search for the best span must exclude it.

    Parameters: `bert`, without a pooler; `lstm` if `lstm_size` is not 0; `qa_outputs` [H or 2 lstm_size, 2].
    """

    config: HeadConfig
    lstm_size: int  # units of each direction; 0 for no BiLSTM

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> SpanLogits:
        """Returns the logits of each token."""
        x = Bert(self.config, name="bert")(inputs, deterministic=deterministic, return_attention=False).hidden
        x = _transformed(self.config, x)
        if self.lstm_size:
            _check_unpacked(self.lstm_size, inputs)
            x = BiLSTM(self.lstm_size, name="lstm")(x, inputs.segment_ids).hidden
        logits = _classifier(self.config, 2, "qa_outputs")(x)
        return SpanLogits(logits[..., 0], logits[..., 1])


class FeatureTagger(nn.Module):
    """Logits of the classes of tokens, from features of a frozen BERT (Devlin et al. 2019, section 5.3 and table 7).

    The paper uses two BiLSTM layers with 768 units. It does not say whether these are units per direction; here
    `lstm_size` is per direction.

    Parameters: `mix` if `mixing` is "weighted", `lstm_0`, `lstm_1`, ..., `classifier` [2 lstm_size, C].
    """

    num_labels: int
    mixing: str  # "concatenation", "sum" or "weighted": see `LayerMix`
    num_layers: int
    lstm_size: int  # units of each direction
    dropout: float  # dropout of the input of each layer and of the classifier
    initializer_range: float

    @nn.compact
    def __call__(
        self, features: Float[Array, "B S K H"], segment_ids: Int[Array, "B S"], *, deterministic: bool
    ) -> Float32[Array, "B S C"]:
        """Returns the logits of each token; `features` are the outputs of K layers, from `choose_layers`."""
        x = LayerMix(self.mixing, name="mix")(features.astype(jnp.float32))
        for layer in range(self.num_layers):
            x = Dropout(self.dropout)(x, deterministic=deterministic)
            x = BiLSTM(self.lstm_size, name=f"lstm_{layer}")(x, segment_ids).hidden
        x = Dropout(self.dropout)(x, deterministic=deterministic)
        kernel_init = nn.initializers.truncated_normal(self.initializer_range)
        return Dense(self.num_labels, kernel_init, "float32", name="classifier")(x)


class BertFeatureTagger(nn.Module):
    """A frozen BERT with a `FeatureTagger` on top.

    BERT runs without dropout and gets no gradient.

    Parameters: `bert`, without a pooler; `tagger`.
    """

    config: BertConfig
    num_labels: int
    layers: tuple[int, ...]  # of `BertOutput.layers`: 0 is the embeddings, -1 the last layer
    mixing: str
    num_lstm_layers: int
    lstm_size: int  # units of each direction
    dropout: float  # dropout of the tagger

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float32[Array, "B S C"]:
        """Returns the logits of each token, including padding."""
        check_layers(self.layers, self.config.num_layers, "model.feature_layers")
        _check_unpacked(self.lstm_size, inputs)
        output = Bert(self.config, name="bert")(inputs, deterministic=True, return_attention=False, return_layers=True)
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


def _transformed(config: HeadConfig, x: Float[Array, "*rows H"]) -> Float[Array, "*rows H"]:
    return transform(config, config.hidden_size, x) if config.head == "transform" else x


def _last_tokens(segment_ids: Int[Array, "B S"], first: Int[Array, "B E"] | None) -> Int[Array, "B E"]:
    """The positions of the instances' last tokens, given those of their first; None for one instance per row."""
    first = jnp.zeros_like(segment_ids[:, :1]) if first is None else first
    sizes = jnp.sum(segment_ids[:, None] == 1 + jnp.arange(first.shape[1])[:, None], axis=-1)
    return jnp.maximum(first + sizes - 1, 0)


def _classifier(config: BertConfig, num_labels: int, name: str) -> Dense:
    return Dense(num_labels, kernel_init(config), "float32", config.unbiased != "classifiers", name=name)


def _check_unpacked(lstm_size: int, inputs: BertInputs) -> None:
    """Raises UserError for packed rows, across whose instances a BiLSTM would read."""
    if inputs.position_ids is not None:
        expected = "0 with packed rows, data.packing=True"
        raise UserError("config key model.lstm_size", got=lstm_size, expected=expected, fix="set it to 0")
