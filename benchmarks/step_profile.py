"""Time of our training step on a CPU, by kind of operation.

The trace contains the duration of each compiled operation, and the compiled program its contents. An operation that
fuses several kinds counts as the first of `KINDS` that it contains.
"""

import collections
import contextlib
import gzip
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks import common

# Kinds of operations, and their opcodes.
KINDS = {
    "matrix product": {"dot", "convolution", "custom-call"},
    "random numbers": {"rng-bit-generator", "shift-right-logical"},
    "gather, scatter, slice": {"gather", "scatter", "dynamic-slice", "dynamic-update-slice", "sort"},
    "reduction": {"reduce", "reduce-window"},
    "element-wise": {"add", "multiply", "subtract", "divide", "maximum", "select", "exponential", "convert", "compare"},
    "copy": {"copy", "broadcast", "transpose", "concatenate", "slice", "pad", "iota", "bitcast", "reshape", "reverse"},
}
_STEPS = 3
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = .*?[\])}] ([a-z][a-z-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.-]+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+)[^=]*\{$")
# Operations whose time is that of the operations inside them.
_CONTROL = {"while", "conditional", "call", "parameter", "tuple", "get-tuple-element", "constant"}


@contextlib.contextmanager
def dumped_programs() -> Iterator[Callable[[], str]]:
    """Yields a function that returns the newest compiled training step. Enter it before JAX starts its devices."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_step"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
        # A cached step is not dumped.
        jax.config.update("jax_enable_compilation_cache", False)
        pattern = "*jit_step*after_optimizations.txt"
        yield lambda: max(Path(folder).glob(pattern), key=lambda path: path.stat().st_mtime_ns).read_text()


def trace(step: common.OurStep) -> tuple[dict[str, float], float]:
    """Returns the seconds of each operation in a step, on the thread that starts it, and of the whole step."""
    with tempfile.TemporaryDirectory() as name, recorded(Path(name)) as events:
        began = time.perf_counter()
        for _ in range(_STEPS):
            step()
        wall = time.perf_counter() - began
    seconds = own_seconds(event for event in events if "hlo_op" in event.get("args", {}))
    return {name: value / _STEPS for name, value in seconds.items()}, wall / _STEPS


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Writes a trace to a folder. Yields a list, which contains the events of the trace afterwards."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    events: list[dict[str, Any]] = []
    with jax.profiler.trace(folder, profiler_options=options):
        yield events
    newest = max(folder.rglob("*.trace.json.gz"), key=lambda path: path.stat().st_mtime_ns)
    events.extend(json.loads(gzip.decompress(newest.read_bytes()))["traceEvents"])


def own_seconds(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the seconds of each operation, without those of operations inside it on its thread."""
    seconds: dict[str, float] = collections.defaultdict(float)
    open_until: dict[Any, list[tuple[float, str]]] = collections.defaultdict(list)
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        stack, end = open_until[event["tid"]], event["ts"] + event["dur"]
        while stack and stack[-1][0] <= event["ts"]:
            stack.pop()
        if stack:
            seconds[stack[-1][1]] -= event["dur"] / 1e6
        name = event["args"]["hlo_op"]
        seconds[name] += event["dur"] / 1e6
        stack.append((end, name))
    return seconds


def kinds(program: str) -> dict[str, str]:
    """Returns the kind of each instruction of a compiled program, from its text."""
    opcodes: dict[str, set[str]] = collections.defaultdict(set)  # of each computation
    instructions: dict[str, tuple[str, str | None]] = {}
    computation = ""
    for line in program.splitlines():
        if found := _COMPUTATION.match(line):
            computation = found[1]
        elif found := _INSTRUCTION.match(line):
            called = _CALLED.search(line)
            instructions[found[1]] = (found[2], called[1] if called else None)
            opcodes[computation] |= {found[2]}

    def kind(opcode: str, called: str | None) -> str:
        if opcode in _CONTROL and opcode != "call":
            return "control"
        parts = {opcode} | (opcodes[called] if called and opcode in ("fusion", "call", "custom-call") else set())
        return next((name for name, members in KINDS.items() if parts & members), "other")

    return {name: kind(*instruction) for name, instruction in instructions.items()}


def report(kind_of: Mapping[str, str], seconds: Mapping[str, float]) -> str:
    """Formats milliseconds and shares by kind, with the three longest operations of each."""
    total = sum(seconds.values())
    rows = []
    by_kind: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for name, value in seconds.items():
        by_kind[kind_of.get(name, "unknown")][name] = value
    for kind, operations in sorted(by_kind.items(), key=lambda item: -sum(item[1].values())):
        longest = sorted(operations, key=lambda name: -operations[name])[:3]
        names = ", ".join(f"{name} {operations[name] * 1e3:.0f}" for name in longest)
        value = sum(operations.values())
        rows.append([kind, f"{value * 1e3:,.0f}", f"{value / total:.0%}", names])
    return common.table(["kind", "ms a step", "share", "longest"], rows)
