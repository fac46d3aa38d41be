"""Each task learns from a teacher: an export of the same task with random weights."""

import dataclasses
import functools
import itertools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import load
from bertjax.data.rows import targets
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from bertjax.experiments import bert_pretraining
from bertjax.interop.published import open_weights
from bertjax.modes import stages
from bertjax.tasks import teachers as teaching
from bertjax.tools.planning import plan_record
from bertjax.training import flops, loop
from bertjax.training import step as steps
from bertjax.training.compilation import Compilations
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, done, flags, lines_of, sizes, tree_of
from tests.random_params import random_params
from tests.tools.planning import plans
from tests.trees import distance

LAYERS = ("hidden", "embeddings", "attention", "relations", "cosine")
_VALUES = {"batch_size": 8, "num_steps": 2, "data.seq_len": 24, **sizes(2, 32, 4, 48, 24), **NO_DROPOUT}
_OF_TASKS = {
    "bert_pretraining": {
        "data.stages": (),
        "data.packing": False,
        "data.lines": "sentence",
        "data.workers": 1,
        "data.valid_fraction": 0.2,
    },
    "question_answering": {"data.max_query_length": 8},
    "embeddings": {"data.text_columns": ("query", "positive"), "data.row_multiple": 8},
}
_WRITERS = {
    "bert_pretraining": lambda folder: {"data.source": str(tiny.write_text(folder / "text.txt"))},
    "classification": tiny.write_table,
    "tagging": tiny.write_sentences,
    "question_answering": tiny.write_questions,
    "multiple_choice": tiny.write_choices,
    "reranker": tiny.write_related,
    "embeddings": tiny.write_related,
}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """Returns a function from a task to the config keys of its data, and the folder of a teacher."""
    made = {}

    def teacher(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            values = {**_WRITERS[name](folder), **_OF_TASKS.get(name, {})}
            ready = tiny.ready(tree_of(name, "tiny", {**_VALUES, **values}), folder / "data")
            ready.task.export(random_params(ready.task.init), folder / "teacher")
            if name == "bert_pretraining":
                values["data.vocab_file"] = str(folder / "teacher")
            made[name] = values, folder / "teacher"
        return made[name]

    return teacher


def student(teachers, name, folder, **distilled):
    """The task of a student, its first state, and a batch with the teacher's outputs."""
    values, teacher = teachers(name)
    changes = {key.replace("__", "."): value for key, value in distilled.items()}
    own = {key: value for key, value in changes.items() if "." in key or key == "learn_scale"}
    terms = {f"distillation.{key}": value for key, value in changes.items() if key not in own}
    teacher = terms.pop("distillation.teacher", str(teacher))
    tree = tree_of(name, "tiny", {**_VALUES, **values, **own, "teacher": teacher, **terms})
    ready = tiny.ready(tree, folder)
    published = ready.task.weights if terms.get("distillation.init_layers") else None
    trainer = loop.Trainer(ready.task, ready.settings, jax.devices()[:1], published)
    batch = trainer.with_teacher_outputs(trainer.put(next(ready.data.batches("train", 0, np.arange(8)))))
    assert {key: value.shape for key, value in batch.items()} in [
        {key: value.shape for key, value in spec.items()} for spec in ready.task.batch_specs()
    ]
    return ready.task, trainer.fresh().params, batch


def terms_of(task, params, batch):
    _, metrics = jax.jit(lambda params, batch: task.loss(params, batch, None))(params, batch)
    prefix = "distillation_"
    return {
        name.removeprefix(prefix): float(total / count)
        for name, (total, count) in metrics.items()
        if name.startswith(prefix)
    }


@pytest.mark.parametrize("name", list(_WRITERS))
def test_a_copy_of_the_teacher_has_no_loss(teachers, tmp_path, name):
    chosen = ("logits",) if name == "embeddings" else ("logits", *LAYERS)
    weights = dict.fromkeys(chosen, 1.0)
    task, params, batch = student(teachers, name, tmp_path, init_layers="uniform", relation_heads=2, **weights)
    values = terms_of(task, params, batch)
    assert set(values) == set(chosen)
    assert max(map(abs, values.values())) < 1e-5
    changed = jax.tree.map(lambda leaf: leaf * 1.5, params)
    assert min(terms_of(task, changed, batch).values()) > 1e-4
    sums, _ = jax.eval_shape(lambda: task.loss(params, batch, None))
    assert set(sums) == {*task.denominators(batch)}


@pytest.mark.parametrize("name", ["bert_pretraining", "reranker"])
def test_a_student_of_another_width_learns_maps(teachers, tmp_path, name):
    weights = dict.fromkeys(("hidden", "embeddings", "relations", "cosine"), 1.0)
    task, params, batch = student(
        teachers, name, tmp_path, **weights, labels=0.0, relation_heads=2, model__hidden_size=16, model__num_layers=1
    )
    assert {key: value.shape for key, value in params["distillation"].items()} == dict.fromkeys(
        ("hidden", "embeddings", "cosine"), (16, 32)
    )
    counts = task.denominators(batch)

    def loss(params):
        sums, _ = task.loss(params, batch, None)
        return sum(sums[term] / counts[term] for term in sums)

    function = jax.jit(jax.value_and_grad(loss))
    before, slope = function(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(slope["distillation"]))
    after, _ = function(jax.tree.map(lambda leaf, change: leaf - 0.01 * change, params, slope))
    assert after < before


def test_a_student_starts_from_layers_in_any_order(teachers, tmp_path):
    layers = []
    for numbers in ("1,2", "2,1"):
        _, params, _ = student(teachers, "classification", tmp_path, init_layers=numbers)
        layers.append(params["bert"]["encoder"]["layers"]["output"]["kernel"])
    np.testing.assert_array_equal(layers[1], layers[0][::-1])


def test_padding_is_not_distilled(teachers, tmp_path):
    """The losses and the maps of layers do not depend on the tokens of padding, and have no slope there."""
    weights = dict.fromkeys(("logits", *LAYERS), 1.0)
    task, params, batch = student(teachers, "classification", tmp_path, init_layers="last", relation_heads=4, **weights)
    params = jax.tree.map(lambda leaf: leaf * 1.1, params)
    padded = batch["segment_ids"] == 0
    assert padded.any()
    other = {**batch, "input_ids": jnp.where(padded, 7, batch["input_ids"])}
    expected = terms_of(task, params, batch)
    assert terms_of(task, params, other) == pytest.approx(expected, rel=1e-5)
    noise = np.random.default_rng(0).normal(size=batch["teacher_hidden_states"].shape)
    noisy = {**batch, "teacher_hidden_states": batch["teacher_hidden_states"] + noise * padded[:, None, None, :, None]}
    assert terms_of(task, params, noisy) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("value", "count", "expected"),
    [("first", 2, (1, 2)), ("last", 2, (5, 6)), ("uniform", 4, (1, 3, 4, 6)), ("2,5", 2, (2, 5))],
)
def test_layer_numbers(value, count, expected):
    assert teaching.layer_numbers(value, count, 6, "layers") == expected


