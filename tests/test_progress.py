import asyncio
import logging
from types import SimpleNamespace

from absl import logging as absl_logging

from bertjax import progress


def test_a_line_names_the_item_and_the_total(monkeypatch, caplog):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", {True: -1})
    with caplog.at_level(logging.INFO, "bertjax.progress"):
        assert list(progress.track("a", "counting words", "block")) == ["a"]
        assert list(progress.track("ab", "training", "step", 2)) == ["a", "b"]
    steps = [f"training: step {step}/2, 00:00 left" for step in (1, 2)]
    assert caplog.messages == ["counting words: block 1", *steps]


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


def test_writes_that_end_after_a_failed_save_print_nothing():
    loop = progress._EventLoop()
    loop.close()
    loop.call_soon_threadsafe(print)


def test_a_message_that_is_disabled_is_logged_the_next_time(caplog):
    progress._logged.clear()
    logging.disable(logging.WARNING)
    progress.log_once("split 1 of 2", logging.WARNING)
    logging.disable(logging.NOTSET)
    for _ in range(2):
        progress.log_once("split 1 of 2", logging.WARNING)
    assert caplog.messages == ["split 1 of 2"]


def test_lines_are_shown_only_inside_the_context(capsys):
    def state():
        log = logging.getLogger("bertjax")
        libraries = logging.getLogger("asyncio").level, absl_logging.get_verbosity(), asyncio.get_event_loop_policy()
        return log.level, log.propagate, list(log.handlers), libraries

    before = state()
    for _ in range(2):
        with progress.lines_shown():
            logging.getLogger("bertjax.progress").info("a line")
    assert capsys.readouterr().err.count("a line\n") == 2
    assert state() == before
