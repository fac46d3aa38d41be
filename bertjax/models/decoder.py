"""The Transformer decoder (Vaswani et al. 2017, section 3.1), for whole targets and for one token at a time.

Shapes: B batch, T target length, M memory length, H hidden size, N heads, D head size, L layers, K beams.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertjax.models.attention.mask import Mask
from bertjax.models.stack import Stack, dropout_key, stacked_init
from bertjax.models.transformer import LayerCache, TransformerLayer
from bertjax.models.transformer_config import LayerKind, TransformerConfig, make_norm


class Beams(NamedTuple):
    """The histories of K beams for each of B rows, at one step of a search of at most T steps."""

    index: Array  # type: ignore[assignment]  # [] int: the step, from 0; equals the number of tokens fed before
    parents: Array  # [B, K] int: the beam of the previous step that each beam extends; its own number at step 0
    lineage: Array  # [B, K, T] int: for each step up to this one, the beam slot where the token of the history was fed


class DecoderOutput(NamedTuple):
    """The output of `Decoder`."""

    hidden: Array  # [B, T, H]
    attention: Array | None  # [L, B, N, T, T] float32; None if not requested
    cross_attention: Array | None  # [L, B, N, T, M] float32; None if not requested


class DecoderCache(NamedTuple):
    """The state of a decoder between steps."""

    params: tuple[Any, ...]  # the parameters of each layer, sliced from the stack once instead of in every step
    layers: tuple[LayerCache, ...]
    memory_mask: Array  # [B, 1, 1, M] bool: which positions of the memory the beams may attend to
    bias: Array | None = None  # [N, distances]: added to the scores of self-attention; the last one is for all others


class Decoder(nn.Module):
    """A stack of Transformer layers that also attend to a memory.

    Parameters: as in `Encoder`, with `cross_attention` and `cross_attention_norm` in `layers`.

    The K beams of a row are K queries of one row. Keys and values of step t and beam k are stored at position t K + k,
    and a mask lets each beam attend only to its own history. So beams are reordered without copying the cache.
    """

    config: TransformerConfig
    num_layers: int

    def setup(self) -> None:
        """Makes the parameters."""
        self.layers = self.param("layers", stacked_init(self._layer(self.config), self.num_layers))
        if self.config.norm == "pre":
            self.final_norm = make_norm(self.config)

    def __call__(
        self,
        x: Float[Array, "B T H"],
        mask: Mask,
        memory: Float[Array, "B M H"],
        memory_mask: Mask,
        relative: Float[Array, "1 N T T"] | None = None,
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> DecoderOutput:
        """Returns the last layer's output, and the attention weights of all layers if requested.

        Args:
          x: the embeddings of the targets.
          mask: which target token may attend to which.
          memory: the encoder's output.
          memory_mask: which target token may attend to which position of the memory.
          relative: the bias of the scores of self-attention of all layers; None for none.
          deterministic: whether dropout is off.
          return_attention: whether to return the attention weights.
        """
        options = {"deterministic": deterministic, "return_attention": return_attention}
        kinds = [LayerKind()] * self.num_layers
        stack = Stack(self._layer(self.config), kinds, self.layers, return_layers=False, options=options)
        key = dropout_key(self, deterministic=deterministic)
        y, weights, _ = stack(x, (mask, memory, memory_mask, None, relative), key)
        return DecoderOutput(self._normalized(y), weights.to_sequence, weights.to_memory)

    def start(
        self,
        memory: Float[Array, "B M H"],
        memory_mask: Bool[Array, "B 1 1 M"],
        num_beams: int,
        length: int,
        bias: Float[Array, "N distances"] | None = None,
    ) -> DecoderCache:
        """Returns the initial cache for `length` steps; see `DecoderCache`."""
        layer = self._layer(self._config_of_steps())
        places = length * num_beams
        params = tuple(jax.tree.map(lambda leaf, i=i: leaf[i], self.layers) for i in range(self.num_layers))
        caches: Any = [layer.apply({"params": of_layer}, memory, places, method="start") for of_layer in params]
        # Without the barrier, the compiler moves slices and transpositions into the loop over steps.
        return jax.lax.optimization_barrier(DecoderCache(params, tuple(caches), memory_mask, bias))

    def step(
        self, x: Float[Array, "B K H"], cache: DecoderCache, beams: Beams
    ) -> tuple[Float[Array, "B K H"], DecoderCache]:
        """Returns the last layer's output for one token per beam, and the cache extended by these tokens."""
        num_beams = x.shape[1]
        length = cache.layers[0].value.shape[2] // num_beams
        layer = self._layer(self._config_of_steps())
        mask = _history(beams, length)
        relative = None if cache.bias is None else _bias_of_step(cache.bias, beams.index, length, num_beams)
        # Always unrolled: a loop over the layers would copy each layer's cache.
        caches: list[Any] = []
        for params, old in zip(cache.params, cache.layers, strict=True):
            place = beams.index * num_beams
            arguments = x, old, place, mask, cache.memory_mask, relative
            x, new = layer.apply({"params": params}, *arguments, method="step")
            caches.append(new)
        return self._normalized(x), cache._replace(layers=tuple(caches))

    def _config_of_steps(self) -> TransformerConfig:
        """The config with attention by XLA: flash attention does not pay off for a few queries."""
        return dataclasses.replace(self.config, attention_backend="xla")

    def _layer(self, config: TransformerConfig) -> TransformerLayer:
        return TransformerLayer(config, cross=True, parent=None)

    def _normalized(self, y: Float[Array, "B S H"]) -> Float[Array, "B S H"]:
        return self.final_norm(y) if self.config.norm == "pre" else y


def _bias_of_step(
    bias: Float[Array, "N distances"], index: Int[Array, ""], length: int, num_beams: int
) -> Float[Array, "1 N K TK"]:
    """Returns the bias of the K queries of a step for all keys of the cache; those of later steps are masked."""
    distances = jnp.clip(index - jnp.arange(length), 0, bias.shape[1] - 1)
    of_keys = jnp.repeat(bias[:, distances], num_beams, axis=1)
    return jnp.broadcast_to(of_keys[None, :, None], (1, len(bias), num_beams, of_keys.shape[1]))


def _history(beams: Beams, length: int) -> Bool[Array, "B 1 K TK"]:
    """Returns the mask of the cache positions of `length` steps that belong to the history of each of the K beams."""
    rows, num_beams, _ = beams.lineage.shape
    in_place = beams.lineage[..., :length, None] == jnp.arange(num_beams)
    fed = jnp.arange(length)[:, None] <= beams.index
    return (in_place & fed).reshape(rows, 1, num_beams, length * num_beams)
