"""Costs of a compiled step per device: operations, memory traffic and communication.

XLA's own `cost_analysis` counts the body of a loop once; this module counts every iteration.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bertjax.planning.hlo import Computation, Instruction, Program, Shape, device_groups, parse

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Instructions that move no data, or whose cost is counted elsewhere.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id"}
_FREE |= {"replica-id", "opt-barrier"}
_SLICES = {"slice", "dynamic-slice", "gather", "slice-start", "dynamic-slice-start"}
_FREE_CALLS = re.compile(r'custom_call_target="(ConcatBitcast|AllocateBuffer|Assume\w+|AsyncCollective\w+|Sharding)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


class Collective(NamedTuple):
    """A communication between devices."""

    kind: str  # one of `COLLECTIVES`
    num_bytes: int  # bytes of each device's result, or of its input for a reduction
    groups: tuple[tuple[int, ...], ...]  # the devices of each group
    times: int  # number of executions in a step

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends in a step, in rings: (n - 1) / n of the bytes, twice for an all-reduce."""
        size = len(self.groups[0])
        share = 1.0 if self.kind == "collective-permute" else (size - 1) / size
        return self.times * self.num_bytes * share * (2 if self.kind == "all-reduce" else 1)


class Costs(NamedTuple):
    """The costs of a step per device."""

    flops: float  # operations of matrix products, including recomputation
    hbm_bytes: int  # bytes read from and written to main memory
    cycles: int  # sum of the TPU compiler's estimates for computation; 0 from other compilers
    collectives: Mapping[str, Collective]  # by identifier
    uncounted_loops: int  # loops with an unknown number of iterations; counted as one iteration


def step_costs(text: str, num_devices: int) -> Costs:
    """Returns the costs of a program, given its text (`compiled.as_text()`) and the number of devices."""
    program = parse(text)
    return _Reader(program, num_devices).computation(program.computations[program.entry])


class _Reader:
    """Adds up the costs of a program, beginning at its entry computation."""

    def __init__(self, program: Program, num_devices: int) -> None:
        self._program, self._num_devices = program, num_devices
        self._known: dict[tuple[str, bool], Costs] = {}

    def computation(self, computation: Computation, is_fused: bool = False) -> Costs:
        """The total costs of a computation's instructions. Inside a fusion, memory traffic is not counted."""
        key = computation.name, is_fused
        if key not in self._known:
            costs = Costs(0.0, 0, 0, {}, 0)
            for instruction in computation.instructions.values():
                costs = _add(costs, self._instruction(computation, instruction, is_fused))
            self._known[key] = costs
        return self._known[key]

    def _instruction(self, inside: Computation, instruction: Instruction, is_fused: bool) -> Costs:
        opcode = instruction.opcode
        if opcode == "while":
            return self._loop(instruction)
        if opcode == "conditional":
            branches = self._called(instruction, "branch_computations", "true_computation", "false_computation")
            return max((self.computation(branch) for branch in branches), key=lambda costs: costs.hbm_bytes)
        if opcode in ("call", "async-start"):
            (called,) = self._called(instruction, "to_apply", "calls")
            return self.computation(called, is_fused)
        found = _CYCLES.search(instruction.rest)
        cycles = int(found[1]) if found and not is_fused else 0
        moved = 0 if is_fused else self._memory_traffic(inside, instruction)
        if opcode == "fusion":
            (called,) = self._called(instruction, "calls")
            return _add(self.computation(called, is_fused=True), Costs(0.0, moved, cycles, {}, 0))
        kind = opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            return Costs(0.0, moved, cycles, {instruction.channel: self._collective(kind, inside, instruction)}, 0)
        return Costs(_flops(inside, instruction), moved, cycles, {}, 0)

    def _called(self, instruction: Instruction, *roles: str) -> list[Computation]:
        return [self._program.computations[name] for name in instruction.called(*roles)]

    def _loop(self, loop: Instruction) -> Costs:
        (body,) = self._called(loop, "body")
        iterations, costs = self._iterations(loop), self.computation(body)
        times = iterations or 1
        collectives = {
            f"{loop.name}/{key}": each._replace(times=each.times * times) for key, each in costs.collectives.items()
        }
        uncounted = costs.uncounted_loops + (iterations is None)
        return Costs(costs.flops * times, costs.hbm_bytes * times, costs.cycles * times, collectives, uncounted)

    def _iterations(self, loop: Instruction) -> int | None:
        """A loop's number of iterations, from the compiler's note or from a condition on a counter that starts at 0."""
        if found := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest):
            return int(found[1])
        (condition,) = self._called(loop, "condition")
        test = condition.root
        if test.opcode == "fusion":
            (test,) = (called.root for called in self._called(test, "calls"))
        limits = [i for i in condition.instructions.values() if i.opcode == "constant" and i.results[0].dims == ()]
        if test.opcode == "compare" and "direction=LT" in test.rest and len(limits) == 1:
            return int(limits[0].inside)
        return None

    def _collective(self, kind: str, inside: Computation, instruction: Instruction) -> Collective:
        groups = device_groups(instruction, self._num_devices)
        if inside.name.startswith("all-reduce-scatter"):  # the TPU compiler's form of a reduce-scatter
            kind = "reduce-scatter"
        size = _size(inside.shapes(instruction.operands))
        return Collective(kind, size * (len(groups[0]) if kind == "all-gather" else 1), groups, 1)

    def _memory_traffic(self, inside: Computation, instruction: Instruction) -> int:
        """Bytes that an instruction reads from main memory and writes to it."""
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done") or _FREE_CALLS.search(instruction.rest):
            return 0
        if opcode == "fusion":
            (called,) = self._called(instruction, "calls")
            reads = sum(
                min(self._read(called, number), _in_hbm(inside.shapes((operand,))))
                for number, operand in enumerate(instruction.operands)
            )
            return reads + self._written(called, instruction)
        results = _new_results(instruction)
        operands = list(dict.fromkeys(instruction.operands))
        if opcode in _SLICES:
            is_read = bool(operands) and _in_hbm(inside.shapes((operands[0],))) > 0
            return _in_hbm(results) + _size(results) * is_read
        if opcode == "dynamic-update-slice":
            return 2 * _in_hbm(inside.shapes((operands[1],)))
        return _in_hbm(results) + sum(_in_hbm(inside.shapes((operand,))) for operand in operands)

    def _read(self, computation: Computation, number: int) -> int:
        """Bytes that a fusion reads of a parameter. If it only reads slices, these are counted."""
        name = computation.parameter(number)
        total = 0
        for use in computation.uses(name):
            if use.opcode == "tuple" or _FREE_CALLS.search(use.rest):
                continue  # returned unchanged
            if use.opcode in _SLICES:
                total += _size(_new_results(use))
            elif use.opcode == "dynamic-update-slice" and _origin(computation, use.operands[0]).name == name:
                continue  # updated in place
            elif use.opcode == "fusion":
                (called,) = self._called(use, "calls")
                total += sum(self._read(called, n) for n, operand in enumerate(use.operands) if operand == name)
            else:
                return _size(computation.shapes((name,)))
        return total

    def _written(self, computation: Computation, fusion: Instruction) -> int:
        """Bytes that a fusion writes: only the new part of arrays updated in place, and nothing of unchanged ones."""
        root = computation.root
        made = root.operands if root.opcode == "tuple" else (root.name,)
        if len(made) != len(fusion.results):
            made = (root.name,) * len(fusion.results)
        total = 0
        for shape, name in zip(fusion.results, made, strict=True):
            origin = _origin(computation, name)
            if not shape.is_in_hbm or origin.opcode in _FREE or _FREE_CALLS.search(origin.rest):
                continue
            is_updated = origin.opcode == "dynamic-update-slice"
            total += _size(computation.shapes((origin.operands[1],))) if is_updated else shape.num_bytes
        return total


