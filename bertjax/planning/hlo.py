"""Reads the text of a compiled program (HLO): its computations, instructions, shapes and groups of devices.

XLA documents the form only in part (https://openxla.org/xla/operation_semantics); what is read here was seen in
programs for CPUs and TPUs.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "s4": 4, "u4": 4}  # others end in their number of bits
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](\{[^}]*\})?")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_ASSIGNMENT = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = ")
_MESH = re.compile(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?)\))? \{(.*?)\}")
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")


class Shape(NamedTuple):
    """An array's."""

    kind: str  # of the elements: f32, bf16, ...
    dims: tuple[int, ...]
    is_in_hbm: bool  # and not in a chip's own fast memory

    @property
    def num_bytes(self) -> int:
        """Its size, without the padding of tiles."""
        digits = re.search(r"(\d+)(?:e\w+)?$", self.kind)  # f8e4m3fn has 8
        bits = _BITS.get(self.kind) if self.kind in _BITS else int(digits[1]) if digits else 32
        return math.prod(self.dims) * (bits or 0) // 8


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    opcode: str
    results: tuple[Shape, ...]  # one, or several of a tuple
    operands: tuple[str, ...]  # names
    rest: str  # what is behind the operands
    inside: str  # what is between the parentheses, as it stands

    def called(self, *roles: str) -> list[str]:
        """The computations that it names as `calls`, `body`, `branch_computations` and so on."""
        found = []
        for role in roles:
            for one, several in re.findall(rf"\b{role}=(?:%?([\w.-]+)|\{{([^}}]*)\}})", self.rest):
                found += [one] if one else re.findall(r"[\w.-]+", several)
        return found

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """The numbers of an attribute such as `dimensions={0,1}`; none if it is not there."""
        found = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.rest)
        return _numbers(found[1]) if found else ()

    @property
    def is_alias(self) -> bool:
        """Whether it is its first operand, under another name."""
        return self.opcode == "bitcast" or (
            self.opcode == "fusion" and "output_to_operand_aliasing={{}: (0, {})}" in self.rest
        )

    @property
    def channel(self) -> str:
        """What tells a communication between devices apart from others; the name for want of a number."""
        found = re.search(r"\bchannel_id=(\d+)", self.rest)
        return found[1] if found else self.name


class Computation(NamedTuple):
    """Instructions by name, in order; the last is what it returns."""

    name: str
    instructions: Mapping[str, Instruction]

    @property
    def root(self) -> Instruction:
        """What it returns."""
        return next(reversed(list(self.instructions.values())))

    def parameter(self, number: int) -> str:
        """The name of a parameter."""
        return next(i.name for i in self.instructions.values() if i.opcode == "parameter" and i.inside == str(number))

    def uses(self, name: str) -> Iterator[Instruction]:
        """The instructions that take a value, or another name of it."""
        for instruction in self.instructions.values():
            if name in instruction.operands:
                if instruction.is_alias:
                    yield from self.uses(instruction.name)
                else:
                    yield instruction

    def shapes(self, names: tuple[str, ...]) -> list[Shape]:
        """The arrays of some values."""
        return [shape for name in names if name in self.instructions for shape in self.instructions[name].results]


class Program(NamedTuple):
    """A compiled program."""

    computations: Mapping[str, Computation]
    entry: str  # the one that is run


def parse(text: str) -> Program:
    """Reads a program from what `compiled.as_text()` gives."""
    computations: dict[str, Computation] = {}
    entry, name = "", ""
    lines: dict[str, Instruction] = {}
    root: Instruction | None = None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name, lines, root = head[2], {}, None
            entry = name if head[1] else entry
            computations[name] = Computation(name, lines)
        elif name and (found := _ASSIGNMENT.match(line)):
            instruction = _instruction(found[2], line[found.end() :])
            if not found[1]:
                lines[instruction.name] = instruction
            else:  # the root may stand before others
                root = instruction
        elif line.startswith("}") and name:
            name = ""
            if root:
                lines[root.name] = root
    return Program(computations, entry)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    shapes = tuple(_shape(*found) for found in _ARRAY.findall(text[:end]))
    opening = text.index("(", end)
    closing = _closing(text, opening)
    inside = text[opening + 1 : closing - 1]
    opcode, rest = text[end:opening].strip(), text[closing:]
    operands = () if opcode in ("constant", "parameter") else tuple(re.findall(r"%([\w.-]+)", inside))
    return Instruction(name, opcode, shapes, operands, rest, inside)


def _closing(text: str, opening: int) -> int:
    """The place behind the parenthesis that closes the one at `opening`."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.end()
    raise AssertionError(f"unbalanced parentheses: {text}")


def _shape(kind: str, dims: str, layout: str) -> Shape:
    place = re.search(r"S\((\d+)\)", layout)
    return Shape(kind, _numbers(dims.replace("<=", "")), place is None or place[1] == "0")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def first_group(instruction: Instruction, num_devices: int) -> tuple[int, ...]:
    """The numbers of the devices of one group that a communication is within; all groups are alike.

    A permutation counts as one of its pairs.
    """
    rest = instruction.rest
    if found := re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", rest):
        return _numbers(found[1])
    if found := _MESH.search(rest):
        return _mesh_group(*found.groups())
    if found := re.search(r"replica_groups=(\[[^ ]*)", rest):
        groups = _IOTA.match(found[1])
        assert groups, found[1]
        return tuple(_iota(groups[2], groups[3]).reshape(_numbers(groups[1]))[0].tolist())
    return tuple(range(num_devices))


def _iota(shape: str, order: str | None) -> np.ndarray:
    """0, 1, ... as an array of that shape, with its axes in another order."""
    count = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return count.transpose(_numbers(order)) if order else count


def _mesh_group(axes: str, ids: str | None, chosen: str) -> tuple[int, ...]:
    """The form `mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}`: devices that differ along the chosen axes.

    An axis may be chosen in part: 'a':(2)3 is the middle one of the three that it is the product of, of sizes 2, 3 and
    what is left.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    order = np.arange(math.prod(sizes.values()))
    if ids and (found := _IOTA.match(ids)):
        order = _iota(found[1], found[3])
    elif ids:
        order = np.array(_numbers(ids))
    order = order.reshape(tuple(sizes.values()))
    places: list[np.ndarray] = [np.zeros(1, int) for _ in sizes]
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        axis = list(sizes).index(name)
        inner = sizes[name] // (int(before) * int(size)) if size else 1
        places[axis] = (places[axis][:, None] + np.arange(int(size or sizes[name])) * inner).ravel()
    return tuple(order[np.ix_(*places)].ravel().tolist())
