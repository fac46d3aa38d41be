"""Pretraining as a task: the meaning of its predictions, and stages of row lengths."""

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.bert import BertForMaskedLM, BertInputs
from bertjax.models.losses import cross_entropy
from bertjax.tasks import pretrained
from bertjax.training import flops, loop
from bertjax.training.compilation import Compilations
from tests import tiny
from tests.trees import specs

BATCH, UPDATES = 4, 6
LENGTHS = (8, 8, 16, 16, 16, 32)  # of each update
STAGES: dict[str, Any] = {
    "num_steps": UPDATES,
    "batch_size": BATCH,
    "data__stages": ((0.4, 8), (0.45, 16)),
    "masking__rate": 0.3,
    "masking__final_rate": 0.15,
    "model__num_layers": 1,
}

# The same stages as phases that also change the weights of sources, one of them smaller than a batch.
PHASES: dict[str, Any] = {
    "data__source": "",
    "data__stages": (),
    "data__phases": ((0.4, {"seq_len": 8, "weights": {"text": 0.5, "few": 0.5}}), (0.45, {"seq_len": 16})),
    "data__valid_fraction": 0.5,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("stages") / "text.txt", documents=80)


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


def test_the_baseline_of_next_sentence_prediction_is_the_majority_class(tmp_path):
    """A document of one sentence has no next sentence, so all labels are random."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the dog sees {count} cats" for count in range(40)))
    _, data, *_ = tiny.pretraining(tiny.config(text, data__vocab_size=30))
    assert data.baselines()["valid/next_sentence_majority_accuracy"] == 1.0
    assert sum(counts["documents"] for counts in data.report().values()) == 40


def test_duplicates_are_reported_and_dropped_on_request(tmp_path):
    """The report does not change the data; with `drop`, they are other data, without the duplicates."""
    text = tiny.write_text(tmp_path / "text.txt")
    copies = text.read_text()
    text.write_text(copies + "\n" + copies)
    _, data, *_ = tiny.pretraining(tiny.config(text, data__next_sentence=False))
    counts = data.report()["train"]
    assert data.report().keys() == {"train", "valid"}
    data.review()
    report = data.report()["removal"][""]
    assert (report["all"], report["removed"]) == (counts["documents"], 0)
    assert report["duplicates"] >= counts["documents"] / 2

    tree = tiny.config(text, data__next_sentence=False, data__duplicates="drop", data__max_removed=0.4)
    with pytest.raises(UserError, match=r"at most 40 % \(data.max_removed"):
        tiny.pretraining(tree)
    tree["data"]["max_removed"] = 0.99
    _, dropped, *_ = tiny.pretraining(tree)
    assert dropped.is_prepared
    assert dropped.fingerprint != data.fingerprint
    assert dropped.report()["removal"][""] == {**report, "removed": report["duplicates"]}
    assert dropped.costs().shape == data.costs().shape
    (corpus,) = dropped._corpora.values()
    assert corpus.splits["train"].sentences.num_documents == report["all"] - report["duplicates"]


ALL = np.arange(BATCH)


def batches_from(data, start: int, rows: np.ndarray = ALL) -> list[dict[str, np.ndarray]]:
    return list(itertools.islice(data.batches("train", start, rows), UPDATES + 1 - start))


@pytest.mark.parametrize("packing", [False, True])
def test_each_stage_has_rows_of_its_length_and_equally_many_positions(text, packing):
    task, data, *_ = tiny.pretraining(tiny.config(text, **STAGES, data__packing=packing))
    announced = task.batch_specs()
    assert flops.largest_spec(task) == announced[-1]
    made = batches_from(data, 0)
    for update, (batch, length) in enumerate(zip(made, (*LENGTHS, 32), strict=True)):
        expected = announced[task.stage(update, UPDATES)]
        assert batch["input_ids"].shape == (BATCH * 32 // length, length)
        assert specs(batch) == specs(expected)
    predictions = [spec["masked_positions"].shape[1] for spec in announced]
    assert predictions == ([3, 6, 11] if packing else [3, 5, 10])  # in proportion to the length
    for start in (1, 2, 4, 5):
        for batch, expected in zip(batches_from(data, start), made[start:], strict=True):
            assert all((batch[name] == expected[name]).all() for name in batch)
    halves = [batches_from(data, 0, half) for half in np.split(ALL, 2)]
    for *parts, whole in zip(*halves, made, strict=True):
        assert all((np.concatenate([part[name] for part in parts]) == whole[name]).all() for name in whole)
    assert {batch["input_ids"].shape for batch in data.batches("valid", 0, ALL)} == {(BATCH, 32)}


def test_positions_without_training_are_copies_of_those_with_it(text):
    task, *_ = tiny.pretraining(tiny.config(text, **STAGES))
    params = jax.jit(task.init)(jax.random.key(0))
    state = {"moments": {"position_embeddings": np.arange(96.0).reshape(48, 2)}, "count": np.int32(3)}
    before = params["bert"]["embeddings"]["position_embeddings"]
    for length in (8, 16, 32):
        after, moments = task.after_update((params, state), {"input_ids": np.zeros((1, length), np.int32)})
        table = after["bert"]["embeddings"]["position_embeddings"]
        rows = np.where(np.arange(48) < 32, np.arange(48) % length, np.arange(48))
        np.testing.assert_array_equal(table, before[rows])
        moved = state["moments"]["position_embeddings"][rows]
        np.testing.assert_array_equal(moments["moments"]["position_embeddings"], moved)
        assert moments["count"] == 3
        after["bert"]["embeddings"]["position_embeddings"] = before
        assert jax.tree.all(jax.tree.map(np.array_equal, after, params))


def test_a_number_of_positions_that_does_not_divide_the_others_is_copied_in_part():
    table = np.arange(10.0)[:, None]
    copied = pretrained.copy_positions({"position_embeddings": table}, 3, 8)
    assert copied["position_embeddings"][:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 8, 9]


def updates_from(trainer: loop.Trainer, data, state: Any) -> dict[int, Any]:
    """Makes the remaining updates, and returns the state after each."""
    with Compilations() as compiled:
        return {each.done: jax.device_get(each.state) for each in trainer.updates(data.batches, state, compiled)}


def test_a_run_with_stages_of_a_mixture_resumes_exactly_in_each_stage(text, tmp_path):
    """Each shape is compiled once: `tests/conftest.py` raises at any further program."""
    few = tiny.write_text(tmp_path / "few.txt", documents=6, seed=1)
    mixture = {**PHASES, "data__mixture": (("text", str(text), 0.8), ("few", str(few), 0.2))}
    with tiny.few_devices(1):
        config = tiny.config(text, **STAGES | mixture)
        task, data, settings, _ = tiny.pretraining(config)
        trainer = loop.Trainer(task, settings, jax.devices())
        states = updates_from(trainer, data, trainer.fresh())
        table = states[4].params["bert"]["embeddings"]["position_embeddings"]
        np.testing.assert_array_equal(table[16:32], table[:16])
        for killed in (1, 2, 4, 5):
            trainer.settle(states[killed])
            state = jax.device_put(states[killed], trainer._shardings)
            resumed = updates_from(trainer, data, state)[UPDATES]
            assert jax.tree.all(jax.tree.map(np.array_equal, resumed, states[UPDATES]))


NOISE: dict[str, Any] = {
    "masking__mask_fraction": 1.0,
    "masking__random_fraction": 0.0,
    "masking__keep_fraction": 0.0,
    "masking__distribution": "uniform",
    "masking__loss_weight": "inverse_rate",
    "masking__causal_share": 0.25,
    "data__next_sentence": False,
    "data__packing": True,
    "model__dropout": 0.0,
    "model__attention_dropout": 0.0,
}


@pytest.mark.parametrize("predict_at", ["same", "previous"])
@pytest.mark.parametrize("mean", ["by_share", "pooled"])
def test_masked_and_causal_rows_are_those_of_two_models(text, predict_at, mean):
    """The loss is GPT-BERT's: the mean over hidden tokens and that over causal rows, weighted by shares or pooled."""
    changes = {"masking__predict_at": predict_at, "masking__causal_mean": mean}
    task, data, *_ = tiny.pretraining(tiny.config(text, **NOISE, **changes))
    params = jax.jit(task.init)(jax.random.key(1))
    batch = next(data.batches("train", 0, np.arange(16)))
    sums, metrics = task.loss(params, batch, None)
    denominators = task.denominators(batch)

    both, causal = (
        BertForMaskedLM(dataclasses.replace(task.encoder, direction=direction))
        for direction in ("both", "left_to_right")
    )
    totals = []
    is_causal = batch["causal_rows"] != 0
    assert is_causal.sum() == 4
    plain = {name: array for name, array in batch.items() if name != "causal_rows"}
    for model, rows in ((both, ~is_causal), (causal, is_causal)):
        inputs = BertInputs.of({name: array[rows] for name, array in plain.items()})
        positions, labels, weights = (batch[f"masked_{name}"][rows] for name in ("positions", "labels", "weights"))
        logits = model.apply({"params": params}, inputs, positions, deterministic=True)
        totals.append((np.sum(cross_entropy(logits, labels) * weights), weights.sum()))
        shift = 1 if predict_at == "previous" or model is causal else 0
        shown = np.take_along_axis(inputs.input_ids, positions + shift, axis=1)[weights > 0]
        assert (shown == task.tokenizer.mask_id).all() == (model is both)
    (masked, candidates), (left_to_right, count) = totals
    np.testing.assert_allclose([sums["masked_lm"], sums["causal_lm"]], [masked, left_to_right], rtol=1e-5)
    np.testing.assert_allclose(metrics["masked_lm_bound"], (masked, candidates), rtol=1e-5)
    expected = 0.75 * masked / candidates + 0.25 * left_to_right / count
    if mean == "pooled":
        expected = (masked + left_to_right) / (candidates + count)
    loss = sum(sums[term] / denominators[term] for term in sums)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_stages_of_causal_rows_alone_and_of_none_have_the_loss_of_one_term(text):
    changes = {"masking__causal_share": 0.0, "masking__causal_stages": ((0.5, 1.0),), "num_steps": 4}
    task, data, *_ = tiny.pretraining(tiny.config(text, **{**NOISE, **changes}))
    params = jax.jit(task.init)(jax.random.key(1))
    batches = list(itertools.islice(data.batches("train", 0, np.arange(16)), 4))
    for batch, term in zip(batches, ("causal_lm_loss",) * 2 + ("masked_lm_bound",) * 2, strict=True):
        sums, metrics = task.loss(params, batch, None)
        loss = sum(sums[name] / of_term for name, of_term in task.denominators(batch).items())
        np.testing.assert_allclose(loss, np.divide(*metrics[term]), rtol=1e-6)


