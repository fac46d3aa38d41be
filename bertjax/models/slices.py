"""The rows of a batch in slices, one after another, for losses that couple all rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

Tree = Any


def in_slices(function: Callable[[Tree, jax.Array], Tree], rows: Tree, count: int) -> Tree:
    """Returns `function` of all rows, on every device. Only one slice of the rows is in memory at a time.

    A loss of the results has the same gradient as without slices. Differentiation computes each slice again, as with
    cached gradients (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup").

    Args:
      function: takes rows and their numbers in the batch, and returns a tree of arrays with rows on axis 0.
      rows: a tree of arrays with rows on axis 0. Each slice has rows of every device.
      count: the number of slices, which divides the number of rows.
    """
    numbers = jnp.arange(len(jax.tree.leaves(rows)[0]))
    if count == 1:
        return _gathered(function(rows, numbers))
    slices = jax.tree.map(lambda x: x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1), (rows, numbers))
    results = jax.lax.map(lambda part: jax.checkpoint(function)(*part), slices)
    return _gathered(jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), results))


def _gathered(results: Tree) -> Tree:
    if jax.sharding.get_abstract_mesh().empty:
        return results
    return jax.lax.with_sharding_constraint(results, PartitionSpec())
