"""Log lines, and progress of long work: a bar on a terminal, otherwise occasional log lines."""

import functools
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from absl import logging as absl_logging
from tqdm import tqdm

_log = logging.getLogger(__name__)

T = TypeVar("T")
_EARLY_SECONDS = 300
_SECONDS_BETWEEN_LINES = {True: 10, False: 30}  # early on, and later


class _LineHandler(logging.StreamHandler):
    """Writes lines to standard error, above progress bars.

    Attributes:
      last: when the last line was written, by `time.monotonic`.
    """

    last = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        _LineHandler.last = time.monotonic()
        with tqdm.external_write_mode(sys.stderr):
            super().emit(record)


def show_lines(loggers: Iterable[str]) -> None:
    """Writes the lines of these loggers to standard error. Disables log lines of libraries, whose errors are raised."""
    absl_logging.set_verbosity(absl_logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    handler = _LineHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in loggers:
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False


def amount(name: str, value: float) -> str:
    """Formats an amount such as tokens, flops or hours.

    >>> amount("tokens", 1.5e6), amount("flops", 2e15), amount("hours", 0.25)
    ('1.50M tokens', '2.00P flops', '0.25 hours')
    """
    return f"{value:.3g} {name}" if name == "hours" else f"{tqdm.format_sizeof(value)} {name}"


@functools.cache
def log_once(message: str, level: int = logging.INFO) -> None:
    """Logs a message, unless this process has already logged it."""
    _log.log(level, "%s", message)


def track(items: Iterable[T], what: str, unit: str, total: int | None = None) -> Iterator[T]:
    """Yields `items` and shows progress: a bar on a terminal, otherwise a log line after 10 seconds without one.

    After five minutes, it is a log line after 30 seconds.

    Args:
      items: the work.
      what: its name.
      unit: the name of an item, in the singular.
      total: the number of items, if it is known.
    """
    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, unit=" " + unit, total=total, dynamic_ncols=True)
        return
    started = began = time.monotonic()
    before = 0
    for count, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - max(began, _LineHandler.last) > _SECONDS_BETWEEN_LINES[now - started < _EARLY_SECONDS]:
            left = (now - began) / (count - before) * (total - count) if total else 0.0
            of_total = f"/{total}, {tqdm.format_interval(left)} left" if total else ""
            _log.info("%s: %s %d%s", what, unit, count, of_total)
            began, before = now, count  # the first items are slow: they compile
