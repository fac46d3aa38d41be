"""The updates that are traced, and that their traces are complete."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from bertjax.errors import UserError
from bertjax.training import tracing
from bertjax.training.tracing import parse_steps, traced


class Update(NamedTuple):
    done: int
    state: jax.Array


@pytest.fixture
def events(monkeypatch):
    """The list of events: start of the profiler, updates, end of the profiler."""
    events = []

    class Trace:
        def __init__(self, folder):
            self.folder = folder

        def __enter__(self):
            events.append(str(self.folder))

        def __exit__(self, *error):
            events.append("end")

    monkeypatch.setattr(tracing.jax.profiler, "trace", Trace)
    return events


def updates(events, begun, last):
    for done in range(begun + 1, last + 1):
        events.append(done)
        yield Update(done, jnp.zeros(()))


@pytest.mark.parametrize(
    ("begun", "steps", "expected"),
    [
        (0, "2:3", [1, "to", 2, 3, "end", 4, 5]),
        (0, "1:1", ["to", 1, "end", 2, 3, 4, 5]),
        (2, "2:4", ["to", 3, 4, "end", 5]),  # a resumed run
        (2, "1:2", [3, 4, 5]),
        (0, "4:9", [1, 2, 3, "to", 4, 5, "end"]),  # the run ends before the last one
        (0, "", [1, 2, 3, 4, 5]),
    ],
)
def test_the_requested_steps_are_traced(events, begun, steps, expected):
    seen = [update.done for update in traced(updates(events, begun, 5), begun, parse_steps(steps), Path("to"))]
    assert events == expected
    assert seen == list(range(begun + 1, 6))


def test_a_trace_ends_when_the_run_is_stopped(events):
    for update in traced(updates(events, 0, 5), 0, parse_steps("1:4"), Path("to")):
        if update.done == 2:
            break
    assert events == ["to", 1, 2, "end"]


def test_other_processes_trace_nothing(events, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert len(list(traced(updates(events, 0, 3), 0, parse_steps("1:2"), Path("to")))) == 3
    assert events == [1, 2, 3]


@pytest.mark.parametrize("text", ["5", "5:", ":5", "0:3", "4:3", "a:b", "1:2:3", "-1:3"])
def test_invalid_steps(text):
    with pytest.raises(UserError, match=f"--profile: got '{text}'; expected the first and the last update"):
        parse_steps(text)
