"""Preemption: after SIGTERM, a run saves a checkpoint and stops."""

import itertools
import logging
import signal
from types import FrameType, TracebackType

import jax
from jax.experimental import multihost_utils

_log = logging.getLogger(__name__)


class Preemption:
    """Detects SIGTERM. With several processes, all of them detect it at the same poll.

    If `jax.distributed` is initialized, JAX's handler forwards a signal of any process to all processes. Otherwise a
    handler of this class is installed.
    """

    # The processes agree on a poll number at which to stop, so numbers continue from one run to the next.
    _polls = itertools.count()

    def __init__(self) -> None:
        self._distributed = jax.distributed.is_initialized()
        self._noticed = False

    def __enter__(self) -> "Preemption":
        if not self._distributed:
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._distributed:
            signal.signal(signal.SIGTERM, self._previous)

    def __call__(self) -> bool:
        """Returns whether to stop. All processes must call this equally often."""
        if self._distributed and not self._noticed:
            self._noticed = multihost_utils.reached_preemption_sync_point(next(self._polls))
        return self._noticed

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        _log.warning("got SIGTERM: saving a checkpoint, then stopping")
        self._noticed = True
