"""Reads pickles of plain containers and tensors without executing code that they name.

Python's own unpickler is unsafe even if it resolves only allowed names: a file can set attributes of the objects that
it names, allocate any amount of memory, and nest deeper than the stack. This module interprets only the opcodes that
lists, tuples and dicts of numbers, strings and tensors need. It refuses all others. `pickletools` documents opcodes.
"""

import dataclasses
import io
import pickletools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.interop.formats.reading import damaged, shown

# The limit for weights. An object needs up to about 70 times the bytes of its opcode.
MAX_PICKLE_BYTES = 8 * 2**20


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of ours that a pickle may call by name. It checks its arguments."""

    call: Callable[..., object]


@dataclasses.dataclass(frozen=True)
class InertClass:
    """A class that a pickle may name. Its instances become `Inert` objects; the class itself is never imported."""

    name: str


@dataclasses.dataclass(eq=False)
class Inert:
    """The placeholder of an instance of an `InertClass`. It keeps the attributes and drops all other contents."""

    name: str
    attributes: dict[str, Any]


def load(
    file: io.BytesIO, where: str, allowed: Mapping[str, object], persistent_load: Callable[[object], object]
) -> object:
    """Reads the pickle at the file's position, and moves the position to its end.

    Args:
      file: a file of bounded size, see MAX_PICKLE_BYTES.
      where: the file's name, for messages.
      allowed: the objects that a pickle may refer to, by dotted name: a `Function`, an `InertClass`, or a plain value.
      persistent_load: makes an object from a persistent id, and checks the id.
    Returns:
      dicts with keys of type str and int, lists, tuples, numbers, strings, None, values of `allowed`, results of
      `persistent_load` and of functions, and `Inert`. Containers may contain themselves.
    Raises:
      UserError: for a damaged pickle, or a name or an opcode that is not allowed.
    """
    machine = _Machine(where, allowed, persistent_load)
    for name, argument in _operations(file, where):
        if name == "STOP":
            return machine.result()
        if name not in _OPCODES:
            raise refusal(where, f"opcode {name}{_operand(argument)}")
        _OPCODES[name](machine, argument)
    raise AssertionError("genops ends with STOP or an error")


def refusal(where: str, got: str, expected: str = "a pickle of tensors in dicts, lists and tuples") -> UserError:
    """Returns the error for a name or an operation that a pickle may not contain."""
    fix = "if you trust its source, load it with torch and save its plain values, or its tensors with safetensors"
    return UserError(where, got=shown(got), expected=expected, fix=fix)


def _operand(argument: object) -> str:
    """Formats an opcode's argument for a message; long integers in hexadecimal, as Python limits decimal digits."""
    if type(argument) is int and argument.bit_length() > 64:
        return f" {argument:#x}"
    return "" if argument is None else f" {argument!r}"


def _operations(file: io.BytesIO, where: str) -> Iterator[tuple[str, Any]]:
    """Yields the name and the argument of each opcode."""
    operations = pickletools.genops(file)
    while True:
        try:
            opcode, argument, _ = next(operations)
        except ValueError as error:
            raise damaged(where, error, "a valid pickle") from None
        yield opcode.name, argument


class _Machine:
    """The stack machine that builds a pickle's object."""

    def __init__(self, where: str, allowed: Mapping[str, object], persistent_load: Callable[[object], object]) -> None:
        self._where = where
        self._allowed = allowed
        self._persistent_load = persistent_load
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stack below each mark
        self._memo: dict[int, Any] = {}

    def result(self) -> object:
        if self._below or len(self._stack) != 1:
            raise self._broken("a pickle that ends with several objects or none")
        return self._stack[0]

    def push(self, value: object) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        if not self._stack:
            raise self._broken("an opcode whose operands are missing")
        return self._stack.pop()

    def mark(self, _: None) -> None:
        self._below.append(self._stack)
        self._stack = []

    def pop_marked(self) -> list[Any]:
        if not self._below:
            raise self._broken("an opcode whose MARK is missing")
        values = self._stack
        self._stack = self._below.pop()
        return values

    def put(self, index: int | None) -> None:
        self.push(value := self.pop())
        self._memo[len(self._memo) if index is None else index] = value

    def get(self, index: int) -> None:
        if index not in self._memo:
            raise self._broken(f"memo entry {index}, which is not set")
        self.push(self._memo[index])

    def pack(self, size: int) -> None:
        self.push(tuple([self.pop() for _ in range(size)][::-1]))

    def extend(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def update(self, items: list[Any]) -> None:
        if self._is_inert():
            return
        target = self._top(dict)
        if len(items) % 2:
            raise self._broken("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing a deeply nested tuple would overflow the stack, and long integers can be chosen to collide.
            if type(key) is not str and not (type(key) is int and abs(key) < 2**32):
                raise refusal(self._where, f"a key of type {type(key).__name__}", "keys of type str, or small integers")
            target[key] = value

    def find(self, name: object) -> None:
        if not isinstance(name, str) or name not in self._allowed:
            raise refusal(self._where, f"{name}", "only the names " + ", ".join(self._allowed))
        self.push(self._allowed[name])

    def make(self, _: None) -> None:
        arguments = self.pop()
        kind = self.pop()
        if not isinstance(kind, InertClass) or type(arguments) is not tuple:
            got = f"opcode NEWOBJ for {type(kind).__name__} with {type(arguments).__name__}"
            raise refusal(self._where, got)
        self.push(Inert(kind.name, {}))

    def call(self, _: None) -> None:
        arguments = self.pop()
        function = self.pop()
        if isinstance(function, InertClass) and type(arguments) is tuple:
            self.push(Inert(function.name, {}))
            return
        if not isinstance(function, Function) or type(arguments) is not tuple:
            got = f"a call of {type(function).__name__} with {type(arguments).__name__}"
            raise refusal(self._where, got, "calls of functions with a tuple of arguments")
        self.push(function.call(*arguments))

    def set_state(self, _: None) -> None:
        state = self.pop()
        if self._is_inert():
            if type(state) is dict:
                self._stack[-1].attributes = state
            return
        # The state of an OrderedDict is its attributes, such as a state dict's _metadata.
        self._top(dict)

    def find_persistent(self, _: None) -> None:
        self.push(self._persistent_load(self.pop()))

    def _is_inert(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1], Inert)

    def _top(self, kind: type) -> Any:
        self.push(value := self.pop())
        if type(value) is not kind:
            raise refusal(
                self._where, f"items or attributes for a value of type {type(value).__name__}", f"type {kind.__name__}"
            )
        return value

    def _broken(self, got: str) -> UserError:
        return damaged(self._where, got, "a valid pickle")


def _dotted(machine: _Machine) -> str:
    name = machine.pop()
    module = machine.pop()
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "a name that is no string"


_LITERALS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_STRINGS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING")
_OPCODES: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    **dict.fromkeys((*_LITERALS, *_STRINGS), _Machine.push),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": _Machine.mark,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.get),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.pack(1),
    "TUPLE2": lambda machine, _: machine.pack(2),
    "TUPLE3": lambda machine, _: machine.pack(3),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_marked())),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.pop_marked()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "SETITEM": lambda machine, _: machine.update([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.update(machine.pop_marked()),
    "GLOBAL": lambda machine, argument: machine.find(argument.replace(" ", ".", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.find(_dotted(machine)),
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.make,
    "BUILD": _Machine.set_state,
    "BINPERSID": _Machine.find_persistent,
}
