"""Attention of local layers (Beltagy et al. 2020, section 3.1) by blocks of queries, without scores of far keys.

Shapes: B batch, S queries and keys, N heads, D size of a head's values. Rows are split into n blocks of C tokens.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models.attention.inputs import AttentionInputs
from bertjax.models.attention.mask import Mask

_MIN_BLOCK = 64  # smaller blocks make slow matrix products


def saves_time(inputs: AttentionInputs) -> bool:
    """Whether a block of queries and its keys, from three blocks, make fewer scores than whole rows."""
    mask = inputs.mask
    queries, keys = inputs.lengths
    return isinstance(mask, Mask) and mask.places is None and 0 < 3 * _size(mask.window) < keys == queries


def in_blocks(inputs: AttentionInputs) -> AttentionInputs:
    """Returns arguments of attention in which each block is a row of C queries and 3 C keys.

    A query has the keys of its own block and of the two neighboring ones. `joined` inverts it for the result. Dropout
    has other draws than for whole rows.
    """
    query, key, value, mask, dropout, bias = inputs[:6]
    assert isinstance(mask, Mask)
    size = _size(mask.window)
    to_blocks = functools.partial(_own, size=size)
    near = functools.partial(_near, size=size)
    queries = jax.tree.map(to_blocks, mask.tokens)
    keys = jax.tree.map(near, mask.keys)
    if dropout is not None:
        numbers = jnp.arange(-(-query.shape[1] // size))[:, None]
        folded = jnp.vectorize(jax.random.fold_in, signature="(),()->()")(dropout.keys[:, None], numbers)
        dropout = dropout._replace(keys=folded.reshape(-1, folded.shape[-1]))
    rows = dataclasses.replace(mask, tokens=queries, keys=keys)
    if bias is not None:
        bias = jnp.tile(_bias(bias, size), (len(query) // len(bias), 1, 1, 1))
    return AttentionInputs(to_blocks(query), near(key), near(value), rows, dropout, bias)


def _bias(bias: Float[Array, "B N S S"], size: int) -> Float[Array, "rows N C W"]:
    """The bias of each block's queries [B n, N, C, 3 C] for its own keys and those of the two neighboring blocks."""
    blocks = _own(bias.swapaxes(1, 2), size)
    places = _near(jnp.broadcast_to(jnp.arange(bias.shape[-1]), bias.shape[::3]), size)
    return jnp.take_along_axis(blocks, places[:, None, None], axis=-1).swapaxes(1, 2)


def joined(blocks: Float[Array, "rows C N D"], batch: int, length: int) -> Float[Array, "{batch} {length} N D"]:
    """Returns the rows of blocks, without the padding that filled the last block."""
    return blocks.reshape(batch, -1, *blocks.shape[2:])[:, :length]


def _size(window: int) -> int:
    return max(window, _MIN_BLOCK) if window else 0


def _own(x: Any, size: int) -> Any:
    """The blocks [B n, C, ...] of [B, S, ...], with zeros at the end of the last one."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size), *((0, 0),) * (x.ndim - 2)))
    return x.reshape(-1, size, *x.shape[2:])


def _near(x: Any, size: int) -> Any:
    """Each block with its two neighbors [B n, 3 C, ...], with zeros beyond the ends of a row."""
    blocks = _own(x, size).reshape(x.shape[0], -1, size, *x.shape[2:])
    blocks = jnp.pad(blocks, ((0, 0), (1, 1), *((0, 0),) * (blocks.ndim - 2)))
    near = jnp.concatenate([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], axis=2)
    return near.reshape(-1, 3 * size, *x.shape[2:])
