"""One batch ahead: it is made and sent to the devices while they still work on the one before."""

import concurrent.futures
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import jax

from bertjax.contract import Batch


class Prefetch:
    """Takes batches from an iterator to the devices, in a thread."""

    def __init__(self, batches: Iterator[Batch], put: Callable[[Batch], Any]) -> None:
        """Args: host batches, without end; what sends one to the devices."""
        self._batches, self._put = batches, put
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "prefetch")
        self._next = self._pool.submit(self._make)

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, busy: Any) -> tuple[Any, float]:
        """The next batch, and the seconds that the devices were idle for want of it.

        Args:
          busy: the last results that the devices are working on; time until these are there is not lost.
        Raises:
          whatever the iterator raised.
        """
        waited = 0.0
        if not self._next.done():
            jax.block_until_ready(busy)
            began = time.perf_counter()
            concurrent.futures.wait([self._next])
            waited = time.perf_counter() - began
        batch = self._next.result()
        self._next = self._pool.submit(self._make)
        return batch, waited

    def _make(self) -> Any:
        return self._put(next(self._batches))
