"""Samples of a task for the run's page, made without a model: outputs are zeros of the right shape."""

import itertools
import json
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from bertjax.modes.samples import _plain
from bertjax.tools.reporting import samples


def shown(task, data, folder: Path, count: int = 2) -> samples.Shown:
    """Writes samples of a task's first `count` examples to a run's file, without attention, and reads them back."""

    def zeros(shapes):
        return jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes)

    params = zeros(jax.eval_shape(task.init, jax.random.key(0)))

    def infer(examples):
        for example in itertools.islice(examples, count):
            rows = [{name: np.asarray(array)[None] for name, array in row.items()} for row in example.rows]
            outputs = [zeros(jax.eval_shape(task.infer, params, row)) for row in rows]
            yield example, [{name: np.asarray(array[0]) for name, array in output.items()} for output in outputs]

    with mock.patch("bertjax.tasks.samples.is_shown", lambda *_: False):
        records = [{**record, "checkpoint": "1"} for record in task.samples(params, data, infer)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / samples.FILE).write_text("".join(json.dumps(_plain(record)) + "\n" for record in records))
    return samples.read(folder)
