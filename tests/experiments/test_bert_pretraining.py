"""Pretraining as a task: the meaning of its predictions."""

import jax
import numpy as np
import pytest

from tests import tiny


@pytest.mark.parametrize("label", [0, 1])
def test_is_next_probability_is_that_of_label_0(tmp_path, label):
    """Label 0 means that the second segment follows the first, as in google-research/bert."""
    task, data, *_ = tiny.pretraining(tiny.config(tiny.write_text(tmp_path / "text.txt")))
    params = jax.device_get(jax.jit(task.init)(jax.random.key(0)))
    (biased,) = [part for name, part in params.items() if "next_sentence" in name]
    biased["bias"] = np.where(np.arange(2) == label, 9.0, 0.0).astype(np.float32)
    batch = next(data.batches("train", 0, np.arange(16)))
    labels = {name: value for name, value in batch.items() if name == "next_sentence_labels"}
    sums, _ = task.loss(params, {**batch, "next_sentence_labels": np.full_like(*labels.values(), label)}, None)
    assert sums["next_sentence"] < 0.1 * 16
    (example,) = task.examples(iter(["the [MASK] sees a cat\tthe dog sings"]))
    rows = {name: array[None] for name, array in example.rows[0].items()}
    outputs = {name: np.asarray(value)[0] for name, value in task.infer(params, rows).items()}
    probability = task.record(example, [outputs])["is_next_probability"]
    assert probability == pytest.approx(1 - label, abs=0.01)
