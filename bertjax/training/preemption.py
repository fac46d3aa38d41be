"""Being told to stop: SIGTERM asks a run to save and leave."""

import itertools
import logging
import signal
from types import FrameType, TracebackType

import jax
from jax.experimental import multihost_utils

_log = logging.getLogger(__name__)


class Preemption:
    """Notices SIGTERM, on one process or, by agreement at the same poll, on all.

    With `jax.distributed` initialized its own handler takes the signal of any process to all; without it
    a handler of ours does for the one.
    """

    # JAX agrees on the number of a poll at which all stop, so the numbers go on from one run to the next.
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
        """Whether to stop; every process must ask equally often."""
        if self._distributed and not self._noticed:
            self._noticed = multihost_utils.reached_preemption_sync_point(next(self._polls))
        return self._noticed

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        _log.warning("SIGTERM: saving, then leaving")
        self._noticed = True
