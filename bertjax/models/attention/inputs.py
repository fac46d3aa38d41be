"""The arguments and results that all implementations of scaled dot-product attention share.

Shapes: B batch, S queries, T keys, N heads, Q size of a head's queries and keys, D size of its values.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from bertjax.models.attention.disentangled import Positions
from bertjax.models.attention.mask import Mask

# Finite, so that a row with no key to attend to gets uniform weights and finite gradients instead of NaN.
MASKED_SCORE = -1e30
# The name of the results that rematerialization stores, because they take longest to recompute.
RESIDUALS = "attention"

Context = Float[Array, "B S N D"]
Weights = Float[Array, "B N S T"]


class Dropout(NamedTuple):
    """Dropout on the attention weights."""

    keys: Key[Array, "B N"]  # one for each row and head, so that draws do not depend on batching
    rate: float


class AttentionInputs(NamedTuple):
    """The arguments of every backend, which decide who can compute the attention."""

    query: Float[Array, "B S N Q"]
    key: Float[Array, "B T N Q"]
    value: Float[Array, "B T N D"]
    mask: Mask | Bool[Array, "B 1 #S T"]  # which query may attend to which key
    dropout: Dropout | None = None  # on the weights
    bias: Float[Array, "#B N S T"] | None = None  # added to the scaled scores; one row if it is the same for all rows
    return_weights: bool = False  # whether the weights are needed; backends that never hold all weights return None
    relative: Positions | None = None  # [N, R, Q], whose scores are added like those of a bias

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.query.shape[1], self.key.shape[1]


def padded(x: Array, multiple: int) -> Array:
    """Returns an array with zeros at the end of axis 1, up to a multiple of this length."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % multiple), *((0, 0),) * (x.ndim - 2)))
