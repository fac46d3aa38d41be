"""The metrics of the steps between two lines of the log."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.training import metric_log
from bertjax.training.compilation import Compilations
from bertjax.training.metric_log import Window
from bertjax.training.step import StepReport


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def perf_counter(self):
        return self.seconds


class NoLedger:
    def add_waits(self, data_wait, compile_wait):
        pass


ONE = np.float32(1)


def report(one=ONE):
    return StepReport(metrics={"loss": (one, one), "tokens": (8 * one, one)}, gradient_norm=one, **REST)


REST = dict.fromkeys(set(StepReport._fields) - {"metrics", "gradient_norm"})


def test_the_time_of_a_step_is_without_compilation(monkeypatch):
    """Neither that of the step, nor of sums of metrics, nor of the schedule, which only the log needs."""
    clock = Clock()
    monkeypatch.setattr(metric_log, "time", clock)

    def slow_schedule(step):
        clock.seconds += 100
        return 1e-4

    window = Window(slow_schedule, NoLedger())
    for compile_wait in (50, 7, 0) * 2:
        clock.seconds += 2 + compile_wait
        window.add(report(), data_wait=0.5, compile_wait=compile_wait)
        if not compile_wait:
            assert window.close(3)["train/step_seconds"] == pytest.approx(2)


def test_sums_of_metrics_are_compiled_before_steps_are_timed():
    window, odd = Window(lambda step: 0.0, NoLedger()), jnp.ones((3, 7, 11))  # a shape that no other test adds
    window.add(report(odd), 0, 0)
    with Compilations() as compiled:
        window.add(report(odd), 0, 0)
    assert not compiled.programs
