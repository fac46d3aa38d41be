"""Maps blocks of work over worker processes of this machine, in order and in bounded memory."""

import collections
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

B = TypeVar("B")
R = TypeVar("R")


def map_blocks(function: Callable[[B], R], blocks: Iterable[B], workers: int) -> Iterator[R]:
    """Yields `function(block)` in order, with a bounded number of blocks in flight.

    Args:
      function: importable, since worker processes call it.
      blocks: units of work; read as workers become free.
      workers: number of processes; 1 works in this process, 0 starts one per core.
    """
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if workers == 1:
        yield from map(function, blocks)
        return
    blocks = iter(blocks)
    # Forking a process whose libraries run threads may deadlock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _end_with_parent, (os.getpid(),)) as pool:
        pending: collections.deque[Future[R]] = collections.deque(
            pool.submit(function, block) for block in itertools.islice(blocks, 2 * workers)
        )
        try:
            while pending:
                result = pending.popleft().result()
                pending.extend(pool.submit(function, block) for block in itertools.islice(blocks, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent(parent: int) -> None:
    """Ends this worker soon after its parent: a parent that is killed cannot stop its workers."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
