"""A trace of some updates, for XProf or Perfetto: in the folder `profile/` of a run."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax

from bertjax import distributed
from bertjax.errors import UserError

_log = logging.getLogger(__name__)


class _Update(Protocol):
    @property
    def done(self) -> int: ...  # updates, with this one

    @property
    def state(self) -> Any: ...


T = TypeVar("T", bound=_Update)


def parse_steps(text: str) -> range:
    """The updates that "100:110" stands for, counted from 1, both ends included; none for "". Raises UserError."""
    first, _, last = text.partition(":")
    if not text:
        return range(0)
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        expected = "the first and the last update to trace, counted from 1: 100:110"
        raise UserError("--profile", got=repr(text), expected=expected, fix="correct it; ten updates are plenty")
    return range(int(first), int(last) + 1)


def traced(updates: Iterator[T], begun: int, steps: range, folder: Path) -> Iterator[T]:
    """Yields updates, each as soon as it is on its way, and traces some on process 0, with what goes on between them.

    Args:
      updates: those after the first `begun`.
      begun: how many a resumed run has made before.
      steps: the numbers of those to trace, as far as they are still to come.
      folder: for the trace.
    """
    ahead = range(max(steps.start, begun + 1), steps.stop)
    if not ahead or not distributed.is_first_process():
        yield from updates
        return
    with contextlib.ExitStack() as tracing:
        while True:
            begun += 1
            if begun == ahead.start:
                tracing.enter_context(jax.profiler.trace(folder))
            with jax.profiler.StepTraceAnnotation("train", step_num=begun):
                update = next(updates, None)
            if update is None:
                return
            if begun == ahead.stop - 1:
                jax.block_until_ready(update.state)
                tracing.close()
                _log.info("traced steps %d to %d in %s", ahead.start, begun, folder)
            yield update
