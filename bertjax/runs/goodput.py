"""Where a run's time went: `goodput.jsonl` in its folder, which goes on over kills and resumptions.

A row is `{"step": 100, "kind": "evaluation", "seconds": 12.3}`: what went to a kind by the time of that step and is not
in the rows before. A row of kind "lost" takes the place of all rows before it that are of later steps: the run was
killed and goes on from the step of that row. So the rows that are left add up to the time that training took, but for
what had not been written at a kill: at most the time of `log_every` steps, a save and an evaluation.
"""

import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bertjax.files import read_records

_log = logging.getLogger(__name__)

FILE = "goodput.jsonl"
# Only the first is what a run is for. Before "init" begins, libraries were loaded and text was prepared.
KINDS = ("step", "init", "compile", "data_wait", "evaluation", "checkpoint", "lost")


class Ledger:
    """Charges each second of training to one kind: to "init" at first, then to "step" unless it is told of another."""

    def __init__(self, workdir: Path, is_writer: bool, compile_seconds: Callable[[], float]) -> None:
        """Args: the run's folder; whether this process writes; for how long programs have been compiled so far."""
        self._workdir, self._is_writer, self._compile_seconds = workdir, is_writer, compile_seconds
        self._spent: dict[str, float] = defaultdict(float)
        self._since, self._compiled = time.perf_counter(), compile_seconds()

    def __enter__(self) -> "Ledger":
        if self._is_writer:
            self._file = (self._workdir / FILE).open("ab+")
            if self._file.tell():  # a line that a kill has torn ends here
                self._file.seek(-1, 2)
                self._file.write(b"" if self._file.read() == b"\n" else b"\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_writer:
            self._file.close()

    @contextlib.contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """Charges what goes on to `kind`, but for the programs that it compiles. Decorates functions, too."""
        self._charge("step")
        self._compiled = self._compile_seconds()
        yield
        self._charge_but_compilation(kind)

    def add_waits(self, data_wait: float, compile_wait: float) -> None:
        """Charges the seconds that a step waited for its batch and for its program to these."""
        self._move("step", "data_wait", data_wait)
        self._move("step", "compile", compile_wait)

    def begin(self, step: int) -> None:
        """Writes what it took to begin, or to go on, after `step`; and what is lost, if the run had got further."""
        self._charge_but_compilation("init")
        self._spent["lost"] = sum(row["seconds"] for row in rows(self._workdir) if row["step"] > step)
        self.write(step)

    def write(self, step: int) -> None:
        """Writes what was spent since it last did so."""
        self._charge("step")
        spent = {kind: round(seconds, 3) for kind, seconds in self._spent.items()}
        lines = [{"step": step, "kind": kind, "seconds": spent[kind]} for kind in KINDS if spent.get(kind, 0) > 0]
        self._spent.clear()
        if self._is_writer:
            self._file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            self._file.flush()

    def tell(self) -> None:
        """Logs what all starts of the run have spent, in a line."""
        if self._is_writer:
            _log.info("%s", describe(summary(self._workdir)))

    def _charge(self, kind: str) -> None:
        now = time.perf_counter()
        self._spent[kind] += now - self._since
        self._since = now

    def _charge_but_compilation(self, kind: str) -> None:
        self._charge(kind)
        self._move(kind, "compile", self._compile_seconds() - self._compiled)

    def _move(self, kind: str, other: str, seconds: float) -> None:
        self._spent[kind] -= seconds
        self._spent[other] += seconds


def rows(workdir: Path) -> list[dict[str, Any]]:
    """The rows of a run that count, in order: those that a later one has written off are left out."""
    counting: list[dict[str, Any]] = []
    for row in read_records(workdir / FILE):
        if row["kind"] == "lost":
            counting = [earlier for earlier in counting if earlier["step"] <= row["step"]]
        counting.append(row)
    return counting


def summary(workdir: Path) -> dict[str, float]:
    """Seconds of each of `KINDS`, over all starts of a run; empty if it has no ledger."""
    seconds = dict.fromkeys(KINDS, 0.0)
    found = rows(workdir)
    for row in found:
        seconds[row["kind"]] = seconds.get(row["kind"], 0.0) + row["seconds"]
    return seconds if found else {}


def describe(seconds: Mapping[str, float]) -> str:
    """A summary in a line, the largest first.

    >>> describe({"step": 91.0, "compile": 6.0, "data_wait": 0.0, "evaluation": 3.0})
    'goodput 91 %: steps 91 s, compile 6 s, evaluation 3 s'
    """
    total = sum(seconds.values())
    parts = sorted(seconds.items(), key=lambda part: (part[0] != "step", -part[1]))
    told = (
        f"{'steps' if kind == 'step' else kind.replace('_', ' ')} {spent:.0f} s"
        for kind, spent in parts
        if spent >= 0.5
    )
    return f"goodput {100 * seconds.get('step', 0) / total:.0f} %: {', '.join(told)}" if total else "goodput: no time"
