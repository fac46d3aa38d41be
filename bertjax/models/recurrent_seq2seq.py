"""A recurrent encoder-decoder, with or without attention.

The encoder is a bidirectional GRU with states h (Bahdanau et al. 2015). The decoder is a GRU, whose state s is the
query of the attention over h (Luong et al. 2015, section 3.1).

Shapes: B batch, S source length, T target length, E embedding size, H hidden size, V target vocabulary, K beams.
"""

import dataclasses
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Float32, Int

from bertjax.config import Constrained, DropoutRate, Size, above, one_of
from bertjax.errors import UserError
from bertjax.models.attention.inputs import MASKED_SCORE
from bertjax.models.decoder import Beams
from bertjax.models.encoder_decoder import Seq2SeqInputs, Seq2SeqOutput
from bertjax.models.layers import Dense, Dropout
from bertjax.models.recurrent import GRU, BiGRU


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(Constrained, prefix="model"):
    """Sizes and options of `RecurrentSeq2Seq`, which computes in float32.

    Attributes:
      source_vocab_size, target_vocab_size: vocabulary size of each side; set from the vocabularies.
      embedding_size: size of the embeddings.
      hidden_size: size of the decoder's state, and of the encoder's two directions together.
      attention: "none", "additive", "dot" or "general": see `RecurrentSeq2Seq`.
      dropout: dropout of the embeddings and of the output layer's input.
      initializer_range: standard deviation of the embedding tables at initialization.

    Raises:
      UserError: if a value is out of range.
    """

    source_vocab_size: Size
    target_vocab_size: Size
    embedding_size: Size
    hidden_size: Size
    attention: Annotated[str, one_of("none", "additive", "dot", "general")]
    dropout: DropoutRate
    initializer_range: Annotated[float, above(0)]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.hidden_size % 2 == 0, "hidden_size", "an even number, for two directions")


class RecurrentMemory(NamedTuple):
    """The encoded source, as used by the decoder."""

    hidden: Array  # [B, S, H]: h; 0 at padding
    keys: Array  # [B, S, H]: the keys of the attention: h, or its projection
    final: Array  # [B, H]: the final states of both directions
    segments: Array  # [B, S] int: 0 at padding


class RecurrentCache(NamedTuple):
    """The state of the decoder between steps."""

    state: Array  # [B, K, H]
    memory: RecurrentMemory


