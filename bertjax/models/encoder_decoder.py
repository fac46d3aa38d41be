"""The encoder-decoder Transformer (Vaswani et al. 2017).

Shapes: B batch, S source length, T target length, H hidden size, N heads, V target vocabulary, L layers, K beams.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, Int

from bertjax.config import Count, Size, at_least, one_of
from bertjax.errors import UserError
from bertjax.models.attention.mask import make_cross_mask, make_mask
from bertjax.models.attention.relative import BucketedBias
from bertjax.models.decoder import Beams, Decoder, DecoderCache
from bertjax.models.embeddings import embedding_table, sinusoids
from bertjax.models.encoder import Encoder, EncoderOutput
from bertjax.models.layers import Dropout, word_logits
from bertjax.models.norms import Norm
from bertjax.models.transformer import keep_rows_split
from bertjax.models.transformer_config import TransformerConfig, kernel_init, make_norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(TransformerConfig):
    """Sizes and options of an encoder-decoder Transformer. `num_layers` is the number of encoder layers.

    Attributes:
      num_decoder_layers: layers of the decoder.
      source_vocab_size, target_vocab_size: vocabulary size of each side; set from the vocabularies.
      share_embeddings: whether source and target share one embedding table.
      tie_output: whether the output layer uses the target embeddings instead of its own matrix.
      logits_bias: whether the output layer has a bias.
      positions: "sinusoidal"; "learned", with one table per side; or "none".
      sinusoid_layout: "interleaved", "half_split" or "deinterleaved": see `sinusoids`.
      relative_positions: "none"; or "bucketed", a learned bias of the scores of self-attention for each head and bucket
        of distances, with one table per side for all of its layers, as in T5. The decoder's buckets are for keys before
        their query.
      relative_buckets: number of buckets of a table.
      relative_distance: distances from here on share the last bucket.
      max_positions: maximum number of tokens in a row; 0 for no maximum, with positions=none.
      scale_embeddings: whether embeddings are multiplied by sqrt(H) before positions are added.
      embedding_norm: whether the sums of embeddings and positions are normalized, as in BART.
      key_size: size of a head's queries and keys; 0 for hidden_size / num_heads.
      value_size: size of a head's values; 0 for hidden_size / num_heads.
      scale_scores: whether scores are divided by the square root of the size of keys; False in T5.
      scale_output: whether the decoder's output is divided by sqrt(H) before the output layer, as in T5.
      final_dropout: whether `dropout` also applies to the outputs of encoder and decoder, as in T5.

    Raises:
      UserError: if a value is out of range, or if vocabularies of different sizes would share one table.
    """

    num_decoder_layers: Size
    source_vocab_size: Size
    target_vocab_size: Size
    share_embeddings: bool
    tie_output: bool
    logits_bias: bool = False
    positions: Annotated[str, one_of("sinusoidal", "learned", "none")] = "sinusoidal"
    sinusoid_layout: Annotated[str, one_of("interleaved", "half_split", "deinterleaved")] = "interleaved"
    relative_positions: Annotated[str, one_of("none", "bucketed")] = "none"
    relative_buckets: Annotated[int, at_least(4)] = 32
    relative_distance: Size = 128
    max_positions: Count
    scale_embeddings: bool = True
    embedding_norm: bool = False
    key_size: Count = 0
    value_size: Count = 0
    scale_scores: bool = True
    scale_output: bool = False
    final_dropout: bool = False

    @property
    def head_key_size(self) -> int:
        """The size of a head's queries and keys: `key_size` if set (Vaswani et al. 2017, table 3, rows B)."""
        return self.key_size or super().head_key_size

    @property
    def head_value_size(self) -> int:
        """The size of a head's values: `value_size` if set."""
        return self.value_size or super().head_value_size

    @property
    def query_scale(self) -> float:
        """The factor of queries, which cancels the division of scores unless `scale_scores`."""
        return 1.0 if self.scale_scores else self.head_key_size**0.5

    @property
    def divides_hidden_size(self) -> bool:
        """Whether the size of a head's keys or values follows from the hidden size."""
        return not (self.key_size and self.value_size)

    def __post_init__(self) -> None:
        super().__post_init__()
        even = self.positions != "sinusoidal" or self.hidden_size % 2 == 0
        self.check(even, "hidden_size", "an even number with model.positions=sinusoidal")
        has_limit = bool(self.max_positions)
        expected = "0 with model.positions=none" if has_limit else f"at least 1 with model.positions={self.positions}"
        self.check(has_limit == (self.positions != "none"), "max_positions", expected)
        for key in ("key_size", "value_size"):
            is_supported = not getattr(self, key) or self.attention_backend in ("auto", "xla")
            self.check(is_supported, key, f"0 with model.attention_backend={self.attention_backend}")
        single = self.relative_buckets // 2
        self.check(self.relative_distance > single, "relative_distance", f"above {single}, the buckets of one distance")
        has_scores = self.relative_positions == "none" or self.attention_backend in ("auto", "xla")
        self.check(has_scores, "relative_positions", f"none with model.attention_backend={self.attention_backend}")
        sizes = {self.source_vocab_size, self.target_vocab_size} - {None}  # not known yet
        one_table = not self.share_embeddings or len(sizes) < 2
        expected = f"model.source_vocab_size={self.source_vocab_size} with model.share_embeddings"
        self.check(one_table, "target_vocab_size", expected)


