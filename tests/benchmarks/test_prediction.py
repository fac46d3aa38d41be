"""Predictions of updates that this machine compiled."""

import gc

import jax
import numpy as np
import pytest

from benchmarks import common, prediction
from bertjax.planning.gpus import GPUS

SHAPE = common.Shape.parse("tiny:4x32:1000")


@pytest.fixture(scope="module")
def step():
    gc.collect()
    jax.clear_caches()  # of programs of other tests
    return common.OurStep.of(SHAPE, {"model.scan_layers": True})


def test_predictions_of_the_compiled_update(step):
    (found,) = prediction.predictions()
    assert found.batch.items() <= prediction._shapes(step.batches[0]).items()
    assert found.batch["input_ids"] == (4, 32)
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(step.state))
    assert found.memory_bytes > state and found.hbm_bytes > 2 * state  # it reads and writes the state
    assert found.seconds is None  # nothing is known of this CPU


def test_the_time_of_a_known_gpu(step, monkeypatch):
    known = GPUS["h100"].description["name"].strip('"')
    monkeypatch.setattr(prediction, "_kind", lambda: known)
    (found,) = prediction.predictions()
    assert found.seconds == pytest.approx(found.hbm_bytes / 3350e9)  # such a small model is bound by memory
    assert found.seconds_in_turn >= 0.999 * found.seconds


def test_measured_and_predicted_values(step, monkeypatch):
    monkeypatch.setattr(prediction, "peak_bytes", lambda: 3 * 2**30)
    result = prediction.compare(step.batches * 2, 0.5, 2**30)
    assert (result["update_seconds"], result["memory_bytes"]) == (0.25, 3 * 2**30)
    (predicted,) = prediction.predictions()
    assert result["predicted_memory_bytes"] == predicted.memory_bytes
    time, moved, memory = prediction.cells(result)
    assert time == "250.0" and float(moved) == pytest.approx(predicted.hbm_bytes / 1e9, rel=0.01)
    assert memory == f"3.00 ({predicted.memory_bytes / 2**30:.2f})"
    unchanged = prediction.compare(step.batches, 0.5, 3 * 2**30)  # an earlier case used as much
    assert prediction.cells(unchanged)[2].startswith("- (")


def test_a_failed_prediction_keeps_the_measurement(step):
    result = prediction.compare([{"input_ids": np.zeros((5, 32))}], 0.5, 0)
    assert result["update_seconds"] == 0.5 and "StopIteration" in result["prediction_error"]
    assert prediction.cells(result)[::2] == ["500.0", result["prediction_error"]]
    assert prediction.cells({}) == [""] * len(prediction.HEADER)
