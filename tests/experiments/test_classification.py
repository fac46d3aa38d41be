"""Classification and regression, from rows in a file to labels for new text."""

import collections
import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import bertjax
from bertjax.errors import UserError
from bertjax.experiments import classification
from bertjax.interop.formats.tensorflow_checkpoint import Checkpoint
from bertjax.interop.published import open_weights
from bertjax.modes import stages
from bertjax.tasks.inputs import Source
from bertjax.tasks.objectives import OBJECTIVES
from tests import published as published_models
from tests import tiny
from tests.experiments import commands
from tests.experiments.commands import SIZES, done, lines_of, trained, tree_of
from tests.interop import bundles
from tests.random_params import random_params
from tests.showing import shown
from tests.trees import specs

SMALL = {
    "num_epochs": 6.0,
    "batch_size": 8,
    "log_every": 10,
    **SIZES,
    "data.seq_len": 16,
    "data.valid_fraction": 0.2,
    "optimizer.learning_rate": 1e-2,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to detect whether there is a cat."""
    folder = tmp_path_factory.mktemp("classification")
    return trained("classification.py:tiny", folder, {**SMALL, **tiny.write_table(folder, rows=400)})


def ready_of(values, folder):
    return tiny.ready(tree_of("classification", "tiny", {**SMALL, **values}), folder / "kept")


def ready(tmp_path, **overrides):
    return ready_of({**tiny.write_table(tmp_path), **overrides}, tmp_path)


def test_a_run_learns_and_keeps_its_labels(run):
    workdir, _ = run
    metrics = lines_of(workdir / "metrics.jsonl")
    assert 0.5 < metrics[0]["valid/majority_accuracy"] < 0.9
    assert any("train/evaluation_row_seconds" in line for line in metrics)
    scores = [line for line in metrics if "valid/accuracy" in line]
    assert max(line["valid/accuracy"] for line in scores) > 0.97
    config = json.loads((workdir / "config.json").read_text())
    assert config["data"]["labels"] == ["no", "yes"]
    steps_per_epoch = config["evaluate_every"]
    assert config["num_steps"] == 6 * steps_per_epoch == metrics[-1]["step"]
    assert config["optimizer"]["warmup_steps"] == round(0.1 * config["num_steps"])
    assert [line["step"] for line in scores] == [steps_per_epoch * epoch for epoch in range(1, 7)]
    assert (workdir / "vocab.txt").exists()


published = functools.partial(commands.published, "classification", b"the cat\n")


def test_validation_rows_are_scored_without_training_rows(run, tmp_path):
    """The classes have the order of the run, not that of the rows."""
    source = tiny.write_table(tmp_path, rows=40)["data.source"]
    alone = json.loads(published(run[0], "evaluate", **{"data.valid_source": source}).stdout)
    assert alone["valid/accuracy"] > 0.9

    reversed_run = shutil.copytree(run[0], tmp_path / "reversed")
    config = json.loads((reversed_run / "config.json").read_text())
    config["data"]["labels"].reverse()
    (reversed_run / "config.json").write_text(json.dumps(config))
    for values in ({}, {"data.source": source}):
        other = published(reversed_run, "evaluate", **{"data.valid_source": source, **values})
        assert json.loads(other.stdout)["valid/accuracy"] == pytest.approx(1 - alone["valid/accuracy"])


def test_a_run_is_evaluated_on_other_rows(run, tmp_path):
    """Metrics have the names of their splits. The command line can override the run's settings."""
    source = tiny.write_table(tmp_path, rows=40)["data.source"]
    one = tiny.evaluate_elsewhere(run[0], tmp_path, data__test_source=source, data__valid_source=source)
    assert one["test/accuracy"] == one["valid/accuracy"] > 0.9
    assert set(one) == {f"{s}/{name}" for s in ("valid", "test") for name in ("accuracy", "loss", "majority_accuracy")}
    flags = "--mode=evaluate", f"--workdir={tmp_path / 'elsewhere'}", f"--config.data.test_source={source}"
    two = tiny.run_on_one(*flags, "--config.metrics=('macro_f1',)")
    assert set(json.loads(two.stdout)) == {"test/macro_f1", "test/loss", "test/majority_accuracy"}


def test_prediction_reads_no_rows(run):
    values = {"data.source": "gone.tsv", "data.valid_source": "gone.tsv"}
    assert json.loads(published(run[0], "predict", **values).stdout)["label"] == "yes"
    told = {"got": "does not exist", "expected": "files", "fix": "correct the path"}
    tiny.check_message(published(run[0], "evaluate", **values).error, what="data.source=gone.tsv", **told)
    del values["data.source"]
    tiny.check_message(published(run[0], "evaluate", **values).error, what="data.valid_source=gone.tsv", **told)
    other = published(run[0], "predict", **{"data.labels": "('a','b')"})
    tiny.check_message(other.error, what="data.labels", got="a, b", expected="no, yes, the classes of", fix="omit it")


def test_the_config_names_the_classes_of_a_google_research_classifier(tmp_path):
    """run_classifier.py does not record names of classes."""
    folder = shutil.copytree(published_models.GOOGLE, tmp_path / "uncased")
    before = Checkpoint(folder / "bert_model.ckpt")
    head = {"output_weights": np.zeros((3, 8), np.float32), "output_bias": np.array([0, 5, 0], np.float32)}
    arrays = {name: before.read(name) for name in before.tensors} | head
    ends = np.cumsum([array.nbytes for array in arrays.values()])
    entries = zip(arrays.items(), ends, strict=True)
    items = [(name.encode(), bundles.entry(array, int(end) - array.nbytes)) for (name, array), end in entries]
    content = b"".join(array.tobytes() for array in arrays.values())
    bundles.write(folder / "bert_model.ckpt", [bundles.HEADER, *items], content)

    outcome = published(folder, "predict", **{"data.labels": "('a','b','c')", "data.seq_len": 10})
    assert json.loads(outcome.stdout)["label"] == "b"
    assert "has no class names; assuming a, b, c" in outcome.stderr
    told = {"what": "init_from", "got": "no weights of classifier", "expected": "was trained", "fix": "name such"}
    two = published(folder, "predict", **{"data.labels": "('a','b')", "data.seq_len": 10})
    tiny.check_message(two.error, **told)
    none = published(folder, "predict", **{"data.seq_len": 10})
    tiny.check_message(none.error, what="data.source", got="no classes in", expected="rows", fix="data.labels")


ANIMALS = ("cat", "dog", "bird")


def label_sets(folder, form, **overrides):
    """A task and data of texts labeled by the animals in them, in columns of 0 and 1 or as lists."""
    values = tiny.write_table(folder)
    texts = [line.partition("\t")[0] for line in Path(values["data.source"]).read_text().splitlines()[1:]]
    found = [[animal for animal in ANIMALS if animal in text.split()] for text in texts]
    source = folder / f"rows.{form}"
    if form == "csv":
        flags = (",".join(str(int(animal in each)) for animal in ANIMALS) for each in found)
        rows = ["sentence," + ",".join(ANIMALS), *(f"{text},{each}" for text, each in zip(texts, flags, strict=True))]
        values["data.label_column"] = ",".join(ANIMALS)
    else:
        rows = [json.dumps({"sentence": text, "label": each}) for text, each in zip(texts, found, strict=True)]
    source.write_text("\n".join(rows) + "\n")
    return ready_of({**values, "objective": "multi_label", "data.source": str(source), **overrides}, folder)


def test_label_sets_are_learned_from_columns_and_from_lists(tmp_path):
    """Columns keep their order. Both forms have the same classes, batches and baseline."""
    (task, data, *_), (other, lists, *_) = (label_sets(tmp_path / form, form) for form in ("csv", "jsonl"))
    assert (task.labels, other.labels) == (ANIMALS, ("bird", "cat", "dog"))
    batch, same = (next(each.batches("train", 0, np.arange(8))) for each in (data, lists))
    np.testing.assert_array_equal(batch["labels"], same["labels"][:, [1, 2, 0]])
    (spec, *_) = (each for each in task.batch_specs() if each["input_ids"].shape == batch["input_ids"].shape)
    assert specs(batch) == specs(spec)
    sets = collections.Counter(frozenset(example.source.item.label) for example in data.validation_examples())
    assert data.baselines() == lists.baselines() == {"valid/majority_accuracy": max(sets.values()) / sets.total()}

    params = random_params(task.init, scale=0.5)
    sums, metrics = jax.jit(functools.partial(task.loss, rng=None))(params, batch)
    logits = jax.jit(task.infer)(params, batch)["logits"]
    labels, weights = batch["labels"], batch["weights"]
    expected = np.sum(optax.sigmoid_binary_cross_entropy(logits, labels).mean(axis=1) * weights)
    np.testing.assert_allclose(sums["multi_label"], expected, rtol=1e-5)
    assert metrics["accuracy"][0] == np.sum(np.all((logits >= 0) == labels, axis=1) * weights)
    weighted, *_ = label_sets(tmp_path / "csv", "csv", class_weights=(3.0, 1.0, 1.0))
    extra = np.sum(2 * jax.nn.softplus(-logits[:, 0]) * labels[:, 0] * weights) / 3
    sums, _ = jax.jit(functools.partial(weighted.loss, rng=None))(params, batch)
    np.testing.assert_allclose(sums["multi_label"], expected + extra, rtol=1e-5)
    assert weighted.denominators(batch)["multi_label"] == weights.sum()


def test_classes_above_the_threshold_are_predicted(tmp_path):
    task, data, *_ = label_sets(tmp_path, "csv", threshold=0.7)
    (example, *_) = data.validation_examples()
    output = [{"logits": np.log(np.array([0.9, 0.6, 0.71]) / np.array([0.1, 0.4, 0.29]))}]
    probabilities = {"cat": 0.9, "dog": 0.6, "bird": 0.71}
    assert task.record(example, output) == {"labels": ["cat", "bird"], "probabilities": probabilities}
    labeled = example.source.item._replace(label=("cat", "dog"))
    example = example._replace(source=Source(labeled))
    scores = task.score([(example, output)])
    assert set(task.score_names()) | {f"f1_{name}" for name in ANIMALS} == set(scores)
    assert (scores["accuracy"], scores["micro_f1"], scores["f1_cat"], scores["f1_bird"]) == (0, 0.5, 1, 0)
    assert scores["loss"] == pytest.approx(-np.mean(np.log([0.9, 0.6, 0.29])))
    found = shown(task, data, tmp_path / "shown")
    assert found.examples[0]["labels"] == [] and set(found.examples[0]["reference"]) <= set(ANIMALS)


def test_a_multi_label_folder_opens_with_its_objective(tmp_path):
    task, *_ = label_sets(tmp_path, "csv")
    params, folder = random_params(task.init, scale=0.5), tmp_path / "exported"
    task.export(params, folder)
    assert json.loads((folder / "config.json").read_text())["problem_type"] == "multi_label_classification"
    with tiny.few_devices(1):
        (record,) = bertjax.load(folder).predict(["the cat"])  # which sets the objective
    (example,) = task.examples_in(["the cat"])
    row = {name: array[None] for name, array in example.rows[0].items()}
    logits = jax.jit(task.infer)(params, row)
    expected = jax.nn.sigmoid(logits["logits"][0])
    np.testing.assert_allclose([*record["probabilities"].values()], expected, atol=2e-5)
    assert list(record["probabilities"]) == [*ANIMALS]
    told = published(folder, "predict").error
    got, fix = "exported, a model for multi_label", "--config.objective=multi_label, or set data.source"
    tiny.check_message(told, "objective=classification", got=got, expected="multi_l", fix=fix)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"problem_type": "single_label_classification"}))
    told = published(folder, "predict", objective="multi_label").error
    tiny.check_message(told, "objective=multi_label", "for classification", expected="=class", fix="=classification")


