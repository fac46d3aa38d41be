"""Scaled dot-product attention in chunks of rows or heads, compiled by XLA for one CPU.

Shapes: B batch, S queries, T keys, N heads, Q size of a head's queries and keys, D size of its values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bertjax.models.attention.inputs import AttentionInputs, Context
from bertjax.models.attention.mask import as_array
from bertjax.models.attention.xla import attend, xla

# The number of scores that are computed at a time: 4 MB, which fit into a CPU's caches.
_SCORES_AT_A_TIME = 2**20
_MIN_CHUNKS = 4  # chunks pay off above this multiple of _SCORES_AT_A_TIME; below, recomputation costs what they save


def chunked(inputs: AttentionInputs) -> tuple[Context, None]:
    """`xla` on chunks of rows or heads, for one CPU. The backward pass recomputes the weights.

    On a CPU, recomputing the weights is faster than writing them to memory and reading them back.
    """
    query, key, value = (x.swapaxes(1, 2) for x in inputs[:3])
    bias = inputs.bias
    keys, rate = inputs.dropout or (None, 0.0)
    batch, num_heads = query.shape[:2]
    size = _pairs_at_a_time(batch, num_heads, query.shape[2] * key.shape[2])
    if size == batch * num_heads:
        return xla(inputs)[0], None
    rows, heads = -(-size // num_heads), min(size, num_heads)  # of a chunk
    allowed = as_array(inputs.mask)
    masks = allowed.reshape(-1, rows, *allowed.shape[2:])
    # A bias of each row is split like the queries. A bias of all rows is not repeated, which would take more memory.
    shared, bias = (None, bias) if bias is None or len(bias) == batch else (bias, None)

    @jax.checkpoint
    def of_chunk(
        number: Array, query: Array, key: Array, value: Array, bias: Array | None, keys: Array | None
    ) -> Array:
        def of_all_rows(x: Array) -> Array:
            x = x.reshape(-1, heads, *x.shape[-2:])
            return jnp.tile(x[number % len(x)], (rows, 1, 1))

        mask = jnp.repeat(masks[number * size // (rows * num_heads)], heads, axis=0)
        bias = bias if shared is None else of_all_rows(shared)
        relative = jax.tree.map(of_all_rows, inputs.relative)
        return attend(query, key, value, mask, bias, relative, keys, rate)[0]

    chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[2:]), (query, key, value, bias, keys))
    numbers = jnp.arange(batch * num_heads // size)
    contexts = jax.lax.map(lambda chunk: of_chunk(*chunk), (numbers, *chunks))
    return contexts.reshape(*query.shape[:3], -1).swapaxes(1, 2), None


def _pairs_at_a_time(batch: int, num_heads: int, scores: int) -> int:
    """The number of (row, head) pairs in a chunk, given `scores` per pair: heads of one row, or whole rows.

    >>> _pairs_at_a_time(8, 12, 512 * 512), _pairs_at_a_time(64, 12, 128 * 128), _pairs_at_a_time(8, 12, 128 * 128)
    (4, 48, 96)
    """
    if batch * num_heads * scores <= _MIN_CHUNKS * _SCORES_AT_A_TIME:
        return batch * num_heads
    most = max(1, _SCORES_AT_A_TIME // scores)
    if most < num_heads:
        return _largest_divisor(num_heads, most)
    return num_heads * _largest_divisor(batch, most // num_heads)


def _largest_divisor(number: int, most: int) -> int:
    return next(divisor for divisor in range(min(number, most), 0, -1) if number % divisor == 0)
