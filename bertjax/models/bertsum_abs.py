"""BERTSUMABS (Liu and Lapata 2019, section 4): abstractive summaries by a Transformer decoder on top of BERT.

With a small BERT at its random initialization, this is the paper's TransformerAbs.

Shapes: H hidden size, V vocabulary, P positions.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bertjax.config import Constrained, DropoutRate, Size
from bertjax.models.bert import Bert, BertConfig, BertInputs, BertOutput
from bertjax.models.bertsum import presumm_layers
from bertjax.models.decoder import Decoder
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import Seq2Seq, Seq2SeqInputs
from bertjax.models.layers import Dropout
from bertjax.models.transformer_config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class BertSumAbsConfig(Constrained, prefix="model"):
    """Options of the decoder on top of BERT. Hidden size and vocabulary are BERT's.

    Attributes:
      decoder_layers: layers of the decoder.
      decoder_heads: attention heads of the decoder.
      decoder_intermediate: feed-forward size of the decoder.
      decoder_dropout: dropout of the decoder's embeddings, attention weights, activations and sub-layer outputs.

    Raises:
      UserError: if a value is out of range.
    """

    decoder_layers: Size
    decoder_heads: Size
    decoder_intermediate: Size
    decoder_dropout: DropoutRate


class BertSumAbs(Seq2Seq):
    """BERT as encoder, a pre-norm decoder, and tied output embeddings, as in the code of PreSumm.

    Parameters: `bert`, without a pooler; `target_embeddings` [V, H], of the decoder's input and output; `decoder`;
    `bias` [V]. Inputs also have the document's token types, which alternate between 0 and 1, sentence by sentence.
    """

    config: BertConfig
    head: BertSumAbsConfig

    def setup(self) -> None:
        """Makes the submodules. Raises UserError if the decoder does not fit BERT's hidden size."""
        config = self.config
        self.bert = Bert(config)
        # PreSumm first initializes this table by N(0, 0.02), then as part of the output layer, which shares it.
        init = nn.initializers.xavier_uniform()
        shape = (config.vocab_size, config.hidden_size)
        self.target_words = self.param("target_embeddings", init, shape)
        self.target_norm = None
        self.target_bias = None
        self.scale = config.hidden_size**0.5
        self.output_scale = 1.0
        self.output = None
        self.drop = Dropout(self.head.decoder_dropout)
        self.final_drop = Dropout(0.0)
        self.decoder = Decoder(_decoder_config(config, self.head), self.head.decoder_layers)
        self.bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,))

    def _read(self, inputs: Seq2SeqInputs, deterministic: bool, return_attention: bool) -> BertOutput:
        types = jnp.zeros_like(inputs.input_ids) if inputs.token_type_ids is None else inputs.token_type_ids
        source = BertInputs(inputs.input_ids, types, inputs.segment_ids, inputs.position_ids)
        return self.bert(source, deterministic=deterministic, return_attention=return_attention)

    def _position_table(self, length: int) -> Float[Array, "P H"]:
        return jnp.asarray(sinusoids(length, self.config.hidden_size, "interleaved"))


def copy_embeddings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters with BERT's word embeddings copied to the decoder, as PreSumm's `-use_bert_emb`."""
    table = params["bert"]["embeddings"]["word_embeddings"]
    return {**params, "target_embeddings": jnp.array(table)}  # a copy, because updates donate their buffers


def _decoder_config(config: BertConfig, head: BertSumAbsConfig) -> TransformerConfig:
    """The options of PreSumm's `TransformerDecoder`."""
    config.check(config.hidden_size % 2 == 0, "hidden_size", "an even number")
    config.check(config.word_size == config.hidden_size, "embedding_size", "0 with a decoder")
    sizes = head.decoder_layers, head.decoder_heads, head.decoder_intermediate
    return presumm_layers(config, "decoder", *sizes, head.decoder_dropout, "truncated_normal")
