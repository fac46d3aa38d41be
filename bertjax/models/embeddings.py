"""BERT's input embeddings (Devlin et al. 2019, section 3, figure 2).

Shapes: B batch, S length, V vocabulary, W size of the embeddings, H hidden size.
"""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertjax.errors import UserError
from bertjax.models.layers import Dense, Dropout
from bertjax.models.transformer_config import TransformerConfig, kernel_init, make_norm

_SINUSOID_SCALE = 0.02


class BertEmbeddings(nn.Module):
    """Sum of word, position and token type embeddings, normalized unless `is_normalized` is False, with dropout.

    Embeddings of another size than H are projected to H, as in ALBERT (Lan et al. 2020) and ELECTRA.

    Parameters: the tables `word_embeddings` [V, W], `position_embeddings` [max_positions, W] if `positions` is
    "learned" and `token_type_embeddings` [type_vocab_size, W] if there are any, `norm`, and `projection` [W, H] with a
    bias if W differs from H. An id outside its table gives NaN, not the embedding of another word. Sinusoids are
    multiplied by BERT's initializer range, which makes them as large in comparison with the initial word embeddings as
    in Vaswani et al. (2017).
    """

    config: TransformerConfig
    vocab_size: int
    max_positions: int
    type_vocab_size: int
    positions: str = "learned"  # "learned" or "sinusoidal"; positions of other kinds are not embedded
    is_normalized: bool = True
    size: int = 0  # W; 0 for the hidden size

    def setup(self) -> None:
        """Makes the tables. They are attributes because the masked language model shares the word embeddings."""
        config = self.config
        size = self.size or self.config.hidden_size
        self.word_embeddings = embedding_table(self, config, "word_embeddings", self.vocab_size, size)
        if self.positions == "learned":
            self.position_embeddings = embedding_table(self, config, "position_embeddings", self.max_positions, size)
        elif self.positions == "sinusoidal":
            waves = sinusoids(self.max_positions, size, "interleaved")
            self.position_embeddings = jnp.asarray(waves * _SINUSOID_SCALE)
        if self.type_vocab_size:
            self.type_embeddings = embedding_table(self, config, "token_type_embeddings", self.type_vocab_size, size)
        if self.is_normalized:
            self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        is_projected = size != config.hidden_size
        self.projection = Dense(config.hidden_size, kernel_init(config), config.dtype) if is_projected else None

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B S H"]:
        """Embeds ids, token types and positions. Without `position_ids`, positions are 0 to S - 1.

        Raises:
          UserError: if the sequence is longer than max_positions.
        """
        length = input_ids.shape[1]
        if length > self.max_positions:
            expected = f"at most model.max_positions={self.max_positions}"
            fix = "lower --config.data.seq_len or raise --config.model.max_positions"
            raise UserError("sequence length", got=length, expected=expected, fix=fix)
        x = jnp.take(self.word_embeddings, input_ids, axis=0)
        if self.type_vocab_size:
            types = jnp.zeros_like(token_type_ids) if self.type_vocab_size == 1 else token_type_ids
            x = x + jnp.take(self.type_embeddings, types, axis=0)
        if self.positions in ("learned", "sinusoidal"):
            positions = self.position_embeddings
            x = x + (positions[:length] if position_ids is None else jnp.take(positions, position_ids, axis=0))
        x = self.dropout(self.norm(x) if self.is_normalized else x, deterministic=deterministic)
        return x if self.projection is None else self.projection(x)


def embedding_table(
    module: nn.Module, config: TransformerConfig, name: str, rows: int, size: int = 0
) -> Float[Array, "{rows} W"]:
    """Adds a table of embeddings of `size`, by default H, to a module's parameters, initialized as in BERT."""
    init = nn.initializers.truncated_normal(config.initializer_range)
    return jnp.asarray(module.param(name, init, (rows, size or config.hidden_size)))


def sinusoids(length: int, size: int, layout: str) -> Float[np.ndarray, "length size"]:
    """Returns the sinusoidal encodings of positions 0 to length - 1 (Vaswani et al. 2017, section 3.5).

    Args:
      length: the number of positions.
      size: the size of a vector; even.
      layout: "interleaved", as in the paper: sin(position / 10000^(2i / size)) at index 2i and its cosine at 2i + 1.
        "deinterleaved", as Marian in transformers: the same values, all sines before all cosines. "half_split", as
        tensor2tensor, fairseq and Flax's wmt example: all sines and then all cosines of
        position / 10000^(i / (size / 2 - 1)).
    """
    half = size // 2
    exponents = np.arange(half) / (max(half - 1, 1) if layout == "half_split" else half)
    angles = np.arange(length)[:, None] / 10_000.0**exponents
    pair = np.sin(angles), np.cos(angles)
    is_interleaved = layout == "interleaved"
    joined = np.stack(pair, axis=-1).reshape(length, size) if is_interleaved else np.concatenate(pair, axis=-1)
    return joined.astype(np.float32)