def _origin(computation: Computation, name: str) -> Instruction:
    """The instruction that computed a value, found through its aliases."""
    instruction = computation.instructions[name]
    return _origin(computation, instruction.operands[0]) if instruction.is_alias else instruction


def _new_results(instruction: Instruction) -> tuple[Shape, ...]:
    """The new results of an instruction. The "-start" half of an asynchronous pair also returns its operands."""
    opcode = instruction.opcode
    if not opcode.endswith("-start") or opcode == "all-reduce-start" or len(instruction.results) == 1:
        return instruction.results
    return instruction.results[:1] if opcode == "copy-start" else instruction.results[1:2]


def _add(a: Costs, b: Costs) -> Costs:
    """The sum of two costs. A collective in both is one whose parts run next to several computations."""
    return Costs(
        a.flops + b.flops,
        a.hbm_bytes + b.hbm_bytes,
        a.cycles + b.cycles,
        {**a.collectives, **b.collectives},
        a.uncounted_loops + b.uncounted_loops,
    )


def _size(shapes: tuple[Shape, ...] | list[Shape]) -> int:
    return sum(shape.num_bytes for shape in shapes)


def _in_hbm(shapes: tuple[Shape, ...] | list[Shape]) -> int:
    return sum(shape.num_bytes for shape in shapes if shape.is_in_hbm)


def _flops(inside: Computation, instruction: Instruction) -> float:
    """Operations of a matrix product: one multiplication and one addition per product of two numbers."""
    if instruction.opcode == "dot":
        (left, *_) = inside.shapes(instruction.operands)
        contracted = math.prod(left.dims[axis] for axis in instruction.numbers("lhs_contracting_dims"))
        return 2.0 * math.prod(instruction.results[0].dims) * contracted
    if instruction.opcode == "convolution":
        return _convolution_flops(inside, instruction)
    return 0.0


def _convolution_flops(inside: Computation, instruction: Instruction) -> float:
    """Operations of a convolution, excluding padding. TPUs compute batched matrix products as convolutions."""
    left, right = inside.shapes(instruction.operands)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.rest)
    assert labels, instruction.rest
    on_left, on_right, on_result = labels.groups()
    result = instruction.results[0].dims
    total = 2.0 * result[on_result.index("b")] * result[on_result.index("f")] * right.dims[on_right.index("i")]
    for number in range(len(on_result) - 2):
        digit = str(number)
        sizes = left.dims[on_left.index(digit)], right.dims[on_right.index(digit)], result[on_result.index(digit)]
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
    found = re.search(rf"\b{name}=([\d_x-]+)", window[1]) if window else None
    return found[1].split("x")[dimension] if found else None
