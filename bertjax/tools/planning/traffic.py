"""Memory traffic of a compiled program: the bytes that an instruction reads from main memory and writes to it.

Arrays are counted once per instruction, on TPUs with the padding of their tiles. Slices and updates in place count only
the part that they read or write.
"""

import re
from collections.abc import Sequence

from bertjax.tools.planning import kernels
from bertjax.tools.planning.hlo import Computation, Instruction, Program, Shape

# Instructions that move no data, or whose cost is counted elsewhere.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"}
_FREE |= {"replica-id", "opt-barrier", "async-update"}
_SLICES = {"slice", "dynamic-slice", "gather", "slice-start", "dynamic-slice-start"}
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # opcodes, with the operand that has the new values
_FREE_CALLS = re.compile(r'custom_call_target="(ConcatBitcast|AllocateBuffer|Assume\w+|AsyncCollective\w+|Sharding)"')


def memory_traffic(program: Program, inside: Computation, instruction: Instruction) -> int:
    """Returns the bytes that an instruction of a computation reads and writes."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or _FREE_CALLS.search(instruction.rest):
        return 0
    if opcode == "fusion":
        (called,) = program.called(instruction, "calls")
        reads = sum(
            min(_read(program, called, called.parameter(number)), _in_hbm(inside.shapes((operand,))))
            for number, operand in enumerate(instruction.operands)
        )
        return reads + _written(program, called, instruction)
    results = tuple(shape for shape in _new_results(instruction) if not kernels.is_workspace(instruction, shape))
    operands = list(dict.fromkeys(instruction.operands))
    if opcode in _SLICES:
        is_read = bool(operands) and _in_hbm(inside.shapes((operands[0],))) > 0
        return _in_hbm(results) + _size(results) * is_read
    if opcode == "dynamic-update-slice":
        return 2 * _in_hbm(inside.shapes((operands[1],)))
    arguments = inside.shapes(tuple(operands))
    times = kernels.reads(instruction, arguments)
    return _in_hbm(results) + sum(count * _in_hbm((shape,)) for count, shape in zip(times, arguments, strict=True))


def _read(program: Program, computation: Computation, name: str) -> int:
    """Bytes that a fusion reads of a value. If it only reads slices, these are counted."""
    total = 0
    for use in computation.uses(name):
        if use.opcode == "tuple" or _FREE_CALLS.search(use.rest):
            continue  # returned unchanged
        if use.opcode in _SLICES:
            total += _size(_new_results(use))
        elif use.opcode in _UPDATES and _origin(computation, use.operands[0]).name == name:
            total += _updated(computation, use) * (use.opcode == "scatter")  # in place
        elif use.opcode == "fusion":
            (called,) = program.called(use, "calls")
            for number in (n for n, operand in enumerate(use.operands) if operand == name):
                inner = called.parameter(number)
                total += _read(program, called, inner)
                if _origin(called, called.root.name).name == inner:  # the result is the operand
                    total += _read(program, computation, use.name)
        else:
            return _size(computation.shapes((name,)))
    return total


def _written(program: Program, computation: Computation, fusion: Instruction) -> int:
    """Bytes that a fusion writes: only the new part of arrays updated in place, and nothing of unchanged ones."""
    root = computation.root
    outputs = root.operands if root.opcode == "tuple" else (root.name,)
    if len(outputs) != len(fusion.results):
        outputs = (root.name,) * len(fusion.results)
    total = 0
    for shape, name in zip(fusion.results, outputs, strict=True):
        origin = _origin(computation, name)
        maker = computation.instructions[origin.operands[0]] if origin.opcode == "get-tuple-element" else origin
        if not shape.is_in_hbm or kernels.is_workspace(maker, shape):
            continue
        if origin.opcode == "parameter" or _FREE_CALLS.search(origin.rest):
            continue  # returned unchanged
        if origin.opcode == "fusion" and len(origin.results) == 1:
            (called,) = program.called(origin, "calls")
            total += _written(program, called, fusion)
        else:
            total += _updated(computation, origin) if origin.opcode in _UPDATES else shape.stored_bytes
    return total


def _updated(computation: Computation, update: Instruction) -> int:
    """The size of the part that an instruction updates in place."""
    return _size(computation.shapes((update.operands[_UPDATES[update.opcode]],)))


def _origin(computation: Computation, name: str) -> Instruction:
    """The instruction that computed a value, found through its aliases."""
    instruction = computation.instructions[name]
    return _origin(computation, instruction.operands[0]) if instruction.is_alias else instruction


def _new_results(instruction: Instruction) -> tuple[Shape, ...]:
    """The new results of an instruction. The "-start" half of an asynchronous pair also returns its operands."""
    opcode = instruction.opcode
    if not opcode.endswith("-start") or opcode == "all-reduce-start" or len(instruction.results) == 1:
        return instruction.results
    count = len(instruction.operands)
    return instruction.results[:1] if opcode == "copy-start" else instruction.results[count : 2 * count]


def _size(shapes: Sequence[Shape]) -> int:
    return sum(shape.stored_bytes for shape in shapes)


def _in_hbm(shapes: Sequence[Shape]) -> int:
    return sum(shape.stored_bytes for shape in shapes if shape.is_in_hbm)
