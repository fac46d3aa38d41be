"""BERT that returns vectors of the texts in packed rows (Reimers and Gurevych 2019, Sentence-BERT).

Shapes: B batch, E texts of a packed row, F size of a vector.
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bertjax.models.attention.mask import Tokens
from bertjax.models.bert import Bert, BertInputs, HeadConfig
from bertjax.models.heads import DenseConfig, SentenceDense, places_of_vectors, pool_texts


class Embedder(nn.Module):
    """A vector for each text of each row.

    Parameters: `bert`, without a pooler; and, if there are maps, `dense`, see `SentenceDense`.
    """

    config: HeadConfig
    pooling: str
    dense: tuple[DenseConfig, ...]

    @nn.compact
    def __call__(self, inputs: BertInputs, *, deterministic: bool) -> Float[Array, "B E F"]:
        """Returns the vectors; meaningless ones where a row has fewer texts."""
        is_of_text = inputs.segment_ids[:, None] == 1 + jnp.arange(inputs.instance_positions.shape[1])[:, None]
        positions = Tokens.of(inputs.segment_ids, inputs.position_ids).positions
        places = places_of_vectors(is_of_text, positions, self.pooling)
        output = Bert(self.config, name="bert")(
            inputs, deterministic=deterministic, return_attention=False, output_positions=places
        )
        if places is None:
            vectors = pool_texts(output.hidden, is_of_text, positions, self.pooling)
        else:
            vectors = output.hidden.astype(jnp.float32)
        return SentenceDense(self.dense, name="dense")(vectors) if self.dense else vectors