def test_a_cross_encoder_with_a_prompt_is_no_classifier(tmp_path):
    task, *_ = label_sets(tmp_path, "csv")
    task.export(random_params(task.init), folder := tmp_path / "exported")
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.Transformer"}]))
    values = {"model_type": "CrossEncoder", "prompts": {"a": "is it "}, "default_prompt_name": "a"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="got a cross-encoder with the default prompt 'is it '; expected a classifier"):
        bertjax.load(folder, "classification")


def test_a_multi_label_classifier_is_an_encoder_for_the_training_of_others(tmp_path):
    task, *_ = label_sets(tmp_path, "csv", **{"data.label_column": "cat,dog"})
    task.export(random_params(task.init), tmp_path / "exported")
    source = Path(tiny.write_table(tmp_path)["data.source"])
    source.write_text(source.read_text().replace("\tyes", "\tcat").replace("\tno", "\tdog"))
    values = {"init_from": str(tmp_path / "exported"), "data.seq_len": 16, "data.source": str(source)}
    other = tiny.ready(tree_of("classification", "", values), tmp_path / "kept").task
    assert other.labels == ("cat", "dog")
    assert other.reinitialized_modules(open_weights(tmp_path / "exported")) == ("classifier",)


def test_a_number_of_the_data_is_shown_as_it_is_written():
    assert OBJECTIVES["regression"].reference(np.float32(4.8), ()) == 4.8


