"""The Transformer's decoder (Vaswani et al. 2017, section 3.1): over whole targets, and token by token.

Shapes: B batch, T target length, M memory length, H hidden size, N heads, D head size, L layers, K beams.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bertjax.models.dot_product import Mask, Tokens
from bertjax.models.encoder import run_layers, stacked_init
from bertjax.models.transformer import LayerCache, TransformerConfig, TransformerLayer, layer_norm


class Beams(NamedTuple):
    """The histories of K hypotheses for each of B rows, at one step of a search over at most T steps."""

    index: Array  # type: ignore[assignment]  # [] int: the step, from 0: how many tokens were fed before
    parents: Array  # [B, K] int: the beam of the previous step that each one extends; its own number at step 0
    lineage: Array  # [B, K, T] int: for each step up to this one, the beam in whose place its token was fed


class DecoderOutput(NamedTuple):
    """What `Decoder` returns."""

    hidden: Array  # [B, T, H]
    attention: Array | None  # [L, B, N, T, T] float32, or None if not asked for
    cross_attention: Array | None  # [L, B, N, T, M] float32, or None if not asked for


class DecoderCache(NamedTuple):
    """What a decoder keeps from step to step."""

    params: tuple[Any, ...]  # each layer's: cut out of the stack once, not in every step
    layers: tuple[LayerCache, ...]
    memory_mask: Mask  # [B, 1, 1, M]: where beams may attend to the memory


class Decoder(nn.Module):
    """A stack of Transformer layers that also attend to a memory.

    Parameters: as `Encoder`'s, with `cross_attention` and `cross_attention_norm` in `layers`.

    The K beams of a row are K queries of one row. Keys and values of step t and beam k lie at place t K + k, and a beam
    attends to those of its own history: so beams change places without moving anything.
    """

    config: TransformerConfig
    num_layers: int

    def setup(self) -> None:
        """Makes the parameters."""
        self.layers = self.param("layers", stacked_init(self._layer(self.config), self.num_layers))
        if self.config.norm == "pre":
            self.final_norm = layer_norm(self.config)

    def __call__(
        self,
        x: Float[Array, "B T H"],
        mask: Mask,
        memory: Float[Array, "B M H"],
        memory_mask: Mask,
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> DecoderOutput:
        """Returns the last layer's output, and all attention weights if asked for; arguments as the layer's."""
        key = self.make_rng("dropout") if self.has_rng("dropout") and not deterministic else None
        y, weights, _ = run_layers(
            self._layer(self.config),
            self.layers,
            x,
            (mask, memory, memory_mask),
            key,
            return_layers=False,
            deterministic=deterministic,
            return_attention=return_attention,
        )
        return DecoderOutput(self._normalized(y), weights.own, weights.cross)

    def start(self, memory: Float[Array, "B M H"], memory_mask: Mask, num_beams: int, length: int) -> DecoderCache:
        """Returns the cache before the first of `length` steps."""
        layer, places = self._layer(self._config_of_steps()), length * num_beams
        each = tuple(jax.tree.map(lambda leaf, i=i: leaf[i], self.layers) for i in range(self.num_layers))
        caches: Any = [layer.apply({"params": params}, memory, places, method="start") for params in each]
        # Without the barrier the compiler moves slices and transpositions, cheap in its eyes, into the loop over steps.
        return jax.lax.optimization_barrier(DecoderCache(each, tuple(caches), memory_mask))

    def step(
        self, x: Float[Array, "B K H"], cache: DecoderCache, beams: Beams
    ) -> tuple[Float[Array, "B K H"], DecoderCache]:
        """Returns the last layer's output for one token of each beam, and the cache with these tokens."""
        num_beams = x.shape[1]
        layer, mask = self._layer(self._config_of_steps()), _history(beams)
        # Unrolled whatever the config says: a loop over the layers would copy each one's cache.
        caches: list[Any] = []
        for params, old in zip(cache.params, cache.layers, strict=True):
            place = beams.index * num_beams
            x, new = layer.apply({"params": params}, x, old, place, mask, cache.memory_mask, method="step")
            caches.append(new)
        return self._normalized(x), cache._replace(layers=tuple(caches))

    def _config_of_steps(self) -> TransformerConfig:
        """Flash attention has nothing to gain from a few queries."""
        return dataclasses.replace(self.config, attention_backend="xla")

    def _layer(self, config: TransformerConfig) -> TransformerLayer:
        return TransformerLayer(config, cross=True, parent=None)

    def _normalized(self, y: Float[Array, "B S H"]) -> Float[Array, "B S H"]:
        return self.final_norm(y) if self.config.norm == "pre" else y


def _history(beams: Beams) -> Mask:
    """Returns which of the P places of the cache hold the history of each of the K beams."""
    rows, num_beams, length = beams.lineage.shape
    in_place = beams.lineage[..., None] == jnp.arange(num_beams)
    fed = jnp.arange(length)[:, None] <= beams.index
    allowed = (in_place & fed).reshape(rows, 1, num_beams, length * num_beams)
    ones = jnp.ones((rows, length * num_beams), jnp.int32)
    queries = Tokens(ones[:, :num_beams], jnp.broadcast_to(beams.index, (rows, num_beams)))
    return Mask(allowed, queries, Tokens(ones, jnp.arange(length * num_beams)[None] // num_beams * ones))