class Seq2SeqInputs(NamedTuple):
    """A batch of sources and targets: the input of every sequence-to-sequence model.

    A row contains one pair, or several pairs packed one after another on each side. `encode` reads only the source.
    """

    input_ids: Array  # [B, S] int: the source's tokens
    segment_ids: Array  # [B, S] int: the number of the token's pair in its row, from 1 on; 0 at padding
    target_ids: Array | None = None  # [B, T] int: the decoder's input: a start token, then the target
    target_segment_ids: Array | None = None  # [B, T] int: like `segment_ids`, for the target
    token_type_ids: Array | None = None  # [B, S] int: BERT's token types; None for 0. Ignored by models without BERT
    position_ids: Array | None = None  # [B, S] int: the token's position in its source; None for 0 to S - 1
    target_position_ids: Array | None = None  # [B, T] int: the token's position in its target; None for 0 to T - 1

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> "Seq2SeqInputs":
        """Makes inputs from the fields of a batch; other fields are ignored."""
        return cls(**{name: batch[name] for name in cls._fields if name in batch})


class Seq2SeqOutput(NamedTuple):
    """The output of a sequence-to-sequence model. Attention weights are float32; None if not requested."""

    logits: Array  # [B, T, V] float32: the word after each target token
    encoder_attention: Array | None  # [L, B, N, S, S]
    decoder_attention: Array | None  # [L, B, N, T, T]
    cross_attention: Array | None  # [L, B, N, T, S]


class Memory(NamedTuple):
    """The encoded source, as used by the decoder."""

    hidden: Array  # [B, S, H]
    segments: Array  # [B, S] int: 0 at padding


