"""Progress of long work: a bar when a person is watching, a plain line now and then otherwise."""

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
_SECONDS_BETWEEN_LINES = 30


def show_lines(loggers: Iterable[str]) -> None:
    """Our own lines on standard error. What libraries have to say at length reaches us as an exception."""
    absl_logging.set_verbosity(absl_logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in loggers:
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False


@functools.cache
def tell_once(message: str, level: int = logging.INFO) -> None:
    """Logs what need not be said again, such as what a figure is."""
    _log.log(level, "%s", message)


def track(items: Iterable[T], what: str, unit: str, total: int | None = None) -> Iterator[T]:
    """Yields `items`, showing how many have passed.

    Args:
      items: the work.
      what: its name, in front of the count.
      unit: what is counted.
      total: how many there will be, where that is known.
    """
    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, unit=" " + unit, total=total)
        return
    last = time.monotonic()
    for count, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            _log.info("%s: %d%s %s", what, count, f" of {total}" if total else "", unit)
