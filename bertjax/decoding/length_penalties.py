"""What the log-probability of a hypothesis is divided by, so that hypotheses of different lengths compare."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.decoding.config import DecodingConfig


def length_penalty(config: DecodingConfig, lengths: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns the penalty for each length, which is monotone in it.

    - "none": 1.
    - "gnmt": ((5 + length) / 6)^alpha (Wu et al. 2016, section 7), as Vaswani et al. (2017) use it. PreSumm divides by
      it at each step; as all hypotheses of a step are equally long, that ranks them no differently than their sums do.
    - "length": length^alpha, as transformers does; 0 counts as 1.
    """
    lengths = jnp.asarray(lengths, jnp.float32)
    if config.length_penalty == "none":
        return jnp.ones_like(lengths)
    if config.length_penalty == "gnmt":
        return ((5 + lengths) / 6) ** config.alpha
    return jnp.maximum(lengths, 1) ** config.alpha