class Seq2Seq(nn.Module, abc.ABC):
    """A model with a `Decoder`: embeddings of targets, output layer, and decoding step by step.

    In `setup`, subclasses set `decoder`; `drop`, the dropout of embeddings; `final_drop`, that of the decoder's output;
    `target_words` [V, H]; the factors `scale` of embeddings and `output_scale` of the decoder's output; `target_norm`,
    of embeddings, and `target_bias`, of scores, or None; `output` [H, V], or None to use the embeddings; and `bias` [V]
    or None. An id outside its table gives NaN, not the embedding of another word.
    """

    config: Any

    def __call__(self, inputs: Seq2SeqInputs, *, deterministic: bool, return_attention: bool) -> Seq2SeqOutput:
        """Returns the logits of the word after each target token, given the source and the target so far.

        Args:
          inputs: the batch, with targets.
          deterministic: whether dropout is off.
          return_attention: whether to return the attention weights.
        Raises:
          UserError: if a sequence is longer than max_positions.
        """
        assert inputs.target_ids is not None and inputs.target_segment_ids is not None
        encoded = self._read(inputs, deterministic, return_attention)
        length = inputs.target_ids.shape[1]
        decoded = self.decoder(
            self._embed_targets(length, inputs.target_ids, inputs.target_position_ids, deterministic),
            make_mask(inputs.target_segment_ids, "left_to_right", inputs.target_position_ids),
            encoded.hidden,
            make_cross_mask(inputs.target_segment_ids, inputs.segment_ids, is_packed=inputs.position_ids is not None),
            None if self.target_bias is None else self.target_bias(length),
            deterministic=deterministic,
            return_attention=return_attention,
        )
        logits = self._logits(self.final_drop(decoded.hidden, deterministic=deterministic))
        return Seq2SeqOutput(logits, encoded.attention, decoded.attention, decoded.cross_attention)

    def encode(self, inputs: Seq2SeqInputs, *, deterministic: bool) -> Memory:
        """Encodes the sources, one per row, for decoding."""
        return Memory(self._read(inputs, deterministic, return_attention=False).hidden, inputs.segment_ids)

    def start(self, memory: Memory, num_beams: int, length: int) -> DecoderCache:
        """Returns the initial cache for `length` steps with `num_beams` beams per row of the memory.

        Raises:
          UserError: if `length` is larger than max_positions.
        """
        _check_length(length, self._position_table(length))
        mask = (memory.segments != 0)[:, None, None, :]
        bias = None if self.target_bias is None else self.target_bias.by_distance()
        return self.decoder.start(memory.hidden, mask, num_beams, length, bias)

    def step(
        self, tokens: Int[Array, "B K"], cache: DecoderCache, beams: Beams
    ) -> tuple[Float32[Array, "B K V"], DecoderCache]:
        """Returns the logits of the word after each beam's history, and the new cache.

        Args:
          tokens: the last token of each history.
          cache: the cache from `start` or the previous step.
          beams: the histories of the beams, with the numbers of beams and steps passed to `start`.
        Returns:
          The logits, and the cache extended by these tokens.
        """
        positions = jnp.broadcast_to(beams.index, tokens.shape)
        x = self._embed_targets(beams.lineage.shape[-1], tokens, positions, deterministic=True)
        hidden, cache = self.decoder.step(x, cache, beams)
        return self._logits(hidden), cache

    @abc.abstractmethod
    def _read(self, inputs: Seq2SeqInputs, deterministic: bool, return_attention: bool) -> Any:
        """Returns the `hidden` states of the encoder, and its `attention` weights if requested."""

    @abc.abstractmethod
    def _position_table(self, length: int) -> Float[Array, "P H"] | None:
        """Returns the embeddings of the positions of targets of up to `length` tokens; None without embeddings."""

    def _embed_targets(
        self, length: int, ids: Int[Array, "B T"], positions: Int[Array, "B T"] | None, deterministic: bool
    ) -> Float[Array, "B T H"]:
        table = self._position_table(length)
        return self._embed(self.target_words, table, self.target_norm, ids, positions, deterministic)

    def _embed(
        self,
        words: Float[Array, "V H"],
        position_table: Float[Array, "P H"] | None,
        norm: Norm | None,
        ids: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None,
        deterministic: bool,
    ) -> Float[Array, "B S H"]:
        x = jnp.take(words, ids, axis=0) * self.scale
        x = x if position_table is None else x + _embedded(position_table, ids.shape[1], positions)
        x = x if norm is None else norm(x)
        return self.drop(x.astype(self.config.dtype), deterministic=deterministic)

    def _logits(self, hidden: Float[Array, "B T H"]) -> Float32[Array, "B T V"]:
        # Flat rows, as in `Dense`.
        hidden = hidden if self.output_scale == 1 else hidden * self.output_scale
        rows = keep_rows_split(hidden).reshape(-1, hidden.shape[-1])
        words = self.target_words if self.output is None else self.output.T
        return word_logits(rows, words, self.bias).reshape(*hidden.shape[:-1], -1)


