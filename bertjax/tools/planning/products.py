"""Operations of the matrix products of a compiled program."""

import math
import re

import numpy as np

from bertjax.tools.planning import kernels
from bertjax.tools.planning.hlo import Computation, Instruction


def product_flops(inside: Computation, instruction: Instruction) -> float:
    """Returns the operations of an instruction's matrix products: a multiplication and an addition count as two."""
    if instruction.opcode == "dot":
        (lhs, *_) = inside.shapes(instruction.operands)
        contracted = math.prod(lhs.dims[axis] for axis in instruction.numbers("lhs_contracting_dims"))
        return 2.0 * math.prod(instruction.results[0].dims) * contracted
    if instruction.opcode == "convolution":
        return _convolution_flops(inside, instruction)
    return kernels.kernel_flops(inside, instruction)


def _convolution_flops(inside: Computation, instruction: Instruction) -> float:
    """Operations of a convolution, excluding padding. TPUs compute batched matrix products as convolutions."""
    lhs, rhs = inside.shapes(instruction.operands)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.rest)
    assert labels, instruction.rest
    on_lhs, on_rhs, on_result = labels.groups()
    result = instruction.results[0].dims
    total = 2.0 * result[on_result.index("b")] * result[on_result.index("f")] * rhs.dims[on_rhs.index("i")]
    for number in range(len(on_result) - 2):
        digit = str(number)
        sizes = lhs.dims[on_lhs.index(digit)], rhs.dims[on_rhs.index(digit)], result[on_result.index(digit)]
        total *= _num_valid_pairs(instruction.rest, number, *sizes)
    return total


def _num_valid_pairs(rest: str, dimension: int, size: int, kernel: int, result: int) -> int:
    """The number of (result position, kernel position) pairs along a dimension that use an input, not padding."""
    stride, left_dilation, right_dilation = (
        int(_window_value(rest, name, dimension) or 1) for name in ("stride", "lhs_dilate", "rhs_dilate")
    )
    before = int((_window_value(rest, "pad", dimension) or "0_0").split("_")[0])
    places = np.arange(result)[:, None] * stride + np.arange(kernel) * right_dilation - before
    is_input = (places >= 0) & (places < (size - 1) * left_dilation + 1) & (places % left_dilation == 0)
    return int(is_input.sum())


def _window_value(rest: str, name: str, dimension: int) -> str | None:
    """The value of a window attribute for one dimension, for example of `window={size=2x3 stride=1x2 pad=0_0x1_1}`."""
    window = re.search(r"window=\{([^}]*)\}", rest)
    match = re.search(rf"\b{name}=([\d_x-]+)", window[1]) if window else None
    return match[1].split("x")[dimension] if match else None
