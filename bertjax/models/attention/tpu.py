"""Attention on TPUs: JAX's flash attention, and a kernel that keeps the scores of short rows in on-chip memory.

Flash attention splits rows into blocks, and its kernels need the axis of heads before that of positions, which costs a
copy of every array. Rows of at most `MAX_LENGTH` tokens need neither: this kernel reads queries, keys and values as the
projections write them, in blocks of a whole row and as many heads as fill the `LANES` of a vector register. The
backward pass recomputes the weights.

Shapes: B batch, S queries, T keys, N heads, D head size, W = N D width.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import splash_attention as kernels
from jaxtyping import Array, Bool, Float, Int

from bertjax import meshes
from bertjax.models.attention.inputs import MASKED_SCORE, RESIDUALS, AttentionInputs, Context, padded
from bertjax.models.attention.mask import Mask

LANES = 128  # of the vector registers; lengths of keys are multiples
_MAX_BLOCK = 512  # tokens of a block of flash attention
MAX_LENGTH = 512  # longer rows exceed the 16 MiB that a kernel may use on a v4


def rows(inputs: AttentionInputs) -> tuple[Context, None]:
    """Attention by the kernel of this module, interpreted on a CPU.

    Queries are padded to a multiple of `LANES`. XLA does not partition the kernel, so each device calls it on its own
    rows and heads.
    """
    query, key, value, mask = inputs[:4]
    assert inputs.dropout is None and inputs.bias is None and isinstance(mask, Mask)
    length = query.shape[1]
    query, segments = (padded(x, LANES) for x in (query * query.shape[-1] ** -0.5, mask.queries.segments))
    flat = (x.reshape(*x.shape[:2], -1) for x in (query, key, value))
    attend = meshes.on_each_device(
        functools.partial(_attend, query.shape[-1], (mask.direction, mask.window)),
        (meshes.OF_WIDTH,) * 3 + (meshes.OF_ROWS,) * 2,
        meshes.OF_WIDTH,
    )
    return attend(*flat, segments, mask.keys.segments).reshape(query.shape)[:, :length], None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(
    size: int,
    reach: tuple[str, int],
    query: Float[Array, "B S W"],
    key: Float[Array, "B T W"],
    value: Float[Array, "B T W"],
    queries: Int[Array, "B S"],
    keys: Int[Array, "B T"],
) -> Float[Array, "B S W"]:
    """Attention with heads of `size`; `reach` is a direction and a window, and `queries` and `keys` are segments."""
    kernel = functools.partial(_forward_kernel, size, reach)
    return _call(kernel, 2, (queries, keys), (query, key, value), (query,))[0]


def _forward(size: int, reach: tuple[str, int], *arguments: Array) -> tuple[Array, tuple[Array, ...]]:
    return _attend(size, reach, *arguments), arguments


def _backward(
    size: int, reach: tuple[str, int], arguments: tuple[Array, ...], gradient: Array
) -> tuple[Array | None, ...]:
    query, key, value, *segments = arguments
    kernel = functools.partial(_backward_kernel, size, reach)
    return *_call(kernel, 5, segments, (query, key, value, gradient), (query, key, value)), None, None


_attend.defvjp(_forward, _backward)


def _call(
    kernel: Any, num_products: int, segments: Any, arrays: tuple[Array, ...], results: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Calls a kernel for each row and each block of heads. Its cost is that of its matrix products and its arrays."""
    queries, keys = (x[:, None, :] for x in segments)
    batch, length, width = arrays[0].shape

    def block(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec((1, x.shape[1], LANES), lambda row, heads: (row, 0, heads))

    def whole(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec((1, *x.shape[1:]), lambda row, heads: (row, 0, 0))

    pairs = batch * width * length * keys.shape[2]
    return tuple(
        pl.pallas_call(
            kernel,
            grid=(batch, width // LANES),
            in_specs=[whole(queries), whole(keys), *map(block, arrays)],
            out_specs=[block(x) for x in results],
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
            cost_estimate=pl.CostEstimate(
                flops=2 * num_products * pairs,
                transcendentals=pairs // kernel.args[0],
                bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *results)),
            ),
            interpret=meshes.platform() == "cpu",
        )(queries, keys, *arrays)
    )


def _forward_kernel(
    size: int, reach: tuple[str, int], queries: Any, keys: Any, query: Any, key: Any, value: Any, context: Any
) -> None:
    allowed = _allowed(queries[0].T, keys[0], *reach)
    for head in _heads(size):
        powers, total = _powers(query[0, :, head], key[0, :, head], allowed)
        context[0, :, head] = (product(powers.astype(value.dtype), value[0, :, head]) / total).astype(context.dtype)


def _backward_kernel(
    size: int,
    reach: tuple[str, int],
    queries: Any,
    keys: Any,
    query: Any,
    key: Any,
    value: Any,
    gradient: Any,
    query_grad: Any,
    key_grad: Any,
    value_grad: Any,
) -> None:
    allowed = _allowed(queries[0].T, keys[0], *reach)
    for head in _heads(size):
        q, k, v, g = (x[0, :, head] for x in (query, key, value, gradient))
        powers, total = _powers(q, k, allowed)
        weights = powers / total
        weights_grad = product(g, v, (1, 1))
        mean = jnp.sum(weights * weights_grad, axis=1, keepdims=True)
        scores_grad = jnp.where(allowed, weights * (weights_grad - mean), 0).astype(q.dtype)
        query_grad[0, :, head] = product(scores_grad, k).astype(query_grad.dtype)
        key_grad[0, :, head] = product(scores_grad, q, (0, 0)).astype(key_grad.dtype)
        value_grad[0, :, head] = product(weights.astype(g.dtype), g, (0, 0)).astype(value_grad.dtype)


def _heads(size: int) -> Iterator[slice]:
    """The lanes of each head of a block."""
    return (slice(begin, begin + size) for begin in range(0, LANES, size))


def _powers(
    query: Float[Array, "S D"], key: Float[Array, "T D"], allowed: Bool[Array, "S T"]
) -> tuple[Float[Array, "S T"], Float[Array, "S 1"]]:
    """The powers of the softmax, and their sums. Their quotients are the weights."""
    scores = jnp.where(allowed, product(query, key, (1, 1)), MASKED_SCORE)
    powers = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    return powers, jnp.sum(powers, axis=1, keepdims=True)


def product(a: Array, b: Array, contracted: tuple[int, int] = (1, 0)) -> Array:
    """Returns the matrix product over these axes of `a` and `b`, in float32."""
    dimensions = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _allowed(queries: Int[Array, "S 1"], keys: Int[Array, "1 T"], direction: str, window: int) -> Bool[Array, "S T"]:
    """The mask of a row; see `mask.Mask`."""
    allowed = ((queries == keys) | (queries == 0)) & (keys != 0)
    row, column = (jax.lax.broadcasted_iota(jnp.int32, allowed.shape, axis) for axis in (0, 1))
    if window:
        allowed &= jnp.abs(column - row) <= window
    if direction == "both":
        return allowed
    return allowed & ((column <= row) if direction == "left_to_right" else (column >= row))


def splash(inputs: AttentionInputs) -> tuple[Context, None]:
    """The TPU's flash attention (`jax.experimental.pallas.ops.tpu.splash_attention`), interpreted on a CPU.

    Padding attends to padding, where `xla` lets it attend to all tokens. XLA does not partition the kernel, so each
    device calls it on its own rows and heads.
    """
    query, key, value, mask = inputs[:4]
    assert inputs.dropout is None and inputs.bias is None and isinstance(mask, Mask)
    heads = (x.swapaxes(1, 2) for x in (query * query.shape[-1] ** -0.5, key, value))
    attend = meshes.on_each_device(
        functools.partial(_splash_of_device, mask.direction, mask.window, meshes.platform() == "cpu"),
        (meshes.OF_HEADS,) * 3 + (meshes.OF_ROWS,) * 2,
        meshes.OF_HEADS,
    )
    return attend(*heads, mask.queries.segments, mask.keys.segments).swapaxes(1, 2), None


def _splash_of_device(
    direction: str,
    window: int,
    interpret: bool,
    query: Float[Array, "B N S D"],
    key: Float[Array, "B N T D"],
    value: Float[Array, "B N T D"],
    query_segments: Array,
    key_segments: Array,
) -> Float[Array, "B N S D"]:
    shape = query.shape[2], key.shape[2]
    kernel = kernels.make_splash_mha(
        kernels.MultiHeadMask([_mask(direction, window, shape)] * query.shape[1]),
        block_sizes=_block_sizes(*shape, window),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=RESIDUALS,
        interpret=interpret,
    )
    return jax.vmap(kernel)(query, key, value, kernels.SegmentIds(query_segments, key_segments))


def _mask(direction: str, window: int, shape: tuple[int, int]) -> Any:
    """The kernel's mask within a segment. Blocks without any True are skipped."""
    if direction == "both" and not window:
        return kernels.FullMask(shape)
    before, after = (0 if direction == other else window or None for other in ("right_to_left", "left_to_right"))
    return kernels.LocalMask(shape, (before, after), offset=0)


def _block_sizes(queries: int, keys: int, window: int) -> Any:
    """The largest blocks that divide the lengths; for local attention, the largest that are not wider than a window.

    With one block of keys, one backward kernel recomputes the scores once: 5 products instead of 7, and half the
    temporary memory. With several, it would store a gradient of the queries for each block. XLA's layout of heads of 64
    has the positions last; other layouts of the kernel's arguments would be copied.
    """
    most = max(LANES, min(window or _MAX_BLOCK, _MAX_BLOCK))
    block_q, block_kv = (_largest_block(length, most) for length in (queries, keys))
    is_fused = block_kv == keys
    layout = kernels.QKVLayout.SEQ_MINOR
    return kernels.BlockSizes(
        block_q=block_q,
        block_kv=block_kv,
        block_q_dkv=block_q,
        block_kv_dkv=block_kv,
        block_q_dq=None if is_fused else block_q,
        block_kv_dq=None if is_fused else block_kv,
        use_fused_bwd_kernel=is_fused,
        q_layout=layout,
        k_layout=layout,
        v_layout=layout,
    )


def _largest_block(length: int, most: int) -> int:
    return max(size for size in range(LANES, most + 1, LANES) if length % size == 0)
