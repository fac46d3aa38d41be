import math
import time

import pytest

from bertjax.training.row_clock import RowClock


def test_only_batches_of_known_shapes_count(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def take(seconds):
        nonlocal now
        now += seconds
        return seconds

    clock = RowClock()
    clock.start()
    assert clock.run(lambda: take(100), "short", 4, None) == 100
    assert math.isnan(clock.row_seconds)
    for seconds, shape, rows in ((2, "short", 4), (50, "long", 4), (4, "long", 8)):
        clock.run(lambda seconds=seconds: take(seconds), shape, rows, None)
    clock.stop()
    assert clock.row_seconds == pytest.approx(6 / 12)
    clock.reset()
    clock.start()
    clock.run(lambda: take(3), "short", 3, None)
    clock.stop()
    assert clock.row_seconds == pytest.approx(1)