class EncoderDecoder(Seq2Seq):
    """Embeddings, encoder, decoder and output layer.

    Parameters: `embeddings` [V, H], or `source_embeddings` and `target_embeddings`; `source_positions` and
    `target_positions` [max_positions, H] if learned; `source_norm` and `target_norm`, of embeddings; `source_bias` and
    `target_bias`, of bucketed distances; `encoder`, `decoder`; `output` [H, V] unless tied; `bias` [V].
    """

    config: EncoderDecoderConfig

    def setup(self) -> None:
        """Makes the submodules."""
        config = self.config
        if config.share_embeddings:
            self.source_words = self.target_words = embedding_table(
                self, config, "embeddings", config.source_vocab_size
            )
        else:
            self.source_words = embedding_table(self, config, "source_embeddings", config.source_vocab_size)
            self.target_words = embedding_table(self, config, "target_embeddings", config.target_vocab_size)
        self.source_position_table = self._positions("source_positions")
        self.target_position_table = self._positions("target_positions")
        self.source_norm = make_norm(config) if config.embedding_norm else None
        self.target_norm = make_norm(config) if config.embedding_norm else None
        self.source_bias = self._bias("both")
        self.target_bias = self._bias("left_to_right")
        self.scale = config.hidden_size**0.5 if config.scale_embeddings else 1.0
        self.output_scale = config.hidden_size**-0.5 if config.scale_output else 1.0
        self.drop = Dropout(config.dropout)
        self.final_drop = Dropout(config.dropout if config.final_dropout else 0.0)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config, config.num_decoder_layers)
        size = config.target_vocab_size
        shape = config.hidden_size, size
        self.output = None if config.tie_output else self.param("output", kernel_init(config), shape)
        self.bias = self.param("bias", nn.initializers.zeros, (size,)) if config.logits_bias else None

    def _read(self, inputs: Seq2SeqInputs, deterministic: bool, return_attention: bool) -> EncoderOutput:
        table = self.source_position_table
        ids = inputs.input_ids
        x = self._embed(self.source_words, table, self.source_norm, ids, inputs.position_ids, deterministic)
        mask = make_mask(inputs.segment_ids, "both", inputs.position_ids)
        bias = None if self.source_bias is None else self.source_bias(ids.shape[1])
        output = self.encoder(x, mask, bias, deterministic=deterministic, return_attention=return_attention)
        return output._replace(hidden=self.final_drop(output.hidden, deterministic=deterministic))

    def _position_table(self, length: int) -> Float[Array, "P H"] | None:
        return self.target_position_table

    def _bias(self, direction: str) -> BucketedBias | None:
        config = self.config
        if config.relative_positions == "none":
            return None
        return BucketedBias(config, config.relative_buckets, config.relative_distance, direction)

    def _positions(self, name: str) -> Float[Array, "P H"] | None:
        config = self.config
        if config.positions == "none":
            return None
        if config.positions == "learned":
            return embedding_table(self, config, name, config.max_positions)
        return jnp.asarray(sinusoids(config.max_positions, config.hidden_size, config.sinusoid_layout))


def _embedded(table: Float[Array, "P H"], length: int, positions: Int[Array, "B S"] | None) -> Float[Array, "*B S H"]:
    """Returns the embeddings of positions; None for 0 to length - 1."""
    if positions is not None:
        return jnp.take(table, positions, axis=0)
    _check_length(length, table)
    return table[:length]


def _check_length(length: int, position_table: Float[Array, "P H"] | None) -> None:
    if position_table is not None and length > (limit := len(position_table)):
        fix = "shorten the sequences or raise --config.model.max_positions"
        raise UserError("sequence length", got=length, expected=f"at most model.max_positions={limit}", fix=fix)
