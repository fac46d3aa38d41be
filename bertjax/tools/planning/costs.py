"""Costs of a compiled step per device: operations, memory traffic and communication.

XLA's own `cost_analysis` counts the body of a loop once; this module counts every iteration.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bertjax.tools.planning import attribution
from bertjax.tools.planning.hlo import COLLECTIVES, Computation, Instruction, Program, device_groups, parse
from bertjax.tools.planning.kernels import is_unknown
from bertjax.tools.planning.products import product_flops
from bertjax.tools.planning.traffic import memory_traffic

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


class Collective(NamedTuple):
    """A communication between devices."""

    kind: str  # one of `hlo.COLLECTIVES`
    num_bytes: int  # bytes of each device's result, or of its input for a reduction
    groups: tuple[tuple[int, ...], ...]  # the devices of each group
    times: int  # number of executions in a step

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends in a step, in rings: (n - 1) / n of the bytes, twice for an all-reduce."""
        size = len(self.groups[0])
        share = 1.0 if self.kind == "collective-permute" else (size - 1) / size
        return self.times * self.num_bytes * share * (2 if self.kind == "all-reduce" else 1)


class Work(NamedTuple):
    """The cost of an executed instruction, per device."""

    part: str  # of the model, see `attribution.part_of`
    kind: str  # see `attribution.kind_of`
    flops: float  # operations of matrix products
    hbm_bytes: int  # bytes read from and written to main memory
    cycles: int | None  # the TPU compiler's estimate; None for kernels and others that it does not estimate
    times: int  # number of executions in a step
    is_unknown: bool = False  # whether it is a kernel whose operations are unknown


class Costs(NamedTuple):
    """The costs of a step per device."""

    works: list[Work]
    collectives: Mapping[str, Collective]  # by identifier
    uncounted_loops: int  # loops with an unknown number of iterations; counted as one iteration

    @property
    def flops(self) -> float:
        """Operations of matrix products, including recomputation."""
        return sum(work.times * work.flops for work in self.works)

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from and written to main memory."""
        return sum(work.times * work.hbm_bytes for work in self.works)

    @property
    def cycles(self) -> int:
        """Sum of the TPU compiler's estimates for computation; 0 from other compilers."""
        return sum(work.times * (work.cycles or 0) for work in self.works)

    @property
    def unknown_kernels(self) -> int:
        """Executions of kernels whose operations are unknown and count as 0. Their bytes are counted."""
        return sum(work.times for work in self.works if work.is_unknown)


def step_costs(text: str, num_devices: int) -> Costs:
    """Returns the costs of a program, given its text (`compiled.as_text()`) and the number of devices."""
    program = parse(text)
    return _Reader(program, num_devices).computation(program.computations[program.entry])


class _Reader:
    """Adds up the costs of a program, beginning at its entry computation."""

    def __init__(self, program: Program, num_devices: int) -> None:
        self._program = program
        self._num_devices = num_devices

    def computation(self, computation: Computation, caller: str = "") -> Costs:
        """The costs of the instructions of an executed computation that is called by the named operation."""
        works: list[Work] = []
        collectives: dict[str, Collective] = {}  # two of one channel are the parts of one
        uncounted = 0
        for instruction in computation.instructions.values():
            costs = self._instruction(computation, instruction, caller)
            works += costs.works
            collectives |= costs.collectives
            uncounted += costs.uncounted_loops
        return Costs(works, collectives, uncounted)

    def _instruction(self, inside: Computation, instruction: Instruction, caller: str) -> Costs:
        opcode = instruction.opcode
        called = self._program.called
        if opcode == "while":
            return self._loop(instruction)
        if opcode == "conditional":
            branches = called(instruction, "branch_computations", "true_computation", "false_computation")
            costs = (self.computation(branch, instruction.op_name) for branch in branches)
            return max(costs, key=lambda cost: cost.hbm_bytes)
        if opcode in ("call", "async-start"):
            (computation,) = called(instruction, "to_apply", "calls")
            return self.computation(computation, caller)
        contents = list(self._program.contents(inside, instruction))
        work = Work(
            attribution.part_of(inside, instruction, contents, caller),
            attribution.kind_of(instruction, contents),
            sum(product_flops(*content) for content in contents),
            memory_traffic(self._program, inside, instruction),
            _cycles(instruction, contents),
            1,
            any(is_unknown(inner) for _, inner in contents),
        )
        return Costs([work], dict(self._collectives(contents)), 0)

    def _collectives(self, contents: attribution.Content) -> Iterator[tuple[str, Collective]]:
        for inside, instruction in contents:
            kind = instruction.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                yield instruction.channel, self._collective(kind, inside, instruction)

    def _loop(self, loop: Instruction) -> Costs:
        (body,) = self._program.called(loop, "body")
        iterations = self._iterations(loop)
        costs = self.computation(body, loop.op_name)
        times = iterations or 1
        collectives = {
            f"{loop.name}/{key}": call._replace(times=call.times * times) for key, call in costs.collectives.items()
        }
        uncounted = costs.uncounted_loops + (iterations is None)
        return Costs([work._replace(times=work.times * times) for work in costs.works], collectives, uncounted)

    def _iterations(self, loop: Instruction) -> int | None:
        """A loop's number of iterations, from the compiler's note or from a condition on a counter that starts at 0."""
        if match := re.search(r'"known_trip_count":\s*\{"n":\s*"(\d+)"', loop.rest):
            return int(match[1])
        (condition,) = self._program.called(loop, "condition")
        test = condition.root
        if test.opcode == "fusion":
            (test,) = (called.root for called in self._program.called(test, "calls"))
        limits = [i for i in condition.instructions.values() if i.opcode == "constant" and i.results[0].dims == ()]
        if test.opcode == "compare" and "direction=LT" in test.rest and len(limits) == 1:
            return int(limits[0].inside)
        return None

    def _collective(self, kind: str, inside: Computation, instruction: Instruction) -> Collective:
        groups = device_groups(instruction, self._num_devices)
        if inside.name.startswith("all-reduce-scatter"):  # the TPU compiler's form of a reduce-scatter
            kind = "reduce-scatter"
        size = sum(shape.num_bytes for shape in inside.shapes(instruction.operands))
        return Collective(kind, size * (len(groups[0]) if kind == "all-gather" else 1), groups, 1)


def _cycles(instruction: Instruction, contents: attribution.Content) -> int | None:
    """The compiler's estimate. Copies that run beside other instructions, and collectives, count as 0."""
    if match := _CYCLES.search(instruction.rest):
        return int(match[1])
    is_beside = any(inner.opcode.endswith(("-start", "-done", *COLLECTIVES)) for _, inner in contents)
    return 0 if is_beside else None
