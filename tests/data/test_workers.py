import itertools
import os
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

import pytest

from bertjax.data import workers
from bertjax.data.workers import map_blocks
from bertjax.errors import UserError, as_user_error


class Source:
    """Blocks of one document of one line. Counts the blocks that were requested."""

    def __init__(self, count: int) -> None:
        self.taken, self._count = 0, count

    def __iter__(self) -> Iterator[list[list[str]]]:
        for number in range(self._count):
            self.taken += 1
            yield [[f"line {number}"]]


def test_one_worker_maps_one_item_at_a_time():
    source = Source(5)
    results = map_blocks(len, source, 1)
    for taken in range(1, 6):
        assert next(results) == 1
        assert source.taken == taken


def test_workers_keep_the_order_and_bound_the_blocks_in_progress():
    # The first item takes longest, so that the others are finished before it.
    source = Source(40)
    first = [[[f"{number:07d}" for number in range(100_000, 0, -1)]]]
    results = map_blocks(sorted, itertools.chain(first, source), 2)
    assert source.taken == 0
    assert len(next(results)[0]) == 100_000
    assert source.taken == 2 * 2
    for number, result in enumerate(results):
        assert result == [[f"line {number}"]]
        assert source.taken == min(number + 1 + 2 * 2, 40)
    assert number == 39


def test_a_reader_that_stops_early_stops_the_workers():
    source = Source(1000)
    results = map_blocks(len, source, 2)
    next(results)
    results.close()
    assert source.taken == 2 * 2 + 1


def test_all_cores_are_used_by_default(monkeypatch):
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    source = Source(30)
    results = map_blocks(len, source, 0)
    assert next(results) == 1
    assert source.taken == 2 * 3 + 1
    assert list(results) == [1] * 29


def test_an_error_of_the_source_reaches_the_reader():
    def failing() -> Iterator[list[list[str]]]:
        yield [["line"]]
        raise UserError("file.txt, line 2", got="bytes", expected="text", fix="mend it")

    for number in (1, 2):
        with pytest.raises(UserError, match=r"file\.txt, line 2"):
            list(map_blocks(len, failing(), number))


def die(block):
    os._exit(9)


def test_a_killed_worker_is_reported_with_a_fix():
    with pytest.raises(BrokenProcessPool) as told:
        list(map_blocks(die, [[["a"]]] * 3, 2))
    fix = "Fix: lower --config.data.workers and run the same command again."
    assert str(as_user_error(told.value, "")).endswith(fix)
