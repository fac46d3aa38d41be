"""Attention of local layers (Beltagy et al. 2020, section 3.1) by blocks of queries, without scores of far keys.

Shapes: B batch, S queries and keys, N heads, D head size, Q size of a head's queries and keys. Rows are split into n
blocks of C tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models.dot_product import Dropout, Mask, Tokens, allowed

_MIN_BLOCK = 64  # smaller blocks make slow matrix products


def saves_time(mask: Mask, queries: int, keys: int) -> bool:
    """Whether a block of queries and its keys, from three blocks, make fewer scores than whole rows."""
    return mask.is_in_order and 0 < 3 * _size(mask.window) < keys == queries


def in_blocks(
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B S N Q"],
    value: Float[Array, "B S N D"],
    mask: Mask,
    dropout: Dropout | None,
) -> tuple[Array, Array, Array, Mask, Dropout | None]:
    """Returns arguments of attention in which each block is a row of C queries and 3 C keys.

    A query has the keys of its own block and of the two neighboring ones. `joined` inverts it for the result. Dropout
    has other draws than for whole rows.
    """
    assert mask.queries is not None and mask.keys is not None
    size = _size(mask.window)
    queries, keys = (Tokens(*(_padded(ids, size) for ids in tokens)) for tokens in (mask.queries, mask.keys))
    of_queries = Tokens(*(_own(ids, size) for ids in queries))
    of_keys = Tokens(*(_near(ids, size) for ids in keys))
    query, key, value = (_padded(x, size) for x in (query, key, value))
    if dropout is not None:
        blocks = jnp.arange(query.shape[1] // size)
        fold = jnp.vectorize(jax.random.fold_in, signature="(),()->()")
        folded = fold(dropout.keys[:, None], blocks[:, None])
        dropout = dropout._replace(keys=folded.reshape(-1, folded.shape[-1]))
    rows = Mask(allowed(of_queries, of_keys, mask.direction), of_queries, of_keys).within(mask.window)
    return _own(query, size), _near(key, size), _near(value, size), rows, dropout


def joined(blocks: Float[Array, "rows C N D"], batch: int, length: int) -> Float[Array, "{batch} {length} N D"]:
    """Returns the rows of blocks, without the padding that filled the last block."""
    return blocks.reshape(batch, -1, *blocks.shape[2:])[:, :length]


def _size(window: int) -> int:
    return max(window, _MIN_BLOCK) if window else 0


def _padded(x: Any, size: int) -> Any:
    """`x` [B, S, ...] with zeros up to a multiple of `size`."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % size), *((0, 0),) * (x.ndim - 2)))


def _own(x: Any, size: int) -> Any:
    """The blocks [B n, C, ...] of [B, n C, ...]."""
    return x.reshape(-1, size, *x.shape[2:])


def _near(x: Any, size: int) -> Any:
    """Each block with its neighbors [B n, 3 C, ...], with zeros beyond the ends of a row."""
    blocks = x.reshape(x.shape[0], -1, size, *x.shape[2:])
    blocks = jnp.pad(blocks, ((0, 0), (1, 1), *((0, 0),) * (blocks.ndim - 2)))
    near = jnp.concatenate([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], axis=2)
    return near.reshape(-1, 3 * size, *x.shape[2:])
