"""Preemption: after SIGTERM or Ctrl-C, a run saves a checkpoint and stops."""

import contextlib
import itertools
import logging
import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils

_log = logging.getLogger(__name__)


class Preemption:
    """Detects SIGTERM and the first Ctrl-C; a second Ctrl-C raises KeyboardInterrupt.

    With several processes, all of them detect it at the same poll: if `jax.distributed` is initialized, JAX's handler
    forwards a SIGTERM of any process to all processes.
    """

    # The processes agree on a poll number at which to stop, so numbers continue from one run to the next.
    _polls = itertools.count()

    def __init__(self) -> None:
        self._distributed = jax.distributed.is_initialized()
        self._noticed = False
        self._signals = (signal.SIGINT,) if self._distributed else (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> "Preemption":
        self._previous = {number: signal.signal(number, self._on_signal) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Returns whether to stop. All processes must call this equally often."""
        if self._distributed and not self._noticed:
            self._noticed = multihost_utils.reached_preemption_sync_point(next(self._polls))
        return self._noticed

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._distributed:
            signal.raise_signal(signal.SIGTERM)
        else:
            self._noticed = True
        message = "got %s: saving a checkpoint, then stopping; Ctrl-C stops at once"
        with contextlib.suppress(RuntimeError):  # raised if the signal interrupts the writing of another message
            _log.warning(message, signal.Signals(number).name)
