"""Traces of updates for XProf or Perfetto, in the folder `profile/` of a run."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from bertjax import distributed
from bertjax.errors import UserError

if TYPE_CHECKING:
    from bertjax.training.trainer import Update

_log = logging.getLogger(__name__)


def parse_steps(text: str) -> range:
    """Returns the updates of a range such as "100:110", counted from 1, including both ends; none for "".

    Raises:
      UserError: if the text is not such a range.
    """
    first, _, last = text.partition(":")
    if not text:
        return range(0)
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        expected = "the first and the last update to trace, counted from 1, such as 100:110"
        raise UserError("--profile", got=repr(text), expected=expected, fix="correct it; ten updates are enough")
    return range(int(first), int(last) + 1)


def traced(updates: Iterator["Update"], begun: int, steps: range, folder: Path) -> Iterator["Update"]:
    """Yields the updates, and traces the requested steps on process 0.

    The trace includes the time between the steps.

    Args:
      updates: the updates after the first `begun`.
      begun: the number of updates before, in a resumed run.
      steps: the numbers of the updates to trace; those up to `begun` are skipped.
      folder: the folder of the trace.
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
                _log.info("wrote the trace of steps %d to %d to %s", ahead.start, begun, folder)
            yield update
