"""BERTSUMABS (Liu and Lapata 2019, section 4): abstractive summaries by a Transformer decoder on top of BERT.

With a small BERT at its random initialization, this is the paper's TransformerAbs.

Shapes: B batch, S source length, T target length, H hidden size, V vocabulary, K beams.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, Int

from bertjax.config import Constrained, DropoutRate, Size
from bertjax.models.attention import make_cross_mask, make_mask, make_memory_mask
from bertjax.models.bert import Bert, BertConfig, BertInputs, BertOutput
from bertjax.models.bertsum import presumm_layers
from bertjax.models.decoder import Beams, Decoder, DecoderCache
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import Memory, Seq2SeqInputs, Seq2SeqOutput
from bertjax.models.layers import Dropout
from bertjax.models.transformer import keep_rows_split
from bertjax.models.transformer_config import TransformerConfig, check_value


@dataclasses.dataclass(frozen=True)
class BertSumAbsConfig(Constrained, prefix="model"):
    """Options of the decoder on top of BERT. Hidden size and vocabulary are BERT's.

    Attributes:
      decoder_layers: layers of the decoder; 6 in the paper.
      decoder_heads: attention heads of the decoder; 8 in the paper.
      decoder_intermediate: feed-forward size of the decoder; 2048 in the paper.
      decoder_dropout: dropout of the decoder's embeddings, attention weights, activations and sub-layer outputs; 0.2
        for BERTSUMABS.

    Raises:
      UserError: if a value is out of range.
    """

    decoder_layers: Size
    decoder_heads: Size
    decoder_intermediate: Size
    decoder_dropout: DropoutRate


class BertSumAbs(nn.Module):
    """BERT as encoder, a pre-norm decoder, and tied output embeddings, as in the code of PreSumm.

    Parameters: `bert`, without a pooler; `target_embeddings` [V, H], of the decoder's input and output; `decoder`;
    `bias` [V]. It has the methods of `EncoderDecoder`; inputs also have the document's token types.
    """

    config: BertConfig
    head: BertSumAbsConfig

    def setup(self) -> None:
        """Makes the submodules. Raises UserError if the decoder does not fit BERT's hidden size."""
        config = self.config
        self.bert = Bert(config, use_pooler=False)
        # PreSumm first initializes this table by N(0, 0.02), then as part of the output layer, which shares it.
        init, shape = nn.initializers.xavier_uniform(), (config.vocab_size, config.hidden_size)
        self.target_embeddings = self.param("target_embeddings", init, shape)
        self.drop = Dropout(self.head.decoder_dropout)
        self.decoder = Decoder(_decoder_config(config, self.head), self.head.decoder_layers)
        self.bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,))

    def __call__(self, inputs: Seq2SeqInputs, *, deterministic: bool, return_attention: bool) -> Seq2SeqOutput:
        """Returns the logits of the word after each target token, given the document and the target so far.

        Args:
          inputs: the documents, with [CLS] and [SEP] around each sentence, and the targets. Token types alternate
            between 0 and 1, sentence by sentence.
          deterministic: whether dropout is off.
          return_attention: whether to return the attention weights.
        """
        assert inputs.target_ids is not None and inputs.target_segment_ids is not None
        encoded = self._read(inputs, deterministic, return_attention)
        length = inputs.target_ids.shape[1]
        positions = inputs.target_position_ids
        positions = jnp.arange(length)[None] if positions is None else positions
        decoded = self.decoder(
            self._embed(inputs.target_ids, positions, length, deterministic),
            make_mask(inputs.target_segment_ids, "left_to_right", inputs.target_position_ids),
            encoded.hidden,
            make_cross_mask(inputs.target_segment_ids, inputs.segment_ids, is_packed=inputs.position_ids is not None),
            deterministic=deterministic,
            return_attention=return_attention,
        )
        logits = self._logits(decoded.hidden)
        return Seq2SeqOutput(logits, encoded.attention, decoded.attention, decoded.cross_attention)

    def encode(self, inputs: Seq2SeqInputs, *, deterministic: bool) -> Memory:
        """Encodes the documents for decoding."""
        return Memory(self._read(inputs, deterministic, return_attention=False).hidden, inputs.segment_ids)

    def start(self, memory: Memory, num_beams: int, length: int) -> DecoderCache:
        """Returns the initial cache for `length` steps with `num_beams` beams per row of the memory."""
        return self.decoder.start(memory.hidden, make_memory_mask(memory.segments), num_beams, length)

    def step(
        self, tokens: Int[Array, "B K"], cache: DecoderCache, beams: Beams
    ) -> tuple[Float32[Array, "B K V"], DecoderCache]:
        """Returns the logits of the word after each beam's history, and the new cache; see `EncoderDecoder.step`."""
        positions = jnp.broadcast_to(beams.index, tokens.shape)
        x = self._embed(tokens, positions, beams.lineage.shape[-1], deterministic=True)
        hidden, cache = self.decoder.step(x, cache, beams)
        return self._logits(hidden), cache

    def _read(self, inputs: Seq2SeqInputs, deterministic: bool, return_attention: bool) -> BertOutput:
        types = jnp.zeros_like(inputs.input_ids) if inputs.token_type_ids is None else inputs.token_type_ids
        source = BertInputs(inputs.input_ids, types, inputs.segment_ids, inputs.position_ids)
        output: BertOutput = self.bert(source, deterministic=deterministic, return_attention=return_attention)
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
    """Returns the parameters with BERT's word embeddings copied to the decoder, as PreSumm's `-use_bert_emb`."""
    table = params["bert"]["embeddings"]["word_embeddings"]
    return {**params, "target_embeddings": jnp.array(table)}  # a copy, because updates donate their buffers


def _decoder_config(config: BertConfig, head: BertSumAbsConfig) -> TransformerConfig:
    """The options of PreSumm's `TransformerDecoder`."""
    check_value(config.hidden_size % 2 == 0, "hidden_size", config.hidden_size, "an even number")
    check_value(config.word_size == config.hidden_size, "embedding_size", config.embedding_size, "0 with a decoder")
    sizes = head.decoder_layers, head.decoder_heads, head.decoder_intermediate
    return presumm_layers(config, "decoder", *sizes, head.decoder_dropout, "truncated_normal")
