"""Vectors taken from an encoder's layers: for each token (Devlin et al. 2019, section 5.3), or one for each row.

Shapes: B batch, S length, H hidden size, L layers, K chosen layers.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertjax.errors import choice

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


def pool(hidden: Float[Array, "B S H"], segment_ids: Int[Array, "B S"], pooling: str) -> Float[Array, "B H"]:
    """One float32 vector for each row, as sentence-transformers makes it; from a row of padding alone it is finite.

    Args:
      hidden: a vector for each token.
      segment_ids: 0 at padding, which does not count.
      pooling: "cls", the first token's; "mean" over the tokens, [CLS] and [SEP] among them; or their "max".
    """
    choice(pooling, POOLINGS, "model.pooling")
    hidden, real = hidden.astype(jnp.float32), (segment_ids != 0)[..., None]
    if pooling == "cls":
        return hidden[:, 0]
    count = jnp.sum(real, axis=1)
    if pooling == "mean":
        return jnp.sum(jnp.where(real, hidden, 0), axis=1) / jnp.maximum(count, 1)
    return jnp.where(count > 0, jnp.max(jnp.where(real, hidden, -jnp.inf), axis=1), 0)