@pytest.mark.parametrize("rows", [12, 4])  # of one micro-batch, or of each of three
def test_the_head_reads_all_positions_of_rows_that_are_no_power_of_two(text, caplog, rows):
    changes = {"batch_size": 12, "masking__causal_share": 0.0}
    task, data, *_ = tiny.pretraining(tiny.config(text, **{**NOISE, **changes}))
    batch = {name: array[:rows] for name, array in next(data.batches("train", 0, np.arange(12))).items()}
    with caplog.at_level("INFO"):
        params = jax.eval_shape(task.init, jax.random.key(1))
        _, metrics = jax.eval_shape(lambda params: task.loss(params, batch, None), params)
    assert f"the head reads all positions: the {rows} rows" in caplog.text and "masked_lm_bound" in metrics


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data__next_sentence": True}, "masking.causal_share"),
        ({"model__direction": "left_to_right"}, "masking.causal_share"),
        ({"model__direction": "left_to_right", "objective": "causal_lm"}, "masking.distribution"),
        ({"masking__causal_share": 1 / 32}, "masking.causal_share"),
        ({"masking__causal_stages": ((0.5, 1 / 32),)}, "masking.causal_stages"),
        ({"batch_size": 12, "masking__causal_share": 1 / 8}, "masking.causal_share"),
    ],
)
def test_causal_rows_that_no_batch_has_are_an_error(text, changes, key):
    with pytest.raises(UserError, match=f"config key {key}: got"):
        tiny.pretraining(tiny.config(text, **{**NOISE, **changes}))
