"""The time of a run by kind of work, in `goodput.jsonl` in its folder, over all starts of the run.

A row is `{"step": 100, "kind": "evaluation", "seconds": 12.3}`: the time spent on a kind until that step since its
previous row. A row of kind "lost" replaces all earlier rows with later steps: the run was killed and resumed from the
step of that row. So the remaining rows add up to the total time of training, except time that was not yet written at a
kill: at most that of `log_every` steps, a save and an evaluation.
"""

import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.files import read_records

_log = logging.getLogger(__name__)

FILE = "goodput.jsonl"
# Only "step" is productive. The time before "init", for loading libraries and preparing text, is not counted.
KINDS = ("step", "init", "compile", "data_wait", "evaluation", "checkpoint", "lost")


class Ledger:
    """Charges each second of training to one kind: first "init", then "step" unless `spending` another kind."""

    def __init__(self, workdir: Path, is_writer: bool, compile_seconds: Callable[[], float]) -> None:
        """Starts the clock.

        Args:
          workdir: the run's folder.
          is_writer: whether this process writes the file.
          compile_seconds: returns the total time of compilation so far.
        """
        self._workdir = workdir
        self._is_writer = is_writer
        self._compile_seconds = compile_seconds
        self._spent: dict[str, float] = defaultdict(float)
        self._written: dict[str, float] = {}
        self._since = time.perf_counter()
        self._compiled = compile_seconds()
        self._trained = 0.0

    def __enter__(self) -> "Ledger":
        if self._is_writer:
            self._file = (self._workdir / FILE).open("ab+")
            if self._file.tell():  # ends an incomplete line of a killed process
                self._file.seek(-1, 2)
                self._file.write(b"" if self._file.read() == b"\n" else b"\n")
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_writer:
            self._file.close()

    @contextlib.contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """Charges the time inside the context to `kind`, except for compilation. Also works as a decorator."""
        self._charge("step")
        self._compiled = self._compile_seconds()
        yield
        self._charge_but_compilation(kind)

    def add_waits(self, data_wait: float, compile_wait: float) -> None:
        """Charges a step's waiting time for its batch to "data_wait", and for its program to "compile"."""
        self._move("step", "data_wait", data_wait)
        self._move("step", "compile", compile_wait)

    @property
    def trained_seconds(self) -> float:
        """The time of steps, waiting for batches included, over all starts of the run, without lost time."""
        self._charge("step")
        return self._trained + self._spent["step"] + self._spent["data_wait"]

    def spent(self, kind: str) -> float:
        """Returns the time of a kind other than "step" since this start of the run."""
        return self._spent[kind]

    def begin(self, step: int, trained_seconds: float) -> None:
        """Writes the time of a start or resumption after `step`, and the lost time of later steps of a killed run.

        Args:
          step: the number of updates made.
          trained_seconds: the value of `trained_seconds` after them.
        """
        self._charge_but_compilation("init")
        self._trained = trained_seconds
        self._spent["lost"] = sum(row["seconds"] for row in rows(self._workdir) if row["step"] > step)
        self.write(step)

    def write(self, step: int) -> None:
        """Writes the time spent since the last write."""
        self._charge("step")
        spent = {kind: round(seconds - self._written.get(kind, 0.0), 3) for kind, seconds in self._spent.items()}
        lines = [{"step": step, "kind": kind, "seconds": spent[kind]} for kind in KINDS if spent.get(kind, 0) > 0]
        self._written = dict(self._spent)
        if self._is_writer:
            self._file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            self._file.flush()

    def log_summary(self) -> None:
        """Logs the total time of all starts of the run by kind, in one line."""
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
    """Returns the valid rows of a run, in order: those that no later row of kind "lost" replaces."""
    valid: list[dict[str, Any]] = []
    for row in read_records(workdir / FILE):
        if row["kind"] == "lost":
            valid = [earlier for earlier in valid if earlier["step"] <= row["step"]]
        valid.append(row)
    return valid


def summary(workdir: Path) -> dict[str, float]:
    """Returns the seconds of each kind over all starts of a run; empty if the run has no `goodput.jsonl`."""
    seconds = dict.fromkeys(KINDS, 0.0)
    entries = rows(workdir)
    for entry in entries:
        seconds[entry["kind"]] = seconds.get(entry["kind"], 0.0) + entry["seconds"]
    return seconds if entries else {}


def describe(seconds: Mapping[str, float]) -> str:
    """Returns a summary as one line, with steps first and then the largest parts.

    >>> describe({"step": 91.0, "compile": 6.0, "data_wait": 0.0, "evaluation": 3.0})
    'goodput 91 %: steps 91 s, compile 6 s, evaluation 3 s'
    """
    total = sum(seconds.values())
    parts = sorted(seconds.items(), key=lambda part: (part[0] != "step", -part[1]))
    texts = (
        f"{'steps' if kind == 'step' else kind.replace('_', ' ')} {spent:.0f} s"
        for kind, spent in parts
        if spent >= 0.5
    )
    return f"goodput {100 * seconds.get('step', 0) / total:.0f} %: {', '.join(texts)}" if total else "goodput: no time"
