"""A replacement for `jax.lax.top_k` on long rows that is several times as fast on CPU."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_BLOCK = 64


def top_k(x: Float[Array, "*n V"], k: int) -> tuple[Float[Array, "*n k"], Int[Array, "*n k"]]:
    """Returns the k largest values of each row and their indices, in descending order; equal values by index.

    All of the k largest values are in the k blocks with the largest maxima, or after the last whole block. One pass
    computes the maxima of the blocks, and only these k blocks are searched.
    """
    num_blocks = x.shape[-1] // _BLOCK
    if num_blocks < 2 * k:
        values, places = jax.lax.top_k(x, k)
        return values, places
    rows = x.reshape(-1, x.shape[-1])
    rest_start = num_blocks * _BLOCK
    maxima = jnp.max(rows[:, :rest_start].reshape(-1, num_blocks, _BLOCK), axis=-1)
    # Sorted by index, so that the first of equal values stays first.
    blocks = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)
    places = (blocks[..., None] * _BLOCK + jnp.arange(_BLOCK)).reshape(len(rows), -1)
    rest = jnp.broadcast_to(jnp.arange(rest_start, x.shape[-1]), (len(rows), x.shape[-1] - rest_start))
    places = jnp.concatenate([places, rest], axis=-1)
    values, indices = jax.lax.top_k(jnp.take_along_axis(rows, places, axis=-1), k)
    places = jnp.take_along_axis(places, indices, axis=-1)
    return values.reshape(*x.shape[:-1], k), places.reshape(*x.shape[:-1], k)
