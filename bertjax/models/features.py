"""Vectors taken from an encoder's layers: for each token (Devlin et al. 2019, section 5.3), or one for each row.

Shapes: B batch, S length, H hidden size, L layers, K chosen layers, U units.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, Int

from bertjax.errors import UserError, choice
from bertjax.models.bert import Bert, BertConfig

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


class BertFeatures(nn.Module):
    """One vector for each token from some layers of BERT, without dropout.

    Parameters: `bert`, without a pooler; `mix` if `mixing` is "weighted".
    """

    config: BertConfig
    layers: tuple[int, ...]  # of `BertOutput.layers`: 0 is the embeddings, -1 the last layer
    mixing: str  # see `LayerMix`

    @nn.compact
    def __call__(
        self, input_ids: Int[Array, "B S"], token_type_ids: Int[Array, "B S"], segment_ids: Int[Array, "B S"]
    ) -> Float32[Array, "B S F"]:
        """Returns the vectors, those of padding too."""
        check_layers(self.layers, self.config.num_layers, "model.layers")
        output = Bert(self.config, use_pooler=False, name="bert")(
            input_ids, token_type_ids, segment_ids, deterministic=True, return_attention=False, return_layers=True
        )
        assert output.layers is not None
        return LayerMix(self.mixing, name="mix")(choose_layers(output.layers, self.layers).astype(jnp.float32))


def check_layers(chosen: Sequence[int], num_layers: int, key: str) -> None:
    """Raises UserError about a config key unless some layers, each once, are chosen of what `BertOutput.layers` has."""
    places = {layer % (num_layers + 1) for layer in chosen if -num_layers - 1 <= layer <= num_layers}
    if not chosen or len(places) < len(chosen):
        raise UserError(
            f"config key {key}",
            got=tuple(chosen),
            expected=f"one or more of 0 (the embeddings) to {num_layers}, or -{num_layers + 1} to -1, each once",
            fix=f"for example {tuple(range(-min(4, num_layers), 0))}, the last ones",
        )


def pool_spans(
    hidden: Float[Array, "B S F"], starts: Int[Array, "B U"], lengths: Int[Array, "B U"]
) -> Float[Array, "B U F"]:
    """The mean of the tokens of each unit, such as a word: `lengths` of them from `starts` on; 0 where that is none."""
    places = jnp.arange(hidden.shape[1])
    inside = (starts[..., None] <= places) & (places < (starts + lengths)[..., None])
    weights = inside / jnp.maximum(lengths, 1)[..., None]
    return jnp.einsum("BUS,BSF->BUF", weights, hidden.astype(jnp.float32), precision="highest")


def pool(hidden: Float[Array, "B S H"], segment_ids: Int[Array, "B S"], pooling: str) -> Float[Array, "B H"]:
    """One float32 vector for each row, as sentence-transformers makes it; from a row of padding alone it is finite.

    Args:
      hidden: a vector for each token.
      segment_ids: 0 at padding, which does not count.
      pooling: "cls", the first token's; "mean" over the tokens, [CLS] and [SEP] among them; or their "max".
    """
    choice(pooling, POOLINGS, "sentence_pooling")
    hidden, real = hidden.astype(jnp.float32), (segment_ids != 0)[..., None]
    if pooling == "cls":
        return hidden[:, 0]
    count = jnp.sum(real, axis=1)
    if pooling == "mean":
        return jnp.sum(jnp.where(real, hidden, 0), axis=1) / jnp.maximum(count, 1)
    return jnp.where(count > 0, jnp.max(jnp.where(real, hidden, -jnp.inf), axis=1), 0)
