"""Random parameters for tests, made without compiling a model's initialization."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def random_params(init: Callable[..., Any], *args: Any, seed: int = 0, scale: float = 0.1) -> Any:
    """Returns random values with the shapes and dtypes of `init(key, *args)`.

    Scales of norms are near one; all other parameters, including biases, are near zero. `init` is only traced, because
    compiling it would take longer than most tests. `scale` is the standard deviation of the values.
    """
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        center = 1.0 if getattr(path[-1], "key", "") == "scale" else 0.0
        return (center + scale * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(init, jax.random.key(0), *args))
