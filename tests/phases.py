"""A pytest plugin that reports the CPU time of the tests by phase: `pytest -p tests.phases [--phases=FILE]`.

CPU seconds are the user and system time of the test processes and of their child processes. Tracing, lowering and
compilation are wall time inside the test processes, as reported by JAX; they can exceed CPU time on a busy machine.
"""

import dataclasses
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_COLUMNS = ("cpu", "children", *_EVENTS.values(), "cache_hits", "cache_misses")
_ROWS = 40  # of each table
_BEFORE = pytest.StashKey[dict[str, float]]()


@dataclasses.dataclass
class _Clock:
    """The time that this process has spent in each phase since it started."""

    spent: dict[str, float] = dataclasses.field(default_factory=lambda: defaultdict(float))
    spans: dict[str, list[tuple[float, float]]] = dataclasses.field(default_factory=lambda: defaultdict(list))

    def on_duration(self, event: str, seconds: float, **_: Any) -> None:
        if event not in _EVENTS:
            return
        # Traces nest and the inner ones end first, so the time of inner traces is subtracted.
        name, start = _EVENTS[event], time.perf_counter() - seconds
        inner = self.spans[name]
        while inner and inner[-1][0] >= start:
            self.spent[name] -= inner.pop()[1]
        inner.append((start, seconds))
        self.spent[name] += seconds

    def on_event(self, event: str, **_: Any) -> None:
        self.spent[event.rsplit("/", 1)[1]] += 1  # cache_hits and cache_misses among others

    def read(self) -> dict[str, float]:
        times = os.times()
        cpu = {"cpu": times.user + times.system, "children": times.children_user + times.children_system}
        return cpu | {name: self.spent[name] for name in _COLUMNS if name not in cpu}


_clock = _Clock()
_rows: list[dict[str, Any]] = []
_started: list[float] = []  # CPU seconds of each test process before its first test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--phases", help="also write a JSON line for each step of each test to this file")


def pytest_sessionstart() -> None:
    import jax.monitoring  # only now: conftest.py sets environment variables that JAX reads on import

    jax.monitoring.register_event_duration_secs_listener(_clock.on_duration)
    jax.monitoring.register_event_listener(_clock.on_event)


def pytest_collection_finish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is None:
        _started.append(_clock.read()["cpu"])
    else:
        output["started"] = _clock.read()["cpu"]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if "started" in getattr(node, "workeroutput", {}):
        _started.append(node.workeroutput["started"])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    item.config.stash[_BEFORE] = _clock.read()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    before, now = item.config.stash[_BEFORE], _clock.read()
    report.user_properties = [*report.user_properties, ("phases", {name: now[name] - before[name] for name in now})]
    item.config.stash[_BEFORE] = now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    phases = dict(report.user_properties).get("phases")
    if phases is not None:
        _rows.append({"test": report.nodeid, "step": report.when, **phases})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("phases"):
        Path(config.getoption("phases")).write_text("".join(json.dumps(row) + "\n" for row in _rows))
    write = terminalreporter.write_line
    total = {name: sum(row[name] for row in _rows) for name in _COLUMNS}
    inside = total["trace"] + total["lower"] + total["compile"]
    programs = f"{total['cache_misses']:.0f} programs, {total['cache_hits']:.0f} more from the cache"
    terminalreporter.section("CPU seconds by phase")
    write(f"{sum(_started):8.1f}  start of {len(_started)} processes: imports and collection")
    write(f"{total['trace']:8.1f}  tracing")
    write(f"{total['lower']:8.1f}  lowering")
    write(f"{total['compile']:8.1f}  compilation: {programs}")
    write(f"{total['cpu'] - inside:8.1f}  everything else in the test processes")
    write(f"{total['children']:8.1f}  processes that tests start")
    write(f"{sum(_started) + total['cpu'] + total['children']:8.1f}  total")
    _write_table(write, "test files", lambda row: row["test"].split("::")[0])
    _write_table(write, "tests with their fixtures", lambda row: row["test"])


def _write_table(write: Callable[[str], None], title: str, group: Callable[[dict[str, Any]], str]) -> None:
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in _rows:
        for column in _COLUMNS[:5]:
            sums[group(row)][column] += row[column]
    write("")
    write(f"{'CPU':>8}{'children':>10}{'trace':>8}{'lower':>8}{'compile':>9}  the slowest {title}")
    slowest = sorted(sums.items(), key=lambda item: -item[1]["cpu"] - item[1]["children"])[:_ROWS]
    for name, row in slowest:
        columns = zip(_COLUMNS, (8, 10, 8, 8, 9), strict=False)
        write("".join(f"{row[column]:{width}.1f}" for column, width in columns) + f"  {name}")
