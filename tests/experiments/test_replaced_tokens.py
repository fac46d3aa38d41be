"""Replaced-token detection: samples, losses, shared embeddings, and what becomes of a run."""

import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.errors import UserError
from bertjax.interop.published import open_weights
from bertjax.models.replaced_tokens import corrupt, sample
from tests import tiny
from tests.experiments.commands import done, flags, tree_of
from tests.random_params import random_params

STAGED = {"data.stages": ((0.5, 8),), "data.packing": True}


def values_of(folder, **values):
    text = folder / "text.txt"
    written = text if text.exists() else tiny.write_text(text, documents=80)
    return {**tiny.values(written), "generator.width": 0.5, **values}


def made(folder, **values):
    """A task, its data, and a batch."""
    task, data, *_ = tiny.ready(tree_of("replaced_tokens", "tiny", values_of(folder, **values)), folder / "run")
    return task, data, next(data.batches("train", 0, np.arange(16)))


def test_a_sample_inverts_the_cumulative_probabilities():
    probabilities = jnp.array([0.25, 0.0, 0.5, 0.25])
    uniforms = jnp.array([0.0, 0.24, 0.26, 0.74, 0.76, 1 - 2**-24], jnp.float32)
    logits = jnp.broadcast_to(jnp.log(probabilities), (6, 4))
    assert sample(logits, uniforms).tolist() == [0, 0, 2, 2, 3, 3]
    assert sample(2 * logits, uniforms, temperature=2.0).tolist() == [0, 0, 2, 2, 3, 3]


def test_a_sample_that_equals_the_original_token_counts_as_original():
    ids, positions, labels = jnp.array([[1, 9, 9, 2]]), jnp.array([[1, 2, 0]]), jnp.array([[5, 6, 0]])
    corrupted = corrupt(ids, positions, labels, jnp.array([[1.0, 1.0, 0.0]]), jnp.array([[5, 7, 8]]))
    assert corrupted.input_ids.tolist() == [[1, 5, 7, 2]]
    assert corrupted.is_replaced.tolist() == [[False, False, True, False]]


def test_random_numbers_do_not_depend_on_how_rows_are_divided(tmp_path):
    _, data, _ = made(tmp_path, **STAGED)
    everything, rows = list(itertools.islice(data.batches("train", 0, np.arange(16)), 6)), np.arange(16)
    assert len({batch["sampling_uniforms"].shape for batch in everything}) == 2
    parts = [itertools.islice(data.batches("train", 0, part), 6) for part in np.split(rows, 4)]
    for whole, *some in zip(everything, *parts, strict=True):
        joined = np.concatenate([part["sampling_uniforms"] for part in some])
        np.testing.assert_array_equal(whole["sampling_uniforms"], joined)
    later = next(data.batches("train", 4, rows))
    np.testing.assert_array_equal(later["sampling_uniforms"], everything[4]["sampling_uniforms"])
    valid = []
    for size in (16, 12):
        _, data, _ = made(tmp_path, batch_size=size)
        valid.append([batch["sampling_uniforms"] for batch in data.batches("valid", 0, np.arange(size))])
    one, other = map(np.concatenate, valid)
    count = min(len(one), len(other))
    np.testing.assert_array_equal(one[:count], other[:count])
    used = np.concatenate([batch["sampling_uniforms"][batch["masked_weights"] > 0] for batch in everything])
    assert len(np.unique(used)) > 0.99 * len(used) and abs(used.mean() - 0.5) < 0.05 and used.min() >= 0


@pytest.mark.parametrize("experiment", ["bert_pretraining", "replaced_tokens"])
def test_validation_rows_do_not_depend_on_the_seed(tmp_path, experiment):
    """All draws: sentence pairs, masks and samples. Runs that are older than the key draw by their seed."""
    values = values_of(tmp_path) if experiment == "replaced_tokens" else tiny.values(tiny.write_text(tmp_path / "text"))

    def data_of(**changes):
        return tiny.ready(tree_of(experiment, "tiny", {**values, **changes}), tmp_path / "run").data

    def rows_of(data, split):
        return [array.tobytes() for array in next(data.batches(split, 0, np.arange(16))).values()]

    one, other = (data_of(seed=seed) for seed in (0, 1))
    older = data_of(seed=1, **{"data.valid_seed": None})
    assert one.fingerprint == other.fingerprint == older.fingerprint
    assert rows_of(one, "train") != rows_of(other, "train") == rows_of(older, "train")
    assert rows_of(one, "valid") == rows_of(other, "valid")
    assert one.baselines() == other.baselines() != older.baselines()
    changed = [a != b for a, b in zip(rows_of(other, "valid"), rows_of(older, "valid"), strict=True)]
    assert changed[0] and changed[-1]


