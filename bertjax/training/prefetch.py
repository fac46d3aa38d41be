"""Prefetching: the next batch is made and sent to the devices while they process the current one."""

import concurrent.futures
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bertjax.contract import Batch


class Prefetch:
    """Sends batches from an iterator to the devices, in a thread, one batch ahead."""

    def __init__(self, batches: Iterator[Batch], put: Callable[[Batch], Any]) -> None:
        """Starts to make the first batch.

        Args:
          batches: an infinite iterator of batches on the host.
          put: sends a batch to the devices.
        """
        self._batches = batches
        self._put = put
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "prefetch")
        self._next = self._pool.submit(self._make)

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, busy: Any) -> tuple[Any, float]:
        """Returns the next batch, and the seconds for which the devices were idle because it was not ready.

        Args:
          busy: the results that the devices are computing. Waiting for these does not count as idle time.
        Raises:
          Exception: whatever the iterator raised.
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
