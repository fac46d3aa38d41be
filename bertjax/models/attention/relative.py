"""Relative positions of self-attention, which all layers share.

Shapes: S length, N heads, R buckets, H hidden size.
"""

import math

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertjax.models.embeddings import embedding_table
from bertjax.models.transformer_config import TransformerConfig, make_norm


class BucketedBias(nn.Module):
    """A bias of the scores for each head and bucket of distances, as in T5 and MPNet; see `buckets`.

    Parameters: `relative_attention_bias` [R, N].
    """

    config: TransformerConfig
    num_buckets: int
    max_distance: int
    direction: str = "both"

    def setup(self) -> None:
        """Makes the table."""
        heads = self.config.num_heads
        self.table = embedding_table(self, self.config, "relative_attention_bias", self.num_buckets, heads)

    def __call__(self, length: int) -> Float[Array, "1 N {length} {length}"]:
        """Returns the bias of each query (axis 2) and key (axis 3) of a row.

        Tokens of an instance have consecutive positions, so the bias is right for packed rows too.
        """
        steps = np.arange(2 * length)
        steps = np.where(steps < length, steps, steps - 2 * length)
        values = self._of_steps(steps)
        # Each row is the one above, shifted by one position. The gradient of indexing by all distances would be slow.
        shifted = jnp.tile(values, (1, length))[:, : length * (2 * length - 1)].reshape(-1, length, 2 * length - 1)
        return shifted[None, :, :, :length]

    def by_distance(self) -> Float[Array, "N distances"]:
        """Returns the bias of keys that are 0, 1, ... positions before their query. Later keys have the last one."""
        return self._of_steps(-np.arange(self.max_distance + 1))

    def _of_steps(self, steps: Int[np.ndarray, " n"]) -> Float[Array, "N n"]:
        return self.table[buckets(steps, self.num_buckets, self.max_distance, self.direction)].T


class PositionTable(nn.Module):
    """The embeddings of relative positions, for disentangled attention; see `disentangled.Distances`.

    Parameters: `rel_embeddings` [R, H]; `norm` if `is_normalized`.
    """

    config: TransformerConfig
    num_buckets: int
    is_normalized: bool

    @nn.compact
    def __call__(self, length: int) -> Float[Array, "R H"]:
        """Returns the whole table, for rows of any `length`."""
        del length
        table = embedding_table(self, self.config, "rel_embeddings", self.num_buckets)
        return make_norm(self.config, "norm")(table) if self.is_normalized else table


def buckets(
    steps: Int[np.ndarray, " n"], num_buckets: int, max_distance: int, direction: str = "both"
) -> Int[np.ndarray, " n"]:
    """Returns the bucket of each number of positions from a query to a key (Raffel et al. 2020, section 2.1).

    With direction "both", half of the buckets are for keys after their query; with "left_to_right", these have the
    bucket of distance 0. In each half, or among all, the first half of the buckets are single distances, and the others
    grow logarithmically. The last one has all distances from `max_distance` on, and some smaller ones.
    """
    is_causal = direction == "left_to_right"
    half = num_buckets if is_causal else num_buckets // 2
    single = half // 2
    distances = np.maximum(-steps, 0) if is_causal else np.abs(steps)
    # float32 decides the bucket of a distance at a boundary.
    growth = np.log(np.maximum(distances, single).astype(np.float32) / np.float32(single))
    growth = growth / np.float32(math.log(max_distance / single)) * np.float32(half - single)
    large = np.minimum(single + growth.astype(np.int32), half - 1)
    bucket = np.where(distances < single, distances, large)
    return bucket if is_causal else bucket + half * (steps > 0)
