"""Instances that share a row learn what they learn alone: the same losses, metrics and gradients."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.training import loop
from tests import tiny

CAUSAL = {
    "objective": "causal_lm",
    "model__direction": "left_to_right",
    "checkpoint__best_metric": "valid/causal_lm_loss",
}
WAYS = {
    "pairs": {"data__next_sentence": True},
    "one segment": {"data__next_sentence": False},
    "whole sentences": {"data__next_sentence": False, "data__whole_sentences": True},
    "whole words": {"masking__whole_word": True},
    "causal": {"data__next_sentence": False, **CAUSAL},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("packing") / "text.txt")


def epoch(tree):
    """Sums, metrics, denominators and the gradient of the loss over all instances of the first epoch; and its rows."""
    task, _ = tiny.task_and_settings(tree)
    params = task.init(jax.random.key(0))
    # Larger than at the start, so that attention is far from uniform and depends on who may look at whom.
    params = jax.tree.map(lambda leaf: 5 * leaf if leaf.ndim > 1 else leaf, params)

    def loss(params, batch):
        sums, metrics = task.loss(params, batch, None)
        return sum(sums.values(), jnp.zeros(())), (sums, metrics, task.denominators(batch))

    measure = jax.jit(jax.value_and_grad(loss, has_aux=True))
    rows = np.arange(tree["batch_size"])
    made = [measure(params, batch) for batch in task._split("train").evaluation(rows)]
    (_, told), gradient = jax.tree.map(lambda *parts: sum(np.asarray(part, np.float64) for part in parts), *made)
    return told, gradient, task._split("train")._plan.count(0)


@pytest.mark.parametrize("way", WAYS)
def test_packing_changes_neither_losses_nor_metrics_nor_gradients(text, way):
    short = {"data__seq_len": 48, "data__short_seq_prob": 0.8}
    trees = [tiny.config(text, data__packing=packing, **short, **WAYS[way]) for packing in (False, True)]
    (alone, gradient, rows), (packed, packed_gradient, packed_rows) = (epoch(tree) for tree in trees)
    assert packed_rows < 0.9 * rows
    for (name, a), (_, b) in zip(
        jax.tree.leaves_with_path(alone[:2]), jax.tree.leaves_with_path(packed[:2]), strict=True
    ):
        if "tokens" not in str(name):  # counted once a batch
            assert abs(a - b) <= 1e-5 * abs(a), (name, a, b)
    assert alone[1]["tokens"][0] == packed[1]["tokens"][0]
    assert alone[2] == packed[2]
    difference = jax.tree.map(lambda a, b: a - b, gradient, packed_gradient)
    distance = float(optax.global_norm(difference) / optax.global_norm(gradient))
    print(f"{way}: {rows} rows, packed {packed_rows}; gradients differ by {distance:.1e}")
    assert distance <= 1e-5


@pytest.mark.slow
def test_a_packed_run_resumes_exactly(text, tmp_path, monkeypatch):
    tree = tiny.config(text, data__packing=True, data__valid_rows=5, mesh__data=8)

    def train(workdir):
        workdir.mkdir(exist_ok=True)
        (workdir / "config.json").write_text(json.dumps(tree))
        loop.train(*tiny.task_and_settings(tree), workdir)
        return tiny.saved_params(tree, workdir)

    def settle(self, state):
        original(self, state)
        if int(state.step) == 3:
            raise KeyboardInterrupt

    original = loop.Trainer.settle
    whole = train(tmp_path / "whole")
    monkeypatch.setattr(loop.Trainer, "settle", settle)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed")
    monkeypatch.undo()
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, train(tmp_path / "killed"), whole)))
