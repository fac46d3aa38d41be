import asyncio
import io
import logging
import time
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


def test_the_time_left_excludes_compilation(monkeypatch, caplog):
    clock = SimpleNamespace(now=0.0, compiled=5.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress._LineHandler, "last", 0.0)

    def items():
        for compiled in (88, 0, 18):
            clock.now += 12 + compiled
            clock.compiled += compiled
            yield compiled

    with caplog.at_level(logging.INFO, "bertjax.progress"):
        list(progress.track(items(), "training", "step", 4, progress.pace(4, lambda: clock.compiled)))
    steps = [(1, "00:36"), (2, "00:24"), (3, "00:12")]
    assert caplog.messages == [f"training: step {step}/4, {left} left" for step, left in steps]


def test_a_bar_has_the_expected_time():
    bar = progress._Bar(total=3, file=io.StringIO())
    bar.seconds_left = {1: None, 2: 75.0}.get
    for left in ("?", "01:15"):
        bar.update()
        assert f"<{left}," in str(bar)


def test_a_long_call_without_lines_repeats_the_last_one(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_SIGNS", 0.1)
    with progress.lines_shown(), progress.signs_of_life():
        for message in ("compiling", "drawing"):
            logging.getLogger("bertjax").info(message)
            time.sleep(0.5)
    messages = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert messages[:3] == ["compiling", "compiling: 0 s", "compiling: 0 s"]
    assert messages[-3:] != ["drawing"] * 3 and messages[-2:] == ["drawing: 0 s"] * 2


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
