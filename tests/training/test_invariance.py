"""Twenty updates of each task, dropout off, are the same whatever devices and processes they are spread over."""

import json
import pickle

import jax
import numpy as np
import pytest

from tests import processes
from tests.training import invariance

MESHES = {"8 data": (8, 1, 1), "8 fsdp": (1, 8, 1), "4x2 tensor": (4, 1, 2), "2x2x2": (2, 2, 2)}


def distance(a, b):
    """Norm of the difference over the norm, of whole trees."""

    def norm(tree):
        return np.sqrt(sum(float(np.sum(np.float64(leaf) ** 2)) for leaf in jax.tree.leaves(tree)))

    return norm(jax.tree.map(lambda x, y: x - y, a, b)) / norm(b)


@pytest.fixture(scope="module", params=invariance.TASKS)
def alone(request, tmp_path_factory):
    """A task, the keys of its data, their folder, and what came of it on one device."""
    task, folder = request.param, tmp_path_factory.mktemp(request.param)
    data = invariance.write_data(task, folder)
    return task, data, folder, invariance.train(task, data, folder, (1, 1, 1), 1)


def check(name, result, expected):
    losses = max(abs(a - b) / b for a, b in zip(result.losses, expected.losses, strict=True))
    first, last = distance(result.first, expected.first), distance(result.last, expected.last)
    held = max(result.bytes_per_device)
    print(f"{name}: losses {losses:.1e}, parameters {first:.1e}, after 20 updates {last:.1e}, {held} bytes a device")
    assert len(expected.losses) == invariance.STEPS and expected.losses[-1] < expected.losses[0]
    assert losses <= 1e-5
    assert first <= 1e-5
    assert last <= 1e-3
    assert set(result.bytes_per_device) == {result.promised_bytes}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_devices_make_no_difference(alone, mesh):
    task, data, folder, expected = alone
    result = invariance.train(task, data, folder, MESHES[mesh], 8)
    check(f"{task}, {mesh}", result, expected)
    share = result.promised_bytes / expected.promised_bytes
    assert share == 1 if mesh == "8 data" else share < {"8 fsdp": 0.2, "4x2 tensor": 0.8, "2x2x2": 0.5}[mesh]


@pytest.mark.slow
def test_two_processes_of_four_devices_make_no_difference(alone, tmp_path):
    task, data, folder, expected = alone
    own = [[f"--output={tmp_path / str(i)}"] for i in range(2)]
    shared = [task, "2x2x2", json.dumps(data), str(folder)]
    processes.train(shared, 2, 4, entry=("-m", "tests.training.invariance"), own=own)
    for i in range(2):
        result = invariance.Result(*pickle.loads((tmp_path / str(i)).read_bytes()))
        assert len(result.bytes_per_device) == 4
        check(f"{task}, process {i}", result, expected)
