"""Log lines, and progress of long work: a bar on a terminal, otherwise occasional log lines."""

import asyncio
import contextlib
import contextvars
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from absl import logging as absl_logging
from tqdm import tqdm

_log = logging.getLogger(__name__)

T = TypeVar("T")
SecondsLeft = Callable[[int], float | None]  # the expected time after a number of items; None if it is not known
_EARLY_SECONDS = 300
_SECONDS_BETWEEN_SIGNS = 9.0
_SECONDS_BETWEEN_LINES = {True: 10, False: 30}  # early on, and later
_logged = set[str]()  # the messages of `log_once`


class _LineHandler(logging.StreamHandler):
    """Writes lines to standard error, above progress bars.

    Attributes:
      last: when the last line was written, by `time.monotonic`.
      message: its message.
    """

    last = 0.0
    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        _LineHandler.last = time.monotonic()
        _LineHandler.message = record.getMessage()
        with tqdm.external_write_mode(sys.stderr):
            super().emit(record)


class _EventLoop(asyncio.SelectorEventLoop):
    """Ignores callbacks after it is closed.

    If a write of a checkpoint fails, Orbax closes the loop and raises the error, and the writes that end later would
    print a traceback each.
    """

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedules the callback, or returns a handle that never runs it if the loop is closed."""
        if self.is_closed():
            return asyncio.Handle(callback, args, self)
        return super().call_soon_threadsafe(callback, *args, context=context)


class _EventLoopPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Returns a loop that ignores callbacks after it is closed."""
        return _EventLoop()


@contextlib.contextmanager
def lines_shown() -> Iterator[None]:
    """Writes log lines to standard error. Disables log lines of libraries, whose errors are raised."""
    log = logging.getLogger("bertjax")
    of_asyncio = logging.getLogger("asyncio")
    before = log.level, of_asyncio.level, log.propagate, absl_logging.get_verbosity(), asyncio.get_event_loop_policy()
    handler = _LineHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    try:
        _set_logging(logging.INFO, logging.CRITICAL, False, absl_logging.FATAL, _EventLoopPolicy())
        yield
    finally:
        log.removeHandler(handler)
        _set_logging(*before)


def _set_logging(
    level: int, of_asyncio: int, propagate: bool, of_absl: int, policy: asyncio.AbstractEventLoopPolicy
) -> None:
    """Sets the levels of our logger, of asyncio's and of absl's, and what else `lines_shown` changes."""
    logging.getLogger("bertjax").setLevel(level)
    logging.getLogger("bertjax").propagate = propagate
    logging.getLogger("asyncio").setLevel(of_asyncio)
    absl_logging.set_verbosity(of_absl)
    asyncio.set_event_loop_policy(policy)


def amount(name: str, value: float) -> str:
    """Formats an amount such as tokens, flops or hours.

    >>> amount("tokens", 1.5e6), amount("flops", 2e15), amount("hours", 0.25)
    ('1.50M tokens', '2.00P flops', '0.25 hours')
    """
    return f"{value:.3g} {name}" if name == "hours" else f"{tqdm.format_sizeof(value)} {name}"


@contextlib.contextmanager
def signs_of_life() -> Iterator[None]:
    """Repeats the last log line with the seconds since then, whenever there is no other line for about ten seconds.

    It is for calls that log nothing for minutes, such as those of a compiler: a thread logs meanwhile.
    """
    is_over = threading.Event()
    thread = threading.Thread(target=_repeat, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _repeat(is_over: threading.Event) -> None:
    """Logs the lines of `signs_of_life`."""
    repeated = message = _LineHandler.message
    since = time.monotonic()
    while not is_over.wait(_SECONDS_BETWEEN_SIGNS / 9):
        if _LineHandler.message != repeated:
            message = _LineHandler.message
            since = _LineHandler.last
        if message and time.monotonic() - _LineHandler.last >= _SECONDS_BETWEEN_SIGNS:
            repeated = f"{message}: {time.monotonic() - since:.0f} s"
            _log.info("%s", repeated)


def log_once(message: str, level: int = logging.INFO) -> None:
    """Logs a message, unless this process has already logged it. A message that is disabled has not been logged."""
    if message not in _logged and _log.isEnabledFor(level):
        _logged.add(message)
        _log.log(level, "%s", message)


class _Bar(tqdm):
    """A bar whose time left is that of `seconds_left`. Without an expectation, it is "?"."""

    seconds_left: SecondsLeft

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the bar shows. The time left follows from the rate."""
        values = super().format_dict
        if self.total and self.n < self.total:
            seconds = self.seconds_left(self.n) if self.n else None
            values["rate"] = (self.total - self.n) / seconds if seconds else 0.0
        return values


def pace(total: int, idle: Callable[[], float] = lambda: 0.0) -> SecondsLeft:
    """Returns a function that expects the mean time of an item so far for each further one.

    Args:
      total: the number of items.
      idle: returns the seconds so far that count for no item, such as those of compilation.
    """
    began = time.monotonic() - idle()
    return lambda count: (time.monotonic() - began - idle()) / count * (total - count)


def track(
    items: Iterable[T], what: str, unit: str, total: int | None = None, seconds_left: SecondsLeft | None = None
) -> Iterator[T]:
    """Yields `items` and shows progress: a bar on a terminal, otherwise a log line after 10 seconds without one.

    After five minutes, it is a log line after 30 seconds.

    Args:
      items: the work.
      what: its name.
      unit: the name of an item, in the singular.
      total: the number of items, if it is known.
      seconds_left: the expected time, if the total is known. Default: `pace`.
    """
    seconds_left = seconds_left or pace(total or 0)
    if sys.stderr.isatty():
        bar = _Bar(items, desc=what, unit=" " + unit, total=total, dynamic_ncols=True)
        bar.seconds_left = seconds_left
        yield from bar
        return
    started = began = time.monotonic()
    for count, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - max(began, _LineHandler.last) > _SECONDS_BETWEEN_LINES[now - started < _EARLY_SECONDS]:
            seconds = seconds_left(count) if total else None
            of_total = f"/{total}" if total else ""
            expected = "" if seconds is None else f", {tqdm.format_interval(seconds)} left"
            _log.info("%s: %s %d%s%s", what, unit, count, of_total, expected)
            began = now
