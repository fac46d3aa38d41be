"""Attention on NVIDIA GPUs, by cuDNN and by a kernel for what cuDNN cannot compute.

cuDNN cannot compute packed rows, local layers, attention right to left, and attention of some queries only. The kernel
for these is flash attention (Dao et al. 2022), written in Pallas and compiled by Triton. It masks by the place of each
token, a number made of its segment and its position. A query attends to the keys whose place differs from its own by at
most a reach. A block of queries skips the blocks of keys whose places are all out of reach; in the backward pass, so
does a block of keys. Queries may have any number and order.

Shapes: B batch, S queries, T keys, N heads, D head size, m blocks of queries, n blocks of keys.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton
from jaxtyping import Array, Bool, Float, Int

from bertjax import meshes
from bertjax.models.attention.inputs import MASKED_SCORE, RESIDUALS, AttentionInputs, Context, padded
from bertjax.models.attention.mask import Mask, Tokens
from bertjax.models.attention.tpu import product

SIZES = (16, 32, 64, 128)  # of heads: Triton's arrays have powers of two elements, and its products at least 16
MAX_LENGTH = 2**15 - 1  # 32 bits hold the places of shorter rows
_BLOCK_BYTES = 128  # 64 tokens in bfloat16, 32 in float32: larger blocks do not fit into the registers
_FORWARD, _BACKWARD = (2, 3), (7, 2)  # matrix products, and blocks that are loaded ahead
_PADDING = jnp.iinfo(jnp.int32).max  # its place
_LOG2_E = math.log2(math.e)  # the kernels compute powers of 2

_Keys = Float[Array, "B T N D"]


class _Reach(NamedTuple):
    """How far the place of a key may be from that of its query, and the size of blocks."""

    before: int
    after: int
    block: int


class _Places(NamedTuple):
    """The places of the tokens of each row, and which blocks meet."""

    queries: Array  # [B, S]
    keys: Array  # [B, T]
    key_ranges: Array  # [B, m, 2]: the first block of keys for each block of queries, and the one after the last
    query_ranges: Array  # [B, n, 2]: likewise, blocks of queries for each block of keys


def cudnn(inputs: AttentionInputs) -> tuple[Context, None]:
    """cuDNN's flash attention, for rows of one instance.

    The mask is a number of keys per row, because cuDNN would store a mask by query and key, and compute its gradient.
    Lengths are padded to even numbers, which training needs.
    """
    mask = inputs.mask
    length = inputs.query.shape[1]
    query, key, value = (padded(x, 2) for x in inputs[:3])
    assert inputs.dropout is None and inputs.bias is None and isinstance(mask, Mask)
    # The kernel has no result for a row without keys.
    lengths = jnp.maximum(jnp.sum(mask.keys.segments != 0, axis=1, dtype=jnp.int32), 1)
    context = jax.nn.dot_product_attention(
        query,
        key,
        value,
        key_value_seq_lengths=lengths,
        is_causal=mask.direction == "left_to_right",
        implementation="cudnn",
    )
    return context[:, :length], None


def triton(inputs: AttentionInputs) -> tuple[Context, None]:
    """Attention by the kernels of this module, interpreted on a CPU.

    Padding attends to padding in some blocks, or to nothing with the result 0. XLA does not partition the kernels, so
    each device calls them on its own rows and heads.
    """
    query, key, value, mask = inputs[:4]
    assert inputs.dropout is None and inputs.bias is None and isinstance(mask, Mask)
    farthest = min(mask.window or MAX_LENGTH, MAX_LENGTH)
    before, after = (0 if mask.direction == other else farthest for other in ("right_to_left", "left_to_right"))
    block = min(_BLOCK_BYTES // query.dtype.itemsize, max(min(SIZES), pl.next_power_of_2(max(inputs.lengths))))
    attend = meshes.on_each_device(
        functools.partial(_of_device, _Reach(before, after, block)),
        (meshes.OF_WIDTH,) * 3 + (meshes.OF_ROWS,) * 2,
        meshes.OF_WIDTH,
    )
    return attend(query, key, value, mask.queries, mask.keys), None


def _of_device(reach: _Reach, query: Context, key: _Keys, value: _Keys, queries: Tokens, keys: Tokens) -> Context:
    whole_blocks = functools.partial(padded, multiple=reach.block)
    *arrays, queries, keys = jax.tree.map(whole_blocks, (query, key, value, queries, keys))
    return _attend(reach, *arrays, _places(reach, queries, keys))[:, : query.shape[1]]


def _places(reach: _Reach, *tokens: Tokens) -> _Places:
    # Places in different segments differ by more than `MAX_LENGTH`, so they are out of reach.
    places = [jnp.where(x.segments == 0, _PADDING, x.segments * (2 * MAX_LENGTH + 2) + x.positions) for x in tokens]
    blocks = [x.reshape(len(x), -1, reach.block) for x in places]
    first = [x.min(-1) for x in blocks]
    last = [jnp.where(x == _PADDING, 0, x).max(-1) for x in blocks]
    is_near = last[1][:, None] >= first[0][..., None] - reach.before
    is_near &= first[1][:, None] <= last[0][..., None] + reach.after
    return _Places(places[0], places[1], _ranges(is_near), _ranges(is_near.swapaxes(1, 2)))


def _ranges(is_near: Bool[Array, "B m n"]) -> Int[Array, "B m 2"]:
    """The first block that is near, and the one after the last; n and 0 if none is."""
    numbers = jnp.arange(is_near.shape[-1], dtype=jnp.int32)
    first = jnp.where(is_near, numbers, len(numbers)).min(-1)
    end = jnp.where(is_near, numbers + 1, 0).max(-1)
    return jnp.stack([first, end], axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(reach: _Reach, query: Context, key: _Keys, value: _Keys, places: _Places) -> Context:
    return _forward(reach, query, key, value, places)[0]


def _forward(reach: _Reach, query: Context, key: _Keys, value: _Keys, places: _Places) -> tuple[Context, Any]:
    """The result, and what `_backward` needs."""
    arguments = (query, key, value, *places)
    blocks = places.key_ranges.shape[1]
    statistics = jax.ShapeDtypeStruct((len(query), query.shape[2], query.shape[1]), jnp.float32)
    results = _call(_forward_kernel, reach, blocks, _FORWARD, arguments, (query, statistics))
    context, statistics = (checkpoint_name(x, RESIDUALS) for x in results)
    return context, (arguments, context, statistics)


def _backward(reach: _Reach, residuals: Any, gradient: Context) -> tuple[Array | None, ...]:
    arguments, context, statistics = residuals
    blocks = max(x.shape[1] for x in arguments[-2:])
    # The mean of the weights' gradients, by which the softmax corrects them.
    means = jnp.sum(gradient.astype(jnp.float32) * context.astype(jnp.float32), axis=-1).swapaxes(1, 2)
    inputs = *arguments, gradient, statistics, means
    return *_call(_backward_kernel, reach, blocks, _BACKWARD, inputs, arguments[:3]), None


_attend.defvjp(_forward, _backward)


def _call(
    kernel: Any, reach: _Reach, blocks: int, counts: tuple[int, int], arguments: tuple[Array, ...], results: Any
) -> tuple[Array, ...]:
    """Calls a kernel for each block, head and row. Its cost is that of its matrix products and its arrays."""
    num_products, num_stages = counts
    batch, length, heads, size = arguments[0].shape
    num_warps = 4 if size <= 64 else 8  # fewer do not have the registers
    pairs = batch * heads * length * min(arguments[1].shape[1], reach.before + reach.after + reach.block)
    cost = pl.CostEstimate(
        flops=2 * num_products * pairs * size,
        transcendentals=pairs,
        bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arguments, *results)),
    )

    def of_head(x: Any) -> pl.BlockSpec:
        """One row and, except of integers, one head of [B, S, N, D] or [B, N, S]."""
        axes = (0, x.ndim // 2) if jnp.issubdtype(x.dtype, jnp.floating) else (0,)
        shape = tuple(None if axis in axes else size for axis, size in enumerate(x.shape))
        return pl.BlockSpec(shape, lambda _, head, row: (row, *(head * (axis in axes) for axis in range(1, x.ndim))))

    # Triton's calls do not keep the estimate. The plan reads the operations in the name of the scope.
    with jax.named_scope(f"flops={cost.flops}"):
        return tuple(
            pl.pallas_call(
                functools.partial(kernel, reach),
                grid=(blocks, heads, batch),
                in_specs=[*map(of_head, arguments)],
                out_specs=[*map(of_head, results)],
                out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
                compiler_params=pltriton.CompilerParams(num_warps=num_warps, num_stages=num_stages),
                cost_estimate=cost,
                interpret=meshes.platform() == "cpu",
            )(*arguments)
        )


def _forward_kernel(reach: _Reach, *refs: Any) -> None:
    """Writes the context of a block of queries, and the logarithm to base 2 of the sum of its scores' powers."""
    query, key, value, queries, keys, key_ranges, _, context, statistics = refs
    number = pl.program_id(0)
    block = _block(number, reach)
    q = query[block, :]
    places = queries[block]
    scale = query.shape[-1] ** -0.5 * _LOG2_E

    def step(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        total, largest, powers_sum = carry
        near = _block(number, reach)
        scores = product(q, key[near, :], (1, 1)) * scale
        scores = jnp.where(_allowed(places[:, None], keys[near][None], reach), scores, -jnp.inf)
        new = jnp.maximum(largest, scores.max(axis=1))
        powers = jnp.exp2(scores - new[:, None])
        shrink = jnp.exp2(largest - new)
        total = total * shrink[:, None] + product(powers.astype(q.dtype), value[near, :])
        return total, new, powers_sum * shrink + powers.sum(axis=1)

    zeros = jnp.zeros(places.shape, jnp.float32)
    start = jnp.zeros(q.shape, jnp.float32), zeros + MASKED_SCORE, zeros
    total, largest, powers_sum = jax.lax.fori_loop(key_ranges[number, 0], key_ranges[number, 1], step, start)
    powers_sum = jnp.maximum(powers_sum, 1)  # without any key it is 0; the largest score has the power 1
    context[block, :] = (total / powers_sum[:, None]).astype(context.dtype)
    statistics[block] = largest + jnp.log2(powers_sum)


def _backward_kernel(reach: _Reach, *refs: Any) -> None:
    """Writes the gradients of a block of keys and values, and of a block of queries. It recomputes scores for each."""
    query, key, value, queries, keys, key_ranges, query_ranges, gradient, statistics, means, *grads = refs
    query_grad, key_grad, value_grad = grads
    number = pl.program_id(0)
    scale = query.shape[-1] ** -0.5
    block = _block(number, reach)

    def weights(rows: Array, columns: Array, allowed: Array, statistic: Array) -> Array:
        scores = product(rows, columns, (1, 1)) * (scale * _LOG2_E)
        return jnp.where(allowed, jnp.exp2(scores - statistic), 0)

    @pl.when(number < len(query_ranges))
    def _of_keys() -> None:
        k = key[block, :]
        v = value[block, :]
        places = keys[block][:, None]

        def step(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            near = _block(number, reach)
            q = query[near, :]
            g = gradient[near, :]
            powers = weights(k, q, _allowed(queries[near][None], places, reach), statistics[near][None])
            of_value = sums[1] + product(powers.astype(g.dtype), g)
            scores_grad = powers * (product(v, g, (1, 1)) - means[near][None])
            return sums[0] + product(scores_grad.astype(q.dtype), q), of_value

        zeros = jnp.zeros(k.shape, jnp.float32)
        sums = jax.lax.fori_loop(query_ranges[number, 0], query_ranges[number, 1], step, (zeros, zeros))
        key_grad[block, :], value_grad[block, :] = (sums[0] * scale).astype(k.dtype), sums[1].astype(v.dtype)

    @pl.when(number < len(key_ranges))
    def _of_queries() -> None:
        q = query[block, :]
        g = gradient[block, :]
        places = queries[block][:, None]
        statistic = statistics[block][:, None]
        mean = means[block][:, None]

        def step(number: Array, total: Array) -> Array:
            near = _block(number, reach)
            k = key[near, :]
            v = value[near, :]
            powers = weights(q, k, _allowed(places, keys[near][None], reach), statistic)
            scores_grad = powers * (product(g, v, (1, 1)) - mean)
            return total + product(scores_grad.astype(k.dtype), k)

        zeros = jnp.zeros(q.shape, jnp.float32)
        total = jax.lax.fori_loop(key_ranges[number, 0], key_ranges[number, 1], step, zeros)
        query_grad[block, :] = (total * scale).astype(q.dtype)


def _block(number: Any, reach: _Reach) -> Any:
    return pl.ds(number * reach.block, reach.block)


def _allowed(queries: Int[Array, "..."], keys: Int[Array, "..."], reach: _Reach) -> Bool[Array, "..."]:
    ahead = keys - queries
    return (ahead >= -reach.before) & (ahead <= reach.after)
