import logging
from types import SimpleNamespace

from bertjax import progress


def test_a_line_names_the_item_and_the_total(monkeypatch, caplog):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", {True: -1})
    with caplog.at_level(logging.INFO, "bertjax.progress"):
        assert list(progress.track("a", "counting words", "block")) == ["a"]
        assert list(progress.track("ab", "training", "step", 2)) == ["a", "b"]
    assert caplog.messages == [
        "counting words: block 1",
        "training: step 1/2, 00:00 left",
        "training: step 2/2, 00:00 left",
    ]


def test_the_time_left_follows_the_pace_since_the_last_line(monkeypatch, caplog):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress._LineHandler, "last", 0.0)

    def items():
        for seconds in (100, 9, 2, 189, 20, 11):  # the first item compiles
            clock.now += seconds
            yield seconds

    with caplog.at_level(logging.INFO, "bertjax.progress"):
        assert list(progress.track(items(), "training", "step", 10)) == [100, 9, 2, 189, 20, 11]
    steps = [(1, "15:00"), (3, "00:38"), (4, "18:54"), (6, "01:02")]  # at first after 10 seconds, later after 30
    assert caplog.messages == [f"training: step {step}/10, {left} left" for step, left in steps]