@pytest.mark.parametrize(
    ("value", "count"), [("1,2", 3), ("0,1", 2), ("6,7", 2), ("all", 2), ("first", 7), ("last", 7)]
)
def test_wrong_layers(value, count):
    with pytest.raises(UserError, match=r"config key distillation\.layers: got .*expected first, last, uniform, or"):
        teaching.layer_numbers(value, count, 6, "layers")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("classification", {"teacher": "", "hidden": 1.0}, "config key teacher: got no folder, with distillation"),
        ("classification", {"relations": 1.0, "relation_heads": 3}, "relation_heads: got 3; expected a divisor of 32"),
        ("classification", {"attention": 1.0, "model__num_heads": 2}, "attention: got 4 heads of the teacher and 2"),
        ("classification", {"logits": 1.0, "logits_at": "all"}, "logits_at: got 'all'; expected predicted"),
        ("classification", {"hidden": 1.0, "relation_layer": 3}, "relation_layer: got 3; expected 0, or a layer"),
        ("embeddings", {"hidden": 1.0}, "hidden: got a weight; expected 0: of tasks"),
        ("bert_pretraining", {"init_layers": "first", "model__hidden_size": 16}, "size: got 16, with .* expected 32"),
        ("bert_pretraining", {"init_layers": "first", "model__norm": "pre"}, "norm: got pre, with .* expected post"),
        ("bert_pretraining", {"init_layers": "first", "labels": 0.0}, "labels: got 0.0; expected 1"),
        ("bert_pretraining", {"logits": 1.0, "model__vocab_size": 500}, "logits: got model.vocab_size of .* and 500"),
        ("bert_pretraining", {"logits": 1.0, "masking__predict_at": "previous"}, "logits: got masking.predict_at=same"),
        ("bert_pretraining", {"hidden": 1.0, "masking__distribution": "uniform"}, "teacher: got a folder; expected no"),
        ("classification", {"init_layers": "first", "targets": "stored"}, "targets: got .*; expected live, without"),
        ("classification", {"logits": 1.0, "targets": "stored", "data__packing": True}, "live, with data.packing"),
    ],
)
def test_terms_that_do_not_fit(teachers, tmp_path, name, changes, message):
    with pytest.raises(UserError, match=message):
        student(teachers, name, tmp_path, **changes)


