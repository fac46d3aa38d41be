"""Dropout (Srivastava et al. 2014)."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

_LEVELS = 2**16


class Dropout(nn.Module):
    """Sets a fraction `rate` of the elements to 0 and scales the others up, so that the mean stays.

    An element takes 16 random bits, half of what `flax.linen.Dropout` draws: drawing is most of dropout's cost. The
    rate is met to 2**-17, and the scale is that of the rate in effect.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*rows H"], *, deterministic: bool) -> Float[Array, "*rows H"]:
        """Drops elements by the key of the collection "dropout", unless `deterministic`."""
        if deterministic or not self.rate:
            return x
        return drop(x, self.make_rng("dropout"), self.rate)


def drop(x: Float[Array, "*rows H"], key: jax.Array, rate: float) -> Float[Array, "*rows H"]:
    """Drops elements at a rate above 0; see `Dropout`."""
    kept_levels = min(round((1 - rate) * _LEVELS), _LEVELS - 1)
    *rows, size = x.shape
    words = jax.random.bits(key, (*rows, -(-size // 2)), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*rows, -1)[..., :size]
    return jnp.where(halves < kept_levels, x * (_LEVELS / kept_levels), 0).astype(x.dtype)
