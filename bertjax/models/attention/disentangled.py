"""Scores of content and relative positions (He et al. 2021, DeBERTa, section 3.1), added to those of attention.

Shapes: S queries, T keys, N heads, Q size of a head's queries and keys, R rows of the table of positions, E distances.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

_BLOCK = 128  # queries of which scores are computed at a time, so that few are of distances that no pair has


@dataclasses.dataclass(frozen=True)
class Distances:
    """Which relative positions have a row of their own in the table, and which scores they add.

    Attributes:
      rows: R, the rows of the table, half of them for keys after their query; even.
      reach: the smallest distance that has the last row of its side. If R is 2 `reach`, each smaller distance has its
        own row. Otherwise those below R / 4 have, and the others share rows by their logarithm.
      terms: "content_to_position", queries times the keys of positions; "position_to_content", queries of positions
        times keys; or "both".
    """

    rows: int
    reach: int
    terms: str

    @property
    def scale(self) -> float:
        """The factor of the scores, which keeps the variance of their sum."""
        return (3 if self.terms == "both" else 2) ** -0.5

    def rows_of(self, steps: Int[np.ndarray, " E"]) -> Int[np.ndarray, " E"]:
        """Returns the row of each distance: the position of a query minus that of a key.

        >>> Distances(16, 16, "both").rows_of(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 99, -1, -15, -99]))
        array([ 8,  9, 10, 11, 12, 13, 13, 14, 14, 15, 15,  7,  1,  0])
        """
        half = self.rows // 2
        sizes = np.abs(steps).astype(np.float32)
        if half < self.reach:
            near = half // 2
            logs = np.log(np.maximum(sizes, near) / np.float32(near)) / np.log(np.float32((self.reach - 1) / near))
            sizes = np.where(sizes <= near, sizes, np.ceil(logs * (near - 1)) + near)
        return np.clip(half + np.sign(steps) * sizes, 0, self.rows - 1).astype(int)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Positions:
    """The keys and queries of relative positions.

    Attributes:
      key: [*heads, R, Q], or None without the content-to-position scores.
      query: [*heads, R, Q], or None without the position-to-content scores.
      distances: the relative position of each row.
    """

    key: Any  # an array, or what JAX puts in its place
    query: Any
    distances: Distances = dataclasses.field(metadata={"static": True})


def scores(
    query: Float[Array, "*pairs S Q"], key: Float[Array, "*pairs T Q"], positions: Positions
) -> Float[Array, "*pairs S T"]:
    """Returns the scores of query i and key j by their distance i - j, for each (row, head) pair.

    Distances are those in the row. Tokens of the same instance of a packed row have the same distance in the instance.
    """
    size = query.shape[-2]
    others = key.shape[-2]
    scale = query.shape[-1] ** -0.5
    total = jnp.zeros((), query.dtype)
    if positions.key is not None:
        rows = positions.distances.rows_of(np.arange(size - 1, -others - 1, -1))
        total = _by_distance(query, (positions.key * scale)[..., rows, :])
    if positions.query is not None:
        rows = positions.distances.rows_of(np.arange(1 - others, size + 1))
        total += _by_distance(key, (positions.query * scale)[..., rows, :]).swapaxes(-1, -2)
    return total


def _by_distance(x: Float[Array, "*pairs S Q"], table: Float[Array, "*heads E Q"]) -> Float[Array, "*pairs S T"]:
    """The product of each x_i and row j - i + S - 1 of the table, for j below T = E - S."""
    length = x.shape[-2]
    others = table.shape[-2] - x.shape[-2]
    blocks = []
    for start in range(0, length, _BLOCK):
        block = x[..., start : start + _BLOCK, :]
        first = length - start - block.shape[-2]
        near = table[..., first : first + block.shape[-2] + others, :]
        blocks.append(_shifted(jnp.einsum("...SQ,...EQ->...SE", block, near), others))
    return jnp.concatenate(blocks, axis=-2)


def _shifted(x: Float[Array, "*pairs S E"], width: int) -> Float[Array, "*pairs S {width}"]:
    """Element j + S - 1 - i of each row i, without a gather (Dai et al. 2019, appendix B)."""
    *pairs, length, size = x.shape
    flat = x.reshape(*pairs, -1)[..., length - 1 : length - 1 + length * (size - 1)]
    return flat.reshape(*pairs, length, size - 1)[..., :width]
