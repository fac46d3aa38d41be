"""Length penalties: divisors that make the log-probabilities of hypotheses of different lengths comparable."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.decoding.config import DecodingConfig


def length_penalty(config: DecodingConfig, lengths: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns the penalty for each length. The penalty is monotone in the length.

    - "none": 1.
    - "gnmt": ((5 + length) / 6)^alpha (Wu et al. 2016, section 7), as used by Vaswani et al. (2017). PreSumm divides by
      it at each step. This does not change the ranking within a step, where all hypotheses have the same length.
    - "length": length^alpha, as in transformers; a length of 0 counts as 1.
    """
    lengths = jnp.asarray(lengths, jnp.float32)
    if config.length_penalty == "none":
        return jnp.ones_like(lengths)
    if config.length_penalty == "gnmt":
        return ((5 + lengths) / 6) ** config.alpha
    return jnp.maximum(lengths, 1) ** config.alpha