def test_a_student_has_one_start(teachers):
    _, teacher = teachers("classification")
    config = {"teacher": str(teacher), "init_from": "elsewhere", "distillation": {"init_layers": "first"}, "model": {}}
    with pytest.raises(UserError, match=r"init_layers: got first, with init_from=elsewhere; expected one start"):
        teaching.with_teacher(config, open_weights(teacher))


def test_a_teacher_with_more_embeddings_than_tokens(teachers, tmp_path):
    values, _ = teachers("bert_pretraining")
    ready = tiny.ready(tree_of("bert_pretraining", "tiny", {**_VALUES, **values, "model.vocab_size": 200}), tmp_path)
    ready.task.export(random_params(ready.task.init), tmp_path / "teacher")
    own = {**values, "data.vocab_file": ""}
    of_padded = student(lambda _: (own, tmp_path / "teacher"), "bert_pretraining", tmp_path / "data", logits=1.0)
    assert of_padded[2]["teacher_logits"].shape[-1] == 200


def test_vectors_are_compared_as_the_teacher_gives_them(teachers, tmp_path):
    """A teacher that normalizes has vectors of length 1; keys of the student alone are not its own."""
    task, params, batch = student(teachers, "embeddings", tmp_path, logits=1.0, learn_scale=True)
    longer = {**batch, "teacher_logits": 3 * batch["teacher_logits"]}
    assert terms_of(task, params, longer) == pytest.approx(terms_of(task, params, batch), rel=1e-5)


def test_heads_without_labels_cost_no_backward_pass(teachers, tmp_path):
    task, *_ = student(teachers, "bert_pretraining", tmp_path, relations=1.0, relation_heads=2)
    spec = flops.largest_spec(task)
    whole = flops.training_flops(task, spec)
    keys = dataclasses.replace(task._config.distillation, labels=0.0)
    task._config = dataclasses.replace(task._config, distillation=keys)
    count = spec["masked_positions"].size
    of_head = 2 * count * 32 * (32 + task.encoder.vocab_size)
    assert whole - flops.training_flops(task, spec) >= 2 * of_head


def test_a_plan_has_the_memory_of_the_teacher(teachers):
    """Its operations are those of the update, whose time it states."""
    values, teacher = teachers("bert_pretraining")
    given = {**_VALUES, **values, "teacher": str(teacher), "distillation.hidden": 1.0}
    tree = tree_of("bert_pretraining", "tiny", given)
    resolved = stages.of_config(bert_pretraining, tree)
    task, _ = plans.build(resolved.config)
    record = plan_record.plan(resolved.config, plans.build, plans.target_of())
    shapes = jax.eval_shape(task.teacher.init, jax.random.key(0))
    sizes = record["bytes_per_device"]
    assert sizes["teacher"] == 4 * sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert sizes["total"] == sum(size for part, size in sizes.items() if part != "total")
    spec = flops.largest_spec(task)
    assert record["flops_per_step"] == flops.training_flops(task, spec) - flops.teacher_flops(task, spec)


def test_another_vocabulary_is_refused(teachers, tmp_path):
    _, teacher = teachers("tagging")
    values, _ = teachers("classification")
    tree = tree_of("classification", "tiny", {**_VALUES, **values, "teacher": str(teacher), "distillation.hidden": 1.0})
    with pytest.raises(UserError, match=r"got a vocabulary of \d+ tokens, other than the student's of \d+"):
        tiny.ready(tree, tmp_path)


