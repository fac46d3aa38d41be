"""Positions as sinusoids (Vaswani et al. 2017, section 3.5)."""

import numpy as np
from jaxtyping import Float


def sinusoids(length: int, size: int, layout: str) -> Float[np.ndarray, "length size"]:
    """Returns what stands for the positions 0, 1, ...

    Args:
      length: how many positions.
      size: of a vector; even.
      layout: "interleaved", as the paper has it: sin(position / 10000^(2i / size)) and the cosine of the same at 2i and
        2i + 1. "deinterleaved", as Marian in transformers has it: the same numbers, all sines before all cosines.
        "half_split", as tensor2tensor, fairseq and Flax's wmt have it: all sines and then all cosines, of
        position / 10000^(i / (size / 2 - 1)).
    """
    half = size // 2
    exponents = np.arange(half) / (max(half - 1, 1) if layout == "half_split" else half)
    angles = np.arange(length)[:, None] / 10_000.0**exponents
    pair = np.sin(angles), np.cos(angles)
    in_turns = layout == "interleaved"
    joined = np.stack(pair, axis=-1).reshape(length, size) if in_turns else np.concatenate(pair, axis=-1)
    return joined.astype(np.float32)