class RecurrentSeq2Seq(nn.Module):
    """A GRU encoder-decoder with attention, which predicts words from the decoder's state s and the context c.

    The initial state is tanh(W final). The context is the mean of h weighted by the softmax of scores e:

    - "additive": e = v tanh(W s + U h), as in Bahdanau et al.;
    - "dot": e = s h; "general": e = s W h, as in Luong et al.;
    - "none": no scores; the context is always `final`.

    Words are predicted from tanh(W [s; c]), as in Luong et al. The context is not an input of the recurrence.

    Parameters: `source_embeddings`, `target_embeddings` [V, E], `encoder`, `bridge` [H, H], `decoder`, `combine`
    [2H, H], `output` [H, V]; `keys`, `query` [H, H] and `scores` [H] if additive; `keys` without a bias if general.
    """

    config: RecurrentConfig

    def setup(self) -> None:
        """Makes the submodules."""
        config = self.config
        table = nn.initializers.truncated_normal(config.initializer_range)
        size = config.hidden_size
        shapes = [(rows, config.embedding_size) for rows in (config.source_vocab_size, config.target_vocab_size)]
        self.source_words = self.param("source_embeddings", table, shapes[0])
        self.target_words = self.param("target_embeddings", table, shapes[1])
        self.encoder = BiGRU(size // 2)
        self.decoder = GRU(size)
        self.bridge = _dense(size)
        self.combine = _dense(size)
        self.output = _dense(config.target_vocab_size)
        self.drop = Dropout(config.dropout)
        if config.attention == "additive":
            self.keys: Dense | nn.Dense = _dense(size)
            self.query = _dense(size)
            self.scores = self.param("scores", nn.initializers.normal(size**-0.5), (size,))
        if config.attention == "general":
            self.keys = nn.Dense(size, use_bias=False, kernel_init=nn.initializers.xavier_uniform())

    def __call__(self, inputs: Seq2SeqInputs, *, deterministic: bool, return_attention: bool) -> Seq2SeqOutput:
        """Returns the logits of the word after each target token, given the source and the target so far.

        Args:
          inputs: the batch, with targets and one pair per row. Target segments are ignored: padding comes last, so it
            does not affect the logits before it.
          deterministic: whether dropout is off.
          return_attention: whether to return the attention weights [1, B, 1, T, S]; None with `attention="none"`.
        Raises:
          UserError: if the rows are packed, that is, if they have positions.
        """
        assert inputs.target_ids is not None
        if inputs.position_ids is not None or inputs.target_position_ids is not None:
            expected = "one pair per row"
            fix = "set --config.data.packing=False"
            raise UserError("config key model: a recurrent model", got="packed rows", expected=expected, fix=fix)
        memory = self.encode(inputs, deterministic=deterministic)
        words = self.drop(jnp.take(self.target_words, inputs.target_ids, axis=0), deterministic=deterministic)
        states = self.decoder(words, self._first_state(memory))
        context, weights = self._attend(states, memory)
        logits = self._logits(states, context, deterministic)
        returned = weights if return_attention else None
        return Seq2SeqOutput(logits, None, None, None if returned is None else returned[None, :, None])

    def encode(self, inputs: Seq2SeqInputs, *, deterministic: bool) -> RecurrentMemory:
        """Encodes the sources, one per row, for decoding."""
        words = self.drop(jnp.take(self.source_words, inputs.input_ids, axis=0), deterministic=deterministic)
        hidden, final = self.encoder(words, inputs.segment_ids)
        keys = self.keys(hidden) if self.config.attention in ("additive", "general") else hidden
        return RecurrentMemory(hidden, keys, final, inputs.segment_ids)

    def start(self, memory: RecurrentMemory, num_beams: int, length: int) -> RecurrentCache:
        """Returns the initial cache with `num_beams` beams per row. The number of steps is not limited by `length`."""
        del length
        state = self._first_state(memory)
        return RecurrentCache(jnp.broadcast_to(state[:, None], (len(state), num_beams, state.shape[-1])), memory)

    def step(
        self, tokens: Int[Array, "B K"], cache: RecurrentCache, beams: Beams
    ) -> tuple[Float32[Array, "B K V"], RecurrentCache]:
        """Returns the logits of the word after each beam's history, and the new cache; see `Seq2Seq.step`."""
        state = jnp.take_along_axis(cache.state, beams.parents[..., None], axis=1)
        words = jnp.take(self.target_words, tokens, axis=0)
        rows = words.reshape(-1, 1, words.shape[-1]), state.reshape(-1, state.shape[-1])
        state = self.decoder(*rows).reshape(state.shape)
        context, _ = self._attend(state, cache.memory)
        return self._logits(state, context, deterministic=True), RecurrentCache(state, cache.memory)

    def _first_state(self, memory: RecurrentMemory) -> Float[Array, "B H"]:
        return jnp.tanh(self.bridge(memory.final))

    def _attend(
        self, states: Float[Array, "B T H"], memory: RecurrentMemory
    ) -> tuple[Float[Array, "B T H"], Float[Array, "B T S"] | None]:
        """Returns the context of each state, and the attention weights."""
        if self.config.attention == "none":
            return jnp.broadcast_to(memory.final[:, None], states.shape), None
        if self.config.attention == "additive":
            summed = jnp.tanh(self.query(states)[:, :, None] + memory.keys[:, None])
            scores = jnp.sum(summed * self.scores, axis=-1)
        else:
            scores = jnp.einsum("BTH,BSH->BTS", states, memory.keys)
        weights = jax.nn.softmax(jnp.where(_real(memory), scores, MASKED_SCORE))
        return jnp.einsum("BTS,BSH->BTH", weights, memory.hidden), weights

    def _logits(
        self, states: Float[Array, "B T H"], context: Float[Array, "B T H"], deterministic: bool
    ) -> Float32[Array, "B T V"]:
        joined = jnp.tanh(self.combine(jnp.concatenate([states, context], axis=-1)))
        return self.output(self.drop(joined, deterministic=deterministic))


def _dense(features: int) -> Dense:
    return Dense(features, nn.initializers.xavier_uniform(), "float32")


def _real(memory: RecurrentMemory) -> Bool[Array, "B 1 S"]:
    return (memory.segments != 0)[:, None]
