"""Maps blocks of work over worker processes of this machine, in order and in bounded memory."""

import collections
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

B = TypeVar("B")
R = TypeVar("R")
T = TypeVar("T")
_function: Callable[[Any], Any]  # the function of this worker process


def map_blocks(function: Callable[[B], R], blocks: Iterable[B], workers: int) -> Iterator[R]:
    """Yields `function(block)` in order, with a bounded number of blocks in progress.

    Args:
      function: an importable function, because worker processes call it. Each process receives one copy.
      blocks: units of work; read as workers become free.
      workers: the number of processes; 1 works in this process, 0 starts one per core.
    """
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if workers == 1:
        yield from map(function, blocks)
        return
    blocks = iter(blocks)
    # Forking a process whose libraries run threads may deadlock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start, (os.getpid(), function)) as pool:
        pending: collections.deque[Future[R]] = collections.deque(
            pool.submit(_call, block) for block in itertools.islice(blocks, 2 * workers)
        )
        try:
            while pending:
                result = pending.popleft().result()
                pending.extend(pool.submit(_call, block) for block in itertools.islice(blocks, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


def gather(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Groups items in order. A group ends when the sum of its items' sizes reaches the limit."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group = []
            total = 0
    if group:
        yield group


def _start(parent: int, function: Callable[[Any], Any]) -> None:
    """Initializes a worker."""
    global _function
    _function = function
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """Ends this worker soon after its parent, because a killed parent cannot stop its workers."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _call(block: Any) -> Any:
    return _function(block)