def test_a_teacher_without_the_head(teachers, tmp_path):
    """An encoder teaches layers, but not predictions."""
    folder = tmp_path / "encoder"
    values, teacher = teachers("classification")
    shutil.copytree(teacher, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))

    def of(*_):
        return values, folder

    student(of, "classification", tmp_path / "layers", cosine=1.0)
    other = {**values, "data.source": values["data.source"]}
    tree = tree_of("classification", "tiny", {**_VALUES, **other, "teacher": str(folder), "distillation.logits": 1.0})
    ready = tiny.ready(tree, tmp_path / "logits")
    lacks = jax.tree.map(lambda _: False, jax.eval_shape(ready.task.teacher.init, jax.random.key(0)))
    lacks["classifier"] = jax.tree.map(lambda _: True, lacks["classifier"])
    with pytest.raises(UserError, match="got no weights of classifier; expected a model that was trained"):
        ready.task.check_weights(lacks)


def test_collapse_is_warned_of(teachers, tmp_path, caplog):
    task, params, batch = student(teachers, "embeddings", tmp_path, logits=1.0, model__hidden_size=16)
    _, metrics = jax.eval_shape(lambda: task.loss(params, batch, None))
    assert {"student_mean_cosine", "teacher_mean_cosine"} <= set(metrics)
    task.review({"train/student_mean_cosine": 0.9, "train/teacher_mean_cosine": 0.75})
    assert not caplog.records
    task.review({"train/student_mean_cosine": 0.9, "train/teacher_mean_cosine": 0.65})
    assert "mean cosine of 0.90, the teacher's of 0.65" in caplog.text


@pytest.mark.slow
def test_a_run_needs_its_teacher_only_in_training(teachers, tmp_path):
    """Predictions, evaluations and exports do without it; a resumed run needs the same, but not its `init_from`."""
    values, teacher = teachers("classification")
    folder = shutil.copytree(teacher, tmp_path / "teacher")
    start = shutil.copytree(teacher, tmp_path / "start")
    keys = {**_VALUES, **values, "num_steps": 4, "checkpoint.save_every": 2, "evaluate_every": 2, "log_every": 1}
    keys |= {"teacher": folder, "distillation.hidden": 1.0, "distillation.logits": 1.0}
    keys |= {"init_from": start, "data.vocab_file": ""}
    run = tmp_path / "run"
    command = ["--config=configs/classification.py:tiny", f"--workdir={run}", *flags(keys)]
    done(*command)
    logged = [line for line in lines_of(run / "metrics.jsonl") if "train/distillation_logits" in line]
    assert len(logged) == 4
    assert json.loads((run / "config.json").read_text())["distillation"]["digest"]
    shutil.rmtree(folder)
    done("--mode=predict", f"--workdir={run}", "--input=-", f"--output={tmp_path / 'out.jsonl'}", stdin="a cat .\n")
    assert lines_of(tmp_path / "out.jsonl")[0]["label"] in ("no", "yes")
    done("--mode=evaluate", f"--workdir={run}")
    done("--mode=export", f"--workdir={run}", f"--output={tmp_path / 'export'}")
    shutil.copytree(teacher, folder)
    shutil.rmtree(start)
    done(*command)
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert "got a run with another config: distillation.digest" in tiny.run_on_one(*command).error
    digest = json.loads((run / "config.json").read_text())["distillation"]["digest"]
    with pytest.raises(UserError, match=r"teacher=.*got weights of digest \w+; expected \w+, with which"):
        teaching.open_teacher(str(folder), digest)


def _updates(ready, count, folder):
    """The parameters after some updates."""
    if ready.task.stores:
        steps.store_targets(ready.task, ready.data, ready.settings, folder)
    trainer = loop.Trainer(ready.task, ready.settings, jax.devices()[:1])
    with Compilations() as compiled:
        updates = trainer.updates(ready.data.batches, trainer.fresh(), compiled)
        return [update.state.params for update in itertools.islice(updates, count)][-1]


@pytest.mark.parametrize("name", ["classification", "reranker", "embeddings"])
def test_stored_targets_are_live_ones(teachers, tmp_path, name):
    """Rows of one text have the same bits at one length; at another, or packed, they are rounded otherwise."""
    values, teacher = teachers(name)
    keys = {**_VALUES, **values, "num_steps": 20, "teacher": str(teacher), "distillation.logits": 1.0}
    keys |= {"model.hidden_size": 16, "optimizer.learning_rate": 1e-3}
    if name == "classification":
        keys["data.row_lengths"] = (4,)  # all rows are longer
    params = []
    for kind in ("live", "stored"):
        ready = tiny.ready(tree_of(name, "tiny", {**keys, "distillation.targets": kind}), tmp_path / "data")
        with tiny.few_devices(1):
            params.append(_updates(ready, 20, tmp_path / kind))
    gap = distance(*params)
    assert gap == 0 if name == "classification" else gap < 1e-5