def test_what_the_discriminator_learns_from(tmp_path):
    """Its metrics, against the rows that it reads."""
    task, data, batch = made(tmp_path)
    params = random_params(task.init)
    found = jax.jit(task.infer)(params, batch)
    sums, metrics = jax.jit(lambda *arguments: task.loss(*arguments, None))(params, batch)
    real, replaced = batch["segment_ids"] != 0, np.asarray(found["is_replaced"])
    masked = np.zeros_like(real)
    masked[np.nonzero(batch["masked_weights"])[0], batch["masked_positions"][batch["masked_weights"] > 0]] = True
    assert replaced.any() and not replaced[~masked].any()
    probability = np.asarray(found["probabilities"], np.float64)
    right = np.where(replaced, probability, 1 - probability)[real]
    mean = {name: float(total / count) for name, (total, count) in metrics.items()}
    assert mean["replaced_loss"] == pytest.approx(-np.log(right).mean(), rel=1e-4)
    assert float(sums["replaced"]) == pytest.approx(50 * -np.log(right).sum(), rel=1e-4)
    chosen = (probability > 0.5) & real
    hits = (chosen & replaced).sum()
    expected = {"accuracy": (right > 0.5).mean(), "recall": hits / replaced.sum(), "precision": hits / chosen.sum()}
    for name, value in {**expected, "share": replaced.sum() / real.sum()}.items():
        assert mean[f"replaced_{name}"] == pytest.approx(value, rel=1e-5)
    baselines = data.baselines()
    share = 1 - baselines["valid/replaced_majority_accuracy"]
    assert 0 < share < 0.2 and baselines["valid/replaced_entropy_loss"] == pytest.approx(
        -share * np.log(share) - (1 - share) * np.log(1 - share)
    )


def changed_by(gradient, name):
    """Whether the gradient of an embedding is not 0, by the place of the parameter."""
    trees = {"bert": gradient["bert"], "generator": gradient["generator"]["bert"]}
    trees["changes"] = gradient.get("changes", {})
    tables = {place: tree.get("embeddings", {}).get(name) for place, tree in trees.items()}
    return {place: bool(jnp.any(table != 0)) for place, table in tables.items() if table is not None}


@pytest.mark.parametrize(
    ("embeddings", "words", "types"),
    [
        ("shared", {"bert": True}, {"bert": True}),
        ("disentangled", {"bert": False, "changes": True}, {"bert": True, "generator": False}),
        ("separate", {"bert": True, "generator": False}, {"bert": True, "generator": False}),
    ],
)
def test_which_embeddings_the_discriminator_changes(tmp_path, embeddings, words, types):
    task, _, batch = made(tmp_path, **{"generator.embeddings": embeddings})
    params = random_params(task.init)
    gradient = jax.jit(jax.grad(lambda params, batch: task.loss(params, batch, None)[0]["replaced"]))(params, batch)
    assert changed_by(gradient, "word_embeddings") == words
    assert changed_by(gradient, "token_type_embeddings") == types
    whole = task.inference_params(params)
    losses = [jax.jit(task.loss)(tree, batch, None)[0] for tree in (params, whole)]
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), *losses)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data.next_sentence": True}, r"data\.next_sentence: got True; expected False"),
        ({"generator.width": 0.4, "model.num_heads": 4, "model.hidden_size": 32}, r"generator\.width: got 0.4: 2"),
        ({"generator.width": 0.0}, r"generator\.width: got 0.0; expected above 0, except to predict"),
    ],
)
def test_settings_that_are_refused(tmp_path, values, message):
    with pytest.raises(UserError, match=message):
        made(tmp_path, **values)


@pytest.mark.slow
def test_a_run_with_disentangled_embeddings_starts_other_runs(tmp_path):
    """Fine-tuning, vectors and exports read the discriminator's embeddings: the generator's plus the changes."""
    run, values = tmp_path / "run", values_of(tmp_path, **{"generator.embeddings": "disentangled", "num_steps": 3})
    done("--config=configs/replaced_tokens.py:tiny", f"--workdir={run}", *flags(values))
    with tiny.few_devices(1):
        model = bertjax.load(run)
        model.export(tmp_path / "exported")
        exported, generator = bertjax.load(tmp_path / "exported"), bertjax.load(tmp_path / "exported" / "generator")
    tables = {"bert": model.params["bert"], "generator": model.params["generator"]["bert"]}
    words = {name: np.asarray(tree["embeddings"]["word_embeddings"]) for name, tree in tables.items()}
    assert np.abs(words["bert"] - words["generator"]).max() > 1e-4
    wanted = {"bert": jax.tree.map(jnp.zeros_like, model.params["bert"])}
    found, missing = open_weights(run).load(wanted)
    assert missing == () and found.keys() == {"bert"}
    for other in (found, exported.params):
        np.testing.assert_array_equal(other["bert"]["embeddings"]["word_embeddings"], words["bert"])
    np.testing.assert_array_equal(generator.params["bert"]["embeddings"]["word_embeddings"], words["generator"])
    np.testing.assert_array_equal(model.encode(["the dog"]), exported.encode(["the dog"]))
    assert generator.config.experiment == "bert_pretraining"


@pytest.mark.slow
def test_the_export_of_a_discriminator_that_transformers_does_not_have(tmp_path, caplog):
    run, values = tmp_path / "run", values_of(tmp_path, num_steps=1)
    done("--config=configs/replaced_tokens.py:tiny,modern", f"--workdir={run}", *flags(values))
    with tiny.few_devices(1), caplog.at_level(logging.WARNING):
        bertjax.load(run).export(tmp_path / "exported")
        assert bertjax.load(tmp_path / "exported").config.experiment == "features"
    assert "the discriminator's head is not exported" in caplog.text
    assert "the generator is not exported: config key model.embedding_size: got 16" in caplog.text


def test_training_from_a_folder_starts_with_a_new_generator(tmp_path, caplog):
    task, _, _ = made(tmp_path, **{"generator.embeddings": "disentangled"})
    fresh, params = random_params(task.init), random_params(task.init, seed=1)
    task.export(params, tmp_path / "exported")
    started = task.warm_start(fresh, open_weights(tmp_path / "exported"))
    assert {name for name in fresh if started[name] is fresh[name]} == {"generator", "changes"}
    assert "module generator keeps its random initialization" in caplog.text
    jax.tree.map(np.testing.assert_array_equal, started["discriminator"], params["discriminator"])
