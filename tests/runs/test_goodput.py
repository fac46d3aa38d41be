"""Each second of training is charged exactly once, even after kills and resumptions."""

import json

import pytest

from bertjax.runs import goodput


class Clock:
    """A clock that tests advance, with the total time of compilation."""

    def __init__(self, monkeypatch):
        self.now = self.compiled = 0.0
        monkeypatch.setattr(goodput.time, "perf_counter", lambda: self.now)

    def spend(self, seconds, compiling=0.0):
        self.now += seconds
        self.compiled += compiling


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def ledger(workdir, clock, is_writer=True):
    return goodput.Ledger(workdir, is_writer, lambda: clock.compiled)


def start(workdir, clock, begun, steps, save_every=4, log_every=2, is_writer=True):
    """A run with steps of 1 s and saves of 0.5 s that is killed after the last of `steps`."""
    with ledger(workdir, clock, is_writer) as book:
        clock.spend(3.0, compiling=1.0)
        book.begin(begun, 0.0)
        save = book.spending("checkpoint")(lambda: clock.spend(0.5))
        for step in range(begun + 1, steps + 1):
            clock.spend(1.0)
            if step % log_every == 0:
                book.write(step)
            if step % save_every == 0:
                save()
                book.write(step)


def kinds(workdir):
    return {kind: seconds for kind, seconds in goodput.summary(workdir).items() if seconds}


def test_time_is_charged_to_its_kind(tmp_path, clock):
    with ledger(tmp_path, clock) as book:
        clock.spend(5.0, compiling=2.0)
        book.begin(0, 0.0)
        clock.spend(10.0, compiling=4.0)
        book.add_waits(data_wait=1.5, compile_wait=4.5)  # compile_wait includes tracing, which compile_seconds does not
        with book.spending("evaluation"):
            clock.spend(2.0, compiling=0.5)
        clock.spend(1.0)
        book.write(7)
        assert book.spent("evaluation") == 1.5
    rows = [json.loads(line) for line in (tmp_path / "goodput.jsonl").read_text().splitlines()]
    assert rows[:2] == [{"step": 0, "kind": "init", "seconds": 3.0}, {"step": 0, "kind": "compile", "seconds": 2.0}]
    assert all(row["step"] == 7 for row in rows[2:])
    assert kinds(tmp_path) == {"step": 5.0, "init": 3.0, "compile": 7.0, "data_wait": 1.5, "evaluation": 1.5}
    assert sum(kinds(tmp_path).values()) == clock.now


def test_the_trained_time_continues_that_of_a_checkpoint(tmp_path, clock):
    with ledger(tmp_path, clock) as book:
        clock.spend(5.0)
        book.begin(3, 20.0)
        clock.spend(10.0)
        book.add_waits(data_wait=1.5, compile_wait=4.5)
        assert book.trained_seconds == 25.5
        with book.spending("evaluation"):
            clock.spend(2.0)
        book.write(4)
        clock.spend(1.0)
        assert book.trained_seconds == 26.5


def test_steps_repeated_after_a_kill_are_lost(tmp_path, clock):
    start(tmp_path, clock, begun=0, steps=6)  # saved after 4, killed after 6
    start(tmp_path, clock, begun=4, steps=7)  # killed after 7; the last step was not written
    start(tmp_path, clock, begun=4, steps=8)
    expected = {"step": 4.0 + 4.0, "init": 6.0, "compile": 3.0, "checkpoint": 1.0, "lost": 2.0 + 2.0}
    assert kinds(tmp_path) == expected
    assert sum(expected.values()) == clock.now - 1.0


def test_deleted_checkpoints_replace_earlier_lost_time(tmp_path, clock):
    start(tmp_path, clock, begun=0, steps=6)
    start(tmp_path, clock, begun=4, steps=8)
    start(tmp_path, clock, begun=0, steps=2)  # both checkpoints were deleted
    assert kinds(tmp_path)["step"] == 2.0
    assert sum(kinds(tmp_path).values()) == clock.now


@pytest.mark.parametrize("torn", ['{"step": 8, "kin', '{"step": 8, "kind": "step", "seconds": 9'])
def test_an_incomplete_line_is_ignored(tmp_path, clock, torn):
    start(tmp_path, clock, begun=0, steps=4)
    with (tmp_path / "goodput.jsonl").open("a") as file:
        file.write(torn)
    before = kinds(tmp_path)
    start(tmp_path, clock, begun=4, steps=6)
    assert kinds(tmp_path) == {**before, "init": 4.0, "compile": 2.0, "step": 6.0}
    assert (tmp_path / "goodput.jsonl").read_text().count("\n") == 9


def test_only_one_process_writes(tmp_path, clock):
    start(tmp_path, clock, begun=0, steps=4, is_writer=False)
    assert not list(tmp_path.iterdir())
    assert goodput.summary(tmp_path) == {}
