"""Rotary positions (Su et al. 2021): scores depend on the difference of two tokens' positions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.named_scope("rotary")
def rotate(x: Float[Array, "B T N Q"], positions: Int[Array, "B T"], base: float) -> Float[Array, "B T N Q"]:
    """Rotates queries or keys by angles that are proportional to their positions.

    Elements i and Q/2 + i form a plane ("half-split", as in GPT-NeoX and ModernBERT), which position p turns by
    p / base^(2i / Q). Angles and products are float32.

    Args:
      x: the queries or keys; Q is even.
      positions: the position of each token.
      base: the base of the wavelengths.
    """
    half = x.shape[-1] // 2
    frequencies = base ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angles = (positions[..., None].astype(jnp.float32) * frequencies)[:, :, None]
    sin = jnp.sin(angles)
    cos = jnp.cos(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
