"""What every trained task has in common: batches of the announced shapes, and padding that does not count."""

import itertools

import jax
import numpy as np
import pytest

from tests import tiny
from tests.experiments.commands import tree_of
from tests.random_params import random_params
from tests.tasks.test_prepared_rows import ROWS, SIZES, TASKS, pairs
from tests.trees import specs

BATCH = ROWS["batch_size"]


# The rows of a batch of embeddings are not its examples; see tests/experiments/test_embeddings.py.
@pytest.fixture(params=[name for name in TASKS if name != "embeddings"])
def made(request, tmp_path):
    """A task of each experiment and its prepared data."""
    size, write, own = TASKS[request.param]
    values = {**SIZES, **ROWS, **(write or pairs)(tmp_path), **own, "num_steps": 2}
    task, data, *_ = tiny.ready(tree_of(request.param, size, values), tmp_path / "kept")
    return task, data


def test_batches_have_announced_shapes_and_padding_does_not_count(made):
    task, data = made
    announced = list(map(specs, task.batch_specs()))
    for split in ("train", "valid"):
        for batch in itertools.islice(data.batches(split, 0, np.arange(BATCH)), 8):
            assert specs(batch) in announced
    batch = next(data.batches("train", 0, np.arange(BATCH)))
    few = {name: x[:3] for name, x in batch.items()}
    filled = {name: np.concatenate([x, np.zeros_like(x)]) for name, x in few.items()}
    params = random_params(task.init)

    def mean(params, batch):
        sums, metrics = task.loss(params, batch, None)
        return sum(sums[name] / of for name, of in task.denominators(batch).items()), metrics

    alone, among = (jax.jit(mean)(params, rows) for rows in (few, filled))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), alone, among)
