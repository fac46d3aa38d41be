"""Parser of the text of a compiled program (HLO): its computations, instructions, shapes and groups of devices.

XLA documents the format only partly (https://openxla.org/xla/operation_semantics). This parser follows the text of
programs for CPUs and TPUs.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "s4": 4, "u4": 4}  # other names end in their number of bits
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](\{[^}]*\})?")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_ASSIGNMENT = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = ")
_MESH = re.compile(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?)\))? \{(.*?)\}")
_OP_NAME = re.compile(r'op_name="(?![\w-]+\.\d+")([^"]*)"')  # not the compiler's own names, such as reshape.738
_CONTINUED = re.compile(r'\n(?="|\}\})')  # attributes of kernels span several lines
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")


class Shape(NamedTuple):
    """The shape of an array."""

    kind: str  # type of the elements: f32, bf16, ...
    dims: tuple[int, ...]
    is_in_hbm: bool  # False for arrays in a chip's on-chip memory
    num_stored: int  # elements in memory, including the padding of tiles on TPUs

    @property
    def num_bytes(self) -> int:
        """The size of the array, without padding."""
        return math.prod(self.dims) * self._bits // 8

    @property
    def stored_bytes(self) -> int:
        """The size of the array in memory, with padding."""
        return self.num_stored * self._bits // 8

    @property
    def _bits(self) -> int:
        digits = re.search(r"(\d+)(?:e\w+)?$", self.kind)  # f8e4m3fn has 8
        return _BITS[self.kind] if self.kind in _BITS else int(digits[1]) if digits else 32


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    opcode: str
    results: tuple[Shape, ...]  # one shape, or those of a tuple
    operands: tuple[str, ...]  # names
    rest: str  # the text after the operands
    inside: str  # the text between the parentheses

    def called(self, *roles: str) -> list[str]:
        """The names of the computations in attributes such as `calls`, `body` and `branch_computations`."""
        names = []
        for role in roles:
            for one, several in re.findall(rf"\b{role}=(?:%?([\w.-]+)|\{{([^}}]*)\}})", self.rest):
                names += [one] if one else re.findall(r"[\w.-]+", several)
        return names

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """The numbers of an attribute such as `dimensions={0,1}`; empty if there is no such attribute."""
        match = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.rest)
        return _numbers(match[1]) if match else ()

    @property
    def op_name(self) -> str:
        """The name of the traced operation that the instruction comes from, with its modules; "" if unknown."""
        match = _OP_NAME.search(self.rest)
        return match[1] if match else ""

    @property
    def is_alias(self) -> bool:
        """Whether the result is the first operand under another name."""
        return self.opcode == "bitcast" or (
            self.opcode == "fusion" and "output_to_operand_aliasing={{}: (0, {})}" in self.rest
        )

    @property
    def channel(self) -> str:
        """The identifier of a collective: its channel number, or its name if it has none."""
        match = re.search(r"\bchannel_id=(\d+)", self.rest)
        return match[1] if match else self.name


@dataclasses.dataclass(frozen=True)
class Computation:
    """The instructions of a computation by name, in order. The last one is the root."""

    name: str
    instructions: Mapping[str, Instruction]

    @functools.cached_property
    def _users(self) -> Mapping[str, list[Instruction]]:
        """The instructions that use each value. An unrolled program has thousands."""
        users: dict[str, list[Instruction]] = {}
        for instruction in self.instructions.values():
            for name in dict.fromkeys(instruction.operands):
                users.setdefault(name, []).append(instruction)
        return users

    @property
    def root(self) -> Instruction:
        """The instruction whose result the computation returns."""
        return next(reversed(list(self.instructions.values())))

    def parameter(self, number: int) -> str:
        """The name of the parameter with this number."""
        return next(i.name for i in self.instructions.values() if i.opcode == "parameter" and i.inside == str(number))

    def uses(self, name: str) -> Iterator[Instruction]:
        """Yields the instructions that use a value or one of its aliases."""
        for instruction in self._users.get(name, ()):
            if instruction.is_alias:
                yield from self.uses(instruction.name)
            else:
                yield instruction

    def shapes(self, names: tuple[str, ...]) -> list[Shape]:
        """The shapes of the named values."""
        return [shape for name in names if name in self.instructions for shape in self.instructions[name].results]


class Program(NamedTuple):
    """A compiled program."""

    computations: Mapping[str, Computation]
    entry: str  # the name of the main computation

    def called(self, instruction: Instruction, *roles: str) -> list[Computation]:
        """The computations in attributes such as `calls`, `body` and `branch_computations`."""
        return [self.computations[name] for name in instruction.called(*roles)]

    def contents(self, inside: Computation, instruction: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """Yields the instructions of a fusion with their computations; or the instruction itself."""
        if instruction.opcode != "fusion":
            yield inside, instruction
            return
        for computation in self.called(instruction, "calls"):
            for inner in computation.instructions.values():
                yield from self.contents(computation, inner)


def parse(text: str) -> Program:
    """Parses the text of a program, as returned by `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    entry = ""
    name = ""
    lines: dict[str, Instruction] = {}
    root: Instruction | None = None
    for line in _CONTINUED.sub(" ", text).splitlines():
        if head := _HEAD.match(line):
            name = head[2]
            lines = {}
            root = None
            entry = name if head[1] else entry
            computations[name] = Computation(name, lines)
        elif name and (match := _ASSIGNMENT.match(line)):
            instruction = _instruction(match[2], line[match.end() :])
            if not match[1]:
                lines[instruction.name] = instruction
            else:  # the root may not be the last line
                root = instruction
        elif line.startswith("}") and name:
            name = ""
            if root:
                lines[root.name] = root
    return Program(computations, entry)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    shapes = tuple(_shape(*array) for array in _ARRAY.findall(text[:end]))
    opening = text.index("(", end)
    closing = _closing(text, opening)
    inside = text[opening + 1 : closing - 1]
    opcode = text[end:opening].strip()
    rest = text[closing:]
    operands = () if opcode in ("constant", "parameter") else tuple(re.findall(r"%([\w.-]+)", inside))
    return Instruction(name, opcode, shapes, operands, rest, inside)


def _closing(text: str, opening: int) -> int:
    """The position after the parenthesis that closes the one at `opening`."""
    depth = 0
    for parenthesis in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if parenthesis[0] == "(" else -1
        if not depth:
            return parenthesis.end()
    raise AssertionError(f"unbalanced parentheses: {text}")


def _shape(kind: str, dims: str, layout: str) -> Shape:
    place = re.search(r"S\((\d+)\)", layout)
    sizes = _numbers(dims.replace("<=", ""))
    return Shape(kind, sizes, place is None or place[1] == "0", _num_stored(sizes, layout))


def _num_stored(sizes: tuple[int, ...], layout: str) -> int:
    """The number of elements in memory: for `{1,0:T(8,128)}`, dimension 1 in multiples of 128 and 0 in those of 8."""
    stored = list(sizes)
    if match := re.match(r"\{([\d,]+):T\(([\d,]+)\)", layout):
        # The minor axis is the first of the axes and the last of the tile, which may have fewer dimensions.
        for axis, tile in zip(_numbers(match[1]), reversed(_numbers(match[2])), strict=False):
            stored[axis] = -(-stored[axis] // tile) * tile
    return math.prod(stored)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def device_groups(instruction: Instruction, num_devices: int) -> tuple[tuple[int, ...], ...]:
    """Returns the device numbers of each group of a collective. All groups have the same size.

    For a permutation, these are its pairs.
    """
    rest = instruction.rest
    if match := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]+\})\}", rest):
        return tuple(map(_numbers, re.findall(r"[\d,]*\d", match[1].replace("},{", " "))))
    if match := _MESH.search(rest):
        return _mesh_groups(*match.groups())
    if match := re.search(r"replica_groups=(\[[^ ]*)", rest):
        groups = _IOTA.match(match[1])
        assert groups, match[1]
        return tuple(map(tuple, _iota(groups[2], groups[3]).reshape(_numbers(groups[1])).tolist()))
    return (tuple(range(num_devices)),)


def _iota(shape: str, order: str | None) -> np.ndarray:
    """The numbers 0, 1, ... as an array of the given shape, transposed by `order`."""
    numbers = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return numbers.transpose(_numbers(order)) if order else numbers


def _mesh_groups(axes: str, ids: str | None, chosen: str) -> tuple[tuple[int, ...], ...]:
    """The groups of the form `mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}`.

    A group consists of the devices that differ along the chosen axes. A part of an axis may be chosen: 'a':(2)3 splits
    axis a into factors of sizes 2, 3 and the remainder, and chooses the middle factor.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    shape = tuple(sizes.values())
    order = np.arange(math.prod(shape))
    if ids and (match := _IOTA.match(ids)):
        order = _iota(match[1], match[3]).ravel()
    elif ids:
        order = np.array(_numbers(ids))
    first = np.indices(shape).reshape(len(shape), -1)  # of each device: the place of its group's first device
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        axis = list(sizes).index(name)
        count = int(size or sizes[name])
        inner = sizes[name] // (int(before or 1) * count)
        first[axis] -= first[axis] // inner % count * inner
    numbers = np.ravel_multi_index(tuple(first), shape)
    return tuple(tuple(order[numbers == number].tolist()) for number in np.unique(numbers))
