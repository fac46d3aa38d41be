"""One batch ahead of the step, and an honest account of the time that was lost waiting."""

import itertools
import threading
import time

import jax.numpy as jnp
import pytest

from bertjax.training.prefetch import Prefetch


def test_batches_come_in_order_and_are_put():
    with Prefetch(iter([{"x": 1}, {"x": 2}, {"x": 3}]), lambda batch: batch["x"] * 10) as prefetch:
        assert [prefetch.take(None)[0] for _ in range(3)] == [10, 20, 30]


def test_the_next_batch_is_made_while_the_last_is_used():
    made = [threading.Event() for _ in range(4)]

    def batches():
        for event in made:
            event.set()
            yield {}

    with Prefetch(batches(), lambda batch: batch) as prefetch:
        assert made[0].wait(10)
        prefetch.take(None)
        assert made[1].wait(10), "made without being asked for"
        time.sleep(0.05)
        assert not made[2].is_set(), "and no more than that"


def test_a_batch_that_is_there_is_not_waited_for():
    with Prefetch(itertools.repeat({}), lambda batch: batch) as prefetch:
        prefetch._next.result()
        assert prefetch.take(None)[1] == 0.0


def test_only_time_that_the_devices_were_idle_is_lost(monkeypatch):
    def batches():
        while True:
            time.sleep(0.2)
            yield {}

    # Half of the wait goes by while the devices still work.
    monkeypatch.setattr("jax.block_until_ready", lambda busy: time.sleep(0.1) if busy is not None else None)
    with Prefetch(batches(), lambda batch: batch) as prefetch:
        assert 0.15 < prefetch.take(None)[1] < 2
        assert 0.05 < prefetch.take(jnp.zeros(()))[1] < 0.15


def test_what_goes_wrong_with_the_data_is_told():
    def batches():
        yield {}
        raise ValueError("a bad row")

    with Prefetch(batches(), lambda batch: batch) as prefetch:
        prefetch.take(None)
        with pytest.raises(ValueError, match="a bad row"):
            prefetch.take(None)