def test_a_regression_model_has_no_classes(tmp_path):
    rows = tiny.write_table(tmp_path)
    Path(rows["data.source"]).write_text("sentence\tlabel\n" + "a cat .\t1.5\na dog .\t2\n" * 9)
    with pytest.raises(UserError, match=r"tsv:\d+: got 2 different numbers as labels, such as 1\.5; .*=regression"):
        ready_of(rows, tmp_path)
    task, _, settings, _ = ready_of({**rows, "objective": "regression"}, tmp_path)
    assert task.score_names() == ("pearson", "spearman", "loss")
    assert settings.checkpoint.best_metric == "valid/spearman"
    task.export(random_params(task.init), tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["problem_type"] == "regression"
    told = published(tmp_path / "exported", "predict", **{"data.seq_len": 16}).error
    tiny.check_message(told, what="init_from=", got="one output", expected="a classifier", fix="objective=regression")


def test_predictions(run):
    workdir, _ = run
    text = b"the cat sees a dog .\nthe dog sees a bird .\nthe " + b"dog and the " * 20 + b"bird .\n"
    outcome = done("--mode=predict", f"--workdir={workdir}", "--checkpoint=best", stdin=text)
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [record["label"] for record in records] == ["yes", "no", "no"]
    assert [record.get("truncated", False) for record in records] == [False, False, True]
    for record in records:
        assert record.keys() - {"truncated"} == {"label", "probabilities"}
        assert list(record["probabilities"]) == ["no", "yes"]
        assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_regression(tmp_path):
    """The label is the number of cats among the words, from 0 to 5. Mean attention over them suffices to predict it."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(240):
        words = rng.choice(["cat", "dog", "bird", "the"], rng.integers(3, 9)).tolist()
        rows.append(f"{' '.join(words)} .\t{5 * words.count('cat') / len(words):.2f}")
    values = {**SMALL, **tiny.write_table(tmp_path), "objective": "regression", "num_epochs": 10.0}
    Path(values["data.source"]).write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    values |= {**commands.NO_DROPOUT, "model.classifier_dropout": 0.0, "optimizer.learning_rate": 5e-3}
    workdir, _ = trained("classification.py:tiny", tmp_path, values)
    metrics = lines_of(workdir / "metrics.jsonl")
    assert metrics[-1]["valid/pearson"] > 0.9 and metrics[-1]["valid/spearman"] > 0.9
    assert metrics[-1]["valid/loss"] < 0.3 * metrics[0]["valid/mean_loss"]
    outcome = tiny.run_on_one("--mode=predict", f"--workdir={workdir}", stdin=b"cat cat cat dog .\ndog dog bird .\n")
    three, none = (json.loads(line)["score"] for line in outcome.stdout.splitlines())
    assert three > 2 > none


def test_every_validation_row_is_scored_once(tmp_path):
    task, data, settings, _ = ready(tmp_path)
    assert len(data.fields()["labels"]) + len(list(data.validation_examples())) == 60
    results = [(example, [{"logits": np.array([0.0, 1.0])}]) for example in data.validation_examples()]
    yes = np.mean([example.source.item.label == "yes" for example, _ in results])
    scores = task.score(results)
    assert scores["accuracy"] == pytest.approx(yes)
    assert set(scores) == set(task.score_names()) == {"accuracy", "loss"}
    assert settings.checkpoint.best_metric == "valid/accuracy"


def test_class_weights_apply_to_sums_and_denominators(tmp_path):
    plain, data, *_ = ready(tmp_path)
    weighted, *_ = ready(tmp_path, class_weights=(1.0, 3.0))
    batch = next(data.batches("train", 0, np.arange(8)))
    assert set(np.unique(batch["labels"])) == {0, 1}
    params = random_params(plain.init)
    loss = jax.jit(lambda weights: plain.loss(params, batch | {"weights": weights}, None)[0]["classification"])
    each = np.array([loss(row) for row in np.eye(8, dtype=np.float32)])
    counts = np.where(batch["labels"] == 1, 3.0, 1.0) * batch["weights"]
    sums, _ = jax.jit(weighted.loss)(params, batch, None)
    np.testing.assert_allclose(sums["classification"], np.sum(counts * each), rtol=1e-5)
    np.testing.assert_allclose(weighted.denominators(batch)["classification"], counts.sum())
    np.testing.assert_allclose(plain.denominators(batch)["classification"], batch["weights"].sum())


def test_samples_show_rows_and_labels(tmp_path):
    task, data, *_ = ready(tmp_path)
    found = shown(task, data, tmp_path / "shown")
    for example, row in zip(found.examples, data.validation_examples(), strict=False):
        assert example["reference"] == data.codec.gold(row.source.item)
        assert example["text"].endswith(" .") and "[" not in example["text"]
        assert [bar["percent"] for bar in example["bars"]] == [50.0, 50.0]
    assert [matrix["title"] for matrix in found.matrices] == ["Position embeddings", "Similarity of positions"]


@pytest.mark.parametrize("trains", [True, False])
def test_a_classifier_without_class_names_scores_numbered_rows(tmp_path, trains):
    folder = published_models.write_huggingface(tmp_path / "published")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}))
    source = Path(tiny.write_table(tmp_path)["data.source"])
    source.write_text(source.read_text().replace("\tyes", "\t1").replace("\tno", "\t0"))
    values = {"init_from": str(folder), "data.seq_len": 16, f"data.{'' if trains else 'valid_'}source": str(source)}
    begun = stages.of_config(classification, tree_of("classification", "", values))
    data = begun.data(tmp_path / "data" if trains else folder)
    if trains:
        data.prepare()
    assert data.labels == ("LABEL_0", "LABEL_1")
    lines = source.read_text().splitlines()[1:]
    counts = collections.Counter(int(example.source.item.label) for example in data.validation_examples())
    assert counts <= collections.Counter(int(line[-1]) for line in lines)
    assert counts.total() == 60 or (trains and counts)
