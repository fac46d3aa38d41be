"""Packing does not change losses, metrics and gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.experiments.commands import sizes, tree_of
from tests.random_params import random_params
from tests.trees import distance, specs

CAUSAL = {"objective": "causal_lm", "model__direction": "left_to_right", "data__next_sentence": False}
WAYS = {"pairs": {"data__next_sentence": True}, "causal": CAUSAL}
SMALL = {"batch_size": 4, **sizes(1, 16, 2, 32, 48), "data.seq_len": 48}


# For each case: the experiment, the function that writes its rows, and additional config values.
FINE_TUNING = {
    "classes": ("classification", tiny.write_table, {"class_weights": (1.0, 3.0)}),
    "label_sets": ("classification", tiny.write_table, {"objective": "multi_label", "class_weights": (1.0, 3.0)}),
    "tags": ("tagging", tiny.write_sentences, {"class_weights": (1.0, 3.0, 1.0, 2.0, 1.0)}),
    "answers": ("question_answering", tiny.write_questions, {"data.max_query_length": 9}),
}


def totals(task, batches):
    """The sums, metrics, denominators and gradient of the loss over all batches."""
    # Larger parameters than at initialization, so that attention is not uniform and depends on the mask.
    params = random_params(task.init, scale=0.1)

    def loss(params, batch):
        sums, metrics = task.loss(params, batch, None)
        return sum(sums.values(), jnp.zeros(())), (sums, metrics, task.denominators(batch))

    measure = jax.jit(jax.value_and_grad(loss, has_aux=True))
    made = [measure(params, batch) for batch in batches]
    (_, sums), gradient = jax.tree.map(lambda *parts: sum(np.asarray(part, np.float64) for part in parts), *made)
    return sums, gradient


def epoch(tree):
    """The sums, metrics, denominators and gradient over all instances of the first epoch, and its number of rows."""
    task, data, *_ = tiny.pretraining(tree)
    batches = data._of("train", data._batch_config).evaluation(np.arange(tree["batch_size"]))
    return *totals(task, batches), data._of("train", data._batch_config).rows_per_epoch[0]


@pytest.mark.parametrize("way", ["pairs", pytest.param("causal", marks=pytest.mark.slow)])
def test_packing_changes_neither_losses_nor_metrics_nor_gradients(text, way):
    short = {"data__seq_len": 48, "data__short_seq_prob": 0.8}
    trees = [tiny.config(text, data__packing=packing, **short, **WAYS[way]) for packing in (False, True)]
    (alone, gradient, rows), (packed, packed_gradient, packed_rows) = (epoch(tree) for tree in trees)
    assert packed_rows < 0.9 * rows
    pairs = zip(*(jax.tree.leaves_with_path(found[:2]) for found in (alone, packed)), strict=True)
    for (name, a), (_, b) in pairs:
        if "tokens" not in str(name):  # counted once per batch
            assert abs(a - b) <= 1e-5 * abs(a), (name, a, b)
    assert alone[1]["tokens"][0] == packed[1]["tokens"][0]
    assert alone[2] == packed[2]
    assert distance(packed_gradient, gradient) <= 1e-5


def fine_tuning(name, folder, **overrides):
    experiment, write, changes = FINE_TUNING[name]
    tree = tree_of(experiment, "tiny", {**SMALL, **write(folder), **changes, **overrides})
    return tiny.ready(tree, folder / "kept")


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE_TUNING)
def test_packing_does_not_change_losses_and_gradients_of_fine_tuning(name, tmp_path):
    plain, rows, *_ = fine_tuning(name, tmp_path)
    packed, data, settings, _ = fine_tuning(name, tmp_path, **{"data.packing": True})
    alone = rows.rows.padded(np.arange(len(rows.rows.lengths)), 48)
    shared = list(itertools.islice(data.batches("train", 0, np.arange(4)), data.train.steps_per_epoch))
    assert settings.evaluate_every == len(shared) < 0.6 * len(alone["weights"]) / 4
    assert [specs(shared[0])] == [specs(spec) for spec in packed.batch_specs()]
    (sums, gradient), (packed_sums, packed_gradient) = totals(plain, [alone]), totals(packed, shared)
    sums[1]["tokens"] = packed_sums[1]["tokens"] = packed_sums[1]["tokens"][0]  # counted once per batch
    for (path, a), (_, b) in zip(jax.tree.leaves_with_path(sums), jax.tree.leaves_with_path(packed_sums), strict=True):
        assert abs(a - b) <= 1e-5 * abs(a), (path, a, b)
    assert distance(packed_gradient, gradient) <= 1e-5
