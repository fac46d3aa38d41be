"""Attention by kernels that never store the scores: cuDNN's on NVIDIA GPUs, splash attention on TPUs.

Shapes: B batch, S queries, T keys, N heads, D head size.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as kernels
from jaxtyping import Array, Float

from bertjax import meshes
from bertjax.models.dot_product import RESIDUALS, AttentionInputs, Context, padded

LANES = 128  # of a TPU's vector registers; lengths are multiples
_MAX_BLOCK = 512


def cudnn(inputs: AttentionInputs) -> tuple[Context, None]:
    """cuDNN's flash attention, for rows of one instance.

    The mask is a number of keys per row, because cuDNN would store a mask by query and key, and compute its gradient.
    Lengths are padded to even numbers, which training needs.
    """
    mask, length = inputs.mask, inputs.query.shape[1]
    query, key, value = (padded(x, 2) for x in inputs[:3])
    assert inputs.dropout is None and inputs.bias is None and mask.keys is not None
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


def splash(inputs: AttentionInputs) -> tuple[Context, None]:
    """The TPU's flash attention (`jax.experimental.pallas.ops.tpu.splash_attention`), interpreted on a CPU.

    Padding attends to padding, where `xla` lets it attend to all tokens. XLA does not partition the kernel, so each
    device calls it on its own rows and heads.
    """
    query, key, value, mask = inputs[:4]
    assert inputs.dropout is None and inputs.bias is None and mask.queries is not None and mask.keys is not None
    heads = (x.swapaxes(1, 2) for x in (query * query.shape[-1] ** -0.5, key, value))
    attend = meshes.on_each_device(
        functools.partial(_of_device, mask.direction, mask.window, meshes.platform() == "cpu"),
        (meshes.OF_HEADS,) * 3 + (meshes.OF_ROWS,) * 2,
        meshes.OF_HEADS,
    )
    return attend(*heads, mask.queries.segments, mask.keys.segments).swapaxes(1, 2), None


def _of_device(
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
    is_fused, layout = block_kv == keys, kernels.QKVLayout.SEQ_MINOR
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
