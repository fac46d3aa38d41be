"""Operations of kernels that a compiled program calls: cuBLAS, cuDNN's attention, and splash attention on TPUs.

The operations of other kernels are what they state in their `cost_estimate`. Calls of Triton do not keep it: there, the
name of the operation contains a scope such as `flops=42`. Other operations are unknown and count as 0.
"""

import math
import re
from collections.abc import Sequence

from bertjax.tools.planning.hlo import Computation, Instruction, Shape

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_MOSAIC = "tpu_custom_call"
_TRITON = ("__gpu$xla.gpu.triton", "triton_kernel_call_ffi")  # until JAX 0.10.2, and later


def target(instruction: Instruction) -> str:
    """Returns the name of the library function that an instruction calls; "" for other instructions."""
    match = _TARGET.search(instruction.rest) if instruction.opcode == "custom-call" else None
    return match[1] if match else ""


def is_custom(instruction: Instruction) -> bool:
    """Whether the instruction is a kernel that computes several operations, such as flash attention."""
    return target(instruction).startswith(("__cudnn$fmha", _MOSAIC, *_TRITON))


def is_workspace(instruction: Instruction, result: Shape) -> bool:
    """Whether a result is scratch memory of a library function on a GPU."""
    return target(instruction).startswith("__cu") and result.kind in ("s8", "u8")


def kernel_flops(inside: Computation, instruction: Instruction) -> float:
    """Returns the operations of the matrix products of a kernel; 0 if they are unknown.

    Attention kernels count whole products, also where a causal mask lets them skip blocks.
    """
    called = target(instruction)
    shapes = inside.shapes(instruction.operands)
    if called.startswith("__cublas"):
        axes = re.search(r'"lhs_contracting_dimensions":\s*\[([^\]]*)\]', instruction.rest)
        contracted = [shapes[0].dims[int(axis)] for axis in re.findall(r"\d+", axes[1])] if axes else []
        return 2.0 * math.prod(instruction.results[0].dims) * math.prod(contracted)
    if called.startswith("__cudnn$fmha"):
        return _cudnn_attention(instruction, shapes, is_backward=called.endswith("Backward"))
    if _is_splash(instruction):
        return _splash_attention(instruction, shapes)
    return float(_stated(instruction) or 0)


def is_unknown(instruction: Instruction) -> bool:
    """Whether the instruction is a kernel whose operations are unknown."""
    is_known = target(instruction).startswith("__cudnn$fmha") or _is_splash(instruction)
    return is_custom(instruction) and not is_known and not _stated(instruction)


def _stated(instruction: Instruction) -> str:
    """The operations that a kernel states; "" if it states none."""
    match = re.search(r'(?:"cost_estimate":\{"flops":"|\bflops=)(\d+)', instruction.rest)
    return match[1] if match and is_custom(instruction) else ""


def reads(instruction: Instruction, shapes: Sequence[Shape]) -> Sequence[int]:
    """Returns how often a kernel reads each operand.

    Splash attention computes blocks of scores. It keeps its block of queries while it reads all blocks of keys and
    values, or the other way round for the gradients of keys and values. Its first operand is a table of blocks.
    """
    once = [1] * len(shapes)
    if not _is_splash(instruction):
        return once
    query_blocks, key_blocks = shapes[0].dims[-2:]
    of_keys = [number for number, shape in enumerate(shapes) if "f" in shape.kind][1:3]
    if "_dkv" in instruction.name:
        times = key_blocks if query_blocks > 1 else 1
        return [1 if number in of_keys else times for number in range(len(shapes))]
    times = query_blocks if key_blocks > 1 else 1
    return [times if number in of_keys else 1 for number in range(len(shapes))]


def _is_splash(instruction: Instruction) -> bool:
    return target(instruction) == _MOSAIC and instruction.name.startswith("splash_m")


_POSITIONS_LAST = "2"  # the kernel's number of the layout [..., N, D, S]
# Products with the size of queries and keys, and with that of values. Backward passes recompute the scores.
_FORWARD = (1, 1)  # scores; context
_BACKWARD = (3, 2)  # scores, gradients of queries and keys; gradients of weights and values
_QUERY_BACKWARD = (2, 1)  # scores, gradient of queries; gradient of weights
_KEY_VALUE_BACKWARD = (2, 2)  # scores, gradient of keys; gradients of weights and values


def _cudnn_attention(instruction: Instruction, shapes: Sequence[Shape], is_backward: bool) -> float:
    """Operands are queries, keys and values [B, S, N, D]; `intermediate_tensor_shape` is that of the scores."""
    scores = re.search(r'"intermediate_tensor_shape":.*?"dimensions":\s*\[([^\]]*)\]', instruction.rest)
    assert scores, instruction.rest
    pairs = math.prod(int(size) for size in re.findall(r"\d+", scores[1]))
    return _products(_BACKWARD if is_backward else _FORWARD, pairs, shapes[0].dims[-1], shapes[2].dims[-1])


def _splash_attention(instruction: Instruction, shapes: Sequence[Shape]) -> float:
    """The first floating-point operands are queries, keys and values, [..., N, S, D] or [..., N, D, S]."""
    arrays = [shape.dims for shape in shapes if "f" in shape.kind][:3]
    layouts = re.findall(r"[qkv]_layout\W+(\d)", instruction.rest) or [""] * 3
    query, key, value = (
        (*dims[:-2], dims[-1], dims[-2]) if layout == _POSITIONS_LAST else dims
        for dims, layout in zip(arrays, layouts, strict=False)
    )
    pairs = math.prod(query[:-1]) * key[-2]
    products = _FORWARD
    if "_dq" in instruction.name:
        products = _QUERY_BACKWARD
    elif "_dkv" in instruction.name:
        # A kernel for all gradients returns those of the queries for each block of keys.
        is_fused = any(len(result.dims) > len(query) for result in instruction.results)
        products = _BACKWARD if is_fused else _KEY_VALUE_BACKWARD
    return _products(products, pairs, query[-1], value[-1])


def _products(counts: tuple[int, int], pairs: int, key_size: int, value_size: int) -> float:
    return 2.0 * pairs * (counts[0] * key_size + counts[1] * value_size)
