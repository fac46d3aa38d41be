"""BERTSUMABS (Liu and Lapata 2019, section 4): a Transformer that writes a summary from what BERT makes of a document.

With a small BERT that starts from scratch it is the paper's TransformerAbs.

Shapes: B batch, S source length, T target length, H hidden size, V vocabulary, K beams.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, Int

from bertjax.config import Constrained, DropoutRate, Size
from bertjax.models.attention import make_cross_mask, make_mask
from bertjax.models.bert import Bert, BertConfig, BertInputs, BertOutput
from bertjax.models.bertsum import presumm_layers
from bertjax.models.decoder import Beams, Decoder, DecoderCache
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import Memory, Seq2SeqOutput
from bertjax.models.layers import Dropout
from bertjax.models.transformer import TransformerConfig, check_value, keep_rows_split


@dataclasses.dataclass(frozen=True)
class BertSumAbsConfig(Constrained, prefix="model"):
    """The decoder on top of BERT, which is as wide and has the same vocabulary.

    Attributes:
      decoder_layers: layers of the decoder; 6 in the paper.
      decoder_heads: heads of each of the decoder's attentions; 8.
      decoder_intermediate: width inside the decoder's feed-forward network; 2048.
      decoder_dropout: on the decoder's embeddings, attention weights, activations and each sub-layer's output; .2 for
        BERTSUMABS.

    Raises:
      UserError: a value out of range.
    """

    decoder_layers: Size
    decoder_heads: Size
    decoder_intermediate: Size
    decoder_dropout: DropoutRate


class BertSumAbs(nn.Module):
    """BERT, a pre-norm decoder, and the product with all words, as the code of PreSumm has it.

    Parameters: `bert`, without a pooler; `target_embeddings` [V, H], of the decoder's input and output; `decoder`;
    `bias` [V]. Methods are those of `EncoderDecoder`, with the document's token types.
    """

    config: BertConfig
    head: BertSumAbsConfig

    def setup(self) -> None:
        """Makes the parts. Raises UserError if the decoder does not fit BERT."""
        config = self.config
        self.bert = Bert(config, use_pooler=False)
        # PreSumm's start at N(0, .02) is undone by that of the output, which is the same table.
        init, shape = nn.initializers.xavier_uniform(), (config.vocab_size, config.hidden_size)
        self.target_embeddings = self.param("target_embeddings", init, shape)
        self.drop = Dropout(self.head.decoder_dropout)
        self.decoder = Decoder(_decoder_config(config, self.head), self.head.decoder_layers)
        self.bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,))

    def __call__(
        self,
        source_ids: Int[Array, "B S"],
        source_segments: Int[Array, "B S"],
        target_ids: Int[Array, "B T"],
        target_segments: Int[Array, "B T"],
        *,
        token_type_ids: Int[Array, "B S"] | None = None,
        source_positions: Int[Array, "B S"] | None = None,
        target_positions: Int[Array, "B T"] | None = None,
        deterministic: bool,
        return_attention: bool,
    ) -> Seq2SeqOutput:
        """Predicts the word after each target token, from the document and the target up to there.

        Args:
          source_ids: the document, with [CLS] and [SEP] around each sentence.
          source_segments: 1 at tokens, 0 at padding.
          target_ids: the decoder's input: a start token, then the target.
          target_segments: 1 at tokens, 0 at padding.
          token_type_ids: 0 and 1 in turns, sentence by sentence; None for 0 everywhere.
          source_positions: places within the source; None for 0 to S - 1.
          target_positions: places within the target; None for 0 to T - 1.
          deterministic: no dropout.
          return_attention: whether to return the attention weights.
        """
        encoded = self._read(
            source_ids, source_segments, token_type_ids, source_positions, deterministic, return_attention
        )
        length = target_ids.shape[1]
        positions = jnp.arange(length)[None] if target_positions is None else target_positions
        decoded = self.decoder(
            self._embed(target_ids, positions, length, deterministic),
            make_mask(target_segments, "left_to_right"),
            encoded.hidden,
            make_cross_mask(target_segments, source_segments),
            deterministic=deterministic,
            return_attention=return_attention,
        )
        logits = self._logits(decoded.hidden)
        return Seq2SeqOutput(logits, encoded.attention, decoded.attention, decoded.cross_attention)

    def encode(
        self,
        source_ids: Int[Array, "B S"],
        source_segments: Int[Array, "B S"],
        *,
        token_type_ids: Int[Array, "B S"] | None = None,
        deterministic: bool,
    ) -> Memory:
        """Returns what decoding needs of the document."""
        output = self._read(source_ids, source_segments, token_type_ids, None, deterministic, return_attention=False)
        return Memory(output.hidden, source_segments)

    def start(self, memory: Memory, num_beams: int, length: int) -> DecoderCache:
        """Returns the cache before the first of `length` steps of so many beams for each row of the memory."""
        return self.decoder.start(memory.hidden, (memory.segments != 0)[:, None, None, :], num_beams, length)

    def step(
        self, tokens: Int[Array, "B K"], cache: DecoderCache, beams: Beams
    ) -> tuple[Float32[Array, "B K V"], DecoderCache]:
        """Predicts the word after each beam's history; arguments as those of `EncoderDecoder.step`."""
        positions = jnp.broadcast_to(beams.index, tokens.shape)
        x = self._embed(tokens, positions, beams.lineage.shape[-1], deterministic=True)
        hidden, cache = self.decoder.step(x, cache, beams)
        return self._logits(hidden), cache

    def _read(
        self,
        ids: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"] | None,
        positions: Int[Array, "B S"] | None,
        deterministic: bool,
        return_attention: bool,
    ) -> BertOutput:
        types = jnp.zeros_like(ids) if token_type_ids is None else token_type_ids
        output: BertOutput = self.bert(
            BertInputs(ids, types, segments, positions),
            deterministic=deterministic,
            return_attention=return_attention,
        )
        return output

    def _embed(
        self, ids: Int[Array, "B T"], positions: Int[Array, "#B T"], length: int, deterministic: bool
    ) -> Float[Array, "B T H"]:
        size = self.config.hidden_size
        places = jnp.asarray(sinusoids(length, size, "interleaved"))
        x = jnp.take(self.target_embeddings, ids, axis=0) * size**0.5 + jnp.take(places, positions, axis=0)
        return self.drop(x.astype(self.config.dtype), deterministic=deterministic)

    def _logits(self, hidden: Float[Array, "B T H"]) -> Float32[Array, "B T V"]:
        # Flat rows, as in `Dense`.
        rows, kernel = (
            keep_rows_split(hidden).reshape(-1, hidden.shape[-1]),
            self.target_embeddings.T.astype(hidden.dtype),
        )
        logits = jnp.matmul(rows, kernel, preferred_element_type=jnp.float32)
        return logits.reshape(*hidden.shape[:-1], -1) + self.bias


def copy_embeddings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters of `BertSumAbs` whose decoder starts with BERT's word embeddings (`-use_bert_emb` there)."""
    table = params["bert"]["embeddings"]["word_embeddings"]
    return {**params, "target_embeddings": jnp.array(table)}  # a copy: an update gives its buffers away


def _decoder_config(config: BertConfig, head: BertSumAbsConfig) -> TransformerConfig:
    """The options of PreSumm's `TransformerDecoder`."""
    check_value(config.hidden_size % 2 == 0, "hidden_size", config.hidden_size, "an even number")
    sizes = head.decoder_layers, head.decoder_heads, head.decoder_intermediate
    return presumm_layers(config, "decoder", *sizes, head.decoder_dropout, "truncated_normal")
