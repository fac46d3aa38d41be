"""A convolution of the embeddings, as in DeBERTa-v2's large models (He et al. 2021, DeBERTa).

Shapes: B batch, S length, H hidden size, K size of the kernel.
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertjax.models.layers import Dropout
from bertjax.models.transformer import ACTIVATIONS
from bertjax.models.transformer_config import TransformerConfig, dense, make_norm


class Convolution(nn.Module):
    """Adds a convolution of the embeddings, with dropout and an activation, to the first layer's output; then a norm.

    Tokens of other instances, padding and places outside the row count as zeros.

    Parameters: `dense` [K H, H] with a bias, whose rows are ordered by place; `norm`.
    """

    config: TransformerConfig
    size: int  # K; odd
    activation: str

    @nn.compact
    def __call__(
        self,
        embeddings: Float[Array, "B S H"],
        hidden: Float[Array, "B S H"],
        segment_ids: Int[Array, "B S"],
        *,
        deterministic: bool,
    ) -> Float[Array, "B S H"]:
        """Returns the sum for each token, normalized; `segment_ids` are those of `BertInputs`."""
        reach = self.size // 2
        length = segment_ids.shape[1]
        x = jnp.pad(embeddings, ((0, 0), (reach, reach), (0, 0)))
        ids = jnp.pad(segment_ids, ((0, 0), (reach, reach)))
        near = [slice(start, start + length) for start in range(self.size)]
        around = [jnp.where((ids[:, index] == segment_ids)[..., None], x[:, index], 0) for index in near]
        y = dense(self.config, self.config.hidden_size, "dense")(jnp.concatenate(around, axis=-1))
        y = ACTIVATIONS[self.activation](Dropout(self.config.dropout)(y, deterministic=deterministic))
        return make_norm(self.config, "norm")(hidden + y)
