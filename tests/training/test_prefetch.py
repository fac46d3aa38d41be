"""Prefetching of one batch, and the time that devices were idle."""

import itertools
import threading
import time

import jax.numpy as jnp
import pytest

from bertjax.training.prefetch import Prefetch


def test_batches_are_put_in_order():
    with Prefetch(iter([{"x": 1}, {"x": 2}, {"x": 3}]), lambda batch: batch["x"] * 10) as prefetch:
        assert [prefetch.take(None)[0] for _ in range(3)] == [10, 20, 30]


def test_the_next_batch_is_made_in_advance():
    made = [threading.Event() for _ in range(4)]

    def batches():
        for event in made:
            event.set()
            yield {}

    with Prefetch(batches(), lambda batch: batch) as prefetch:
        assert made[0].wait(10)
        prefetch.take(None)
        assert made[1].wait(10), "the next batch is made in advance"
        time.sleep(0.05)
        assert not made[2].is_set(), "only one batch is made in advance"


def test_no_waiting_for_a_batch_that_is_ready():
    with Prefetch(itertools.repeat({}), lambda batch: batch) as prefetch:
        prefetch._next.result()
        assert prefetch.take(None)[1] == 0.0


def test_only_idle_time_of_devices_counts_as_waiting(monkeypatch):
    def batches():
        while True:
            time.sleep(0.2)
            yield {}

    # During half of the wait, the devices are still busy.
    monkeypatch.setattr("jax.block_until_ready", lambda busy: time.sleep(0.1) if busy is not None else None)
    with Prefetch(batches(), lambda batch: batch) as prefetch:
        assert 0.15 < prefetch.take(None)[1] < 2
        assert 0.05 < prefetch.take(jnp.zeros(()))[1] < 0.15


def test_errors_of_the_iterator_are_raised():
    def batches():
        yield {}
        raise ValueError("a bad row")

    with Prefetch(batches(), lambda batch: batch) as prefetch:
        prefetch.take(None)
        with pytest.raises(ValueError, match="a bad row"):
            prefetch.take(None)