def test_stored_targets_are_computed_once(teachers, tmp_path, monkeypatch, caplog):
    """After a kill, only the parts that were not finished are computed."""
    caplog.set_level("INFO")
    monkeypatch.setattr(targets, "_SHARD", 16)  # two batches
    values, teacher = teachers("classification")
    keys = {**_VALUES, **values, "teacher": str(teacher), "distillation.logits": 1.0, "distillation.targets": "stored"}
    ready = tiny.ready(tree_of("classification", "tiny", {**keys, "data.row_lengths": ()}), tmp_path / "data")
    lengths = []

    def program(batch, most=100):
        if len(lengths) == most:
            raise KeyboardInterrupt
        lengths.append(len(batch["input_ids"]))
        return {"teacher_logits": batch["input_ids"][:, :2].astype(np.float32)}

    with pytest.raises(KeyboardInterrupt):
        ready.task.store(ready.data, functools.partial(program, most=5), tmp_path / "targets")
    assert len(list(tmp_path.glob("targets/teacher-*/*.npz"))) == 2
    rows = len(ready.data.rows.lengths)
    assert f"the teacher's outputs for all rows take {rows * 12:,} bytes" in caplog.text  # two logits and a weight
    lengths.clear()
    ready.task.store(ready.data, program, tmp_path / "targets")
    later = len(lengths)
    lengths.clear()
    (tmp_path / "whole").mkdir()
    ready.task.store(ready.data, program, tmp_path / "whole")
    assert later == len(lengths) - 4
    ready.task.store(ready.data, functools.partial(program, most=0), tmp_path / "targets")
    other = {**keys, "data.row_lengths": (), "class_weights": (1.0, 2.0)}
    other = tiny.ready(tree_of("classification", "tiny", other), tmp_path / "data")
    other.task.store(other.data, program, tmp_path / "targets")
    assert len(list(tmp_path.glob("targets/teacher-*"))) == 2
    rows = ready.data.rows.padded(np.arange(len(ready.data.rows.lengths)), 24)["input_ids"][:, :2]
    np.testing.assert_array_equal(ready.data._targets["teacher_logits"], rows)


def test_a_teacher_with_another_vocabulary(teachers, tmp_path):
    """It reads the texts with its own tokens; its logits are those of a prediction."""
    values, teacher = teachers("classification")
    words = [*SPECIALS, *reversed(tiny.WORDS)]
    WordPiece(words, lowercase=True).save(tmp_path / "vocabulary")
    own = {"data.vocab_file": str(tmp_path / "vocabulary"), "data.row_lengths": ()}
    keys = {**_VALUES, **values, **own, "teacher": str(teacher), "distillation.logits": 1.0}
    ready = tiny.ready(tree_of("classification", "tiny", {**keys, "distillation.targets": "stored"}), tmp_path / "data")
    steps.store_targets(ready.task, ready.data, ready.settings, tmp_path / "targets")
    logits = ready.data._targets["teacher_logits"].astype(np.float64)
    stored = np.sort(1 / (1 + np.exp(logits[:, 0] - logits[:, 1])))
    texts = [line.split("\t")[0] for line in Path(values["data.source"]).read_text().splitlines()[1:]]
    predicted = [row["probabilities"]["yes"] for row in load(teacher, "classification").predict(texts)]
    nearest = [min(abs(value - other) for other in predicted) for value in stored]
    assert len(stored) < len(predicted)  # the others are validation rows
    assert max(nearest) < 1e-5 < np.diff(stored).max()


@pytest.mark.parametrize("name", ["bert_pretraining", "tagging", "question_answering"])
def test_logits_of_tokens_are_not_stored(teachers, tmp_path, name):
    with pytest.raises(UserError, match=r"distillation\.targets: got stored, of [\d,]+ bytes a row; expected live"):
        student(teachers, name, tmp_path, logits=1.0, targets="stored")
