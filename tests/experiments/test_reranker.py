"""Rerankers, from rows of each objective to scores that rank texts."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import bertjax
from bertjax.contract import Example
from bertjax.data.codecs.related_texts import RelatedTexts
from bertjax.data.rows.choice_rows import ChoiceRows
from bertjax.errors import UserError
from bertjax.scoring import retrieval
from bertjax.tasks import inputs
from bertjax.training.step import make_gradient
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, done, lines_of, sizes, trained, tree_of
from tests.random_params import random_params
from tests.showing import shown
from tests.trees import specs

SMALL = {
    "batch_size": 8,
    **sizes(1, 16, 2, 16, 16),
    **NO_DROPOUT,
    "model.classifier_dropout": 0.0,
    "data.seq_len": 16,
    "data.valid_fraction": 0.2,
}
THREE = ("query", "positive", "negatives")
SCORED = {"data.score_column": "scores", "data.text_columns": THREE}
PRECISION = {"checkpoint.best_metric": "valid/average_precision"}
OBJECTIVES = {
    "listwise": {},
    "listwise,scores": SCORED,
    "binary": {},
    "binary,scores": {**SCORED, **PRECISION},
    "regression": SCORED,
    "distillation": SCORED,
}


def ready(folder, objective="listwise", **values):
    values = {**SMALL, **tiny.write_rankings(folder), **OBJECTIVES[objective], **values}
    return tiny.ready(tree_of("reranker", f"tiny,{objective.partition(',')[0]}", values), folder / "kept")


@pytest.mark.slow
def test_a_run_learns_and_ranks_the_texts_of_a_table(tmp_path):
    values = {**SMALL, **tiny.write_rankings(tmp_path, 2000), "model.hidden_size": 64, "num_epochs": 6.0}
    values |= {"optimizer.learning_rate": 1e-3, "model.initializer_range": 0.1, "model.num_layers": 2}
    workdir, _ = trained("reranker.py:tiny", tmp_path, values)
    first, *_, last = lines_of(workdir / "metrics.jsonl")
    assert first["valid/chance_accuracy@1"] < 0.5 and last["valid/accuracy@1"] > 0.95
    predicted = done("--mode=predict", f"--workdir={workdir}", f"--input={values['data.source']}")
    assert len(predicted.stdout.splitlines()) == 2000


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_update_depends_neither_on_absent_texts_nor_on_how_a_batch_is_divided(objective, tmp_path):
    task, data, settings, config = ready(tmp_path, objective)
    assert config["data"]["num_negatives"] == 3
    params, rows = random_params(task.init, scale=0.3), np.array([*range(7), -1])
    batch, wider = (each.padded(rows, 16) for each in (data.rows, ChoiceRows(data.fields(), 6)))
    assert len(set(batch["segment_ids"].any(axis=-1).sum(axis=1))) > 2  # otherwise means of means would be equal
    assert specs(task.batch_specs()[-1]) == specs(batch)
    of_texts = task.loss_name in ("binary", "regression")
    count = batch["segment_ids"].any(axis=-1).sum() if of_texts else 7
    assert task.denominators(batch) == {task.loss_name: count}

    def gradient(batch, steps):
        divided = dataclasses.replace(settings, accumulation_steps=steps)
        return jax.jit(make_gradient(task, divided))(params, batch, 0, 0)

    ((loss, _), whole), ((same, _), divided) = gradient(batch, 1), gradient(wider, 4)
    assert float(same) == pytest.approx(float(loss), rel=1e-5) and loss > 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), divided, whole)


def test_only_texts_are_truncated_and_counted(tmp_path):
    task, data, *_ = ready(tmp_path, **{"data.seq_len": 11})
    train = [row for split, row in data.codec.splits() if split == "train"]
    rows = [row for example in inputs.encoded(data.codec, train) for row in example.rows]
    np.testing.assert_array_equal(data.fields()["input_ids"].values, np.concatenate([r["input_ids"] for r in rows]))
    whole = [(row.texts[0].split(), text.split()) for row in train for text in row.texts[1:]]
    cut = [(" ".join(query), " ".join(text[: 8 - len(query)])) for query, text in whole]
    pieces = map(data.vocabulary.encode_batch, cut)
    assert [[i for i in row["input_ids"] if i > 4] for row in rows] == [[*query, *text] for query, text in pieces]
    counts = data.report()["pairs"], data.report()["truncated"]
    assert counts == (len(rows), sum(len(query) + len(text) > 8 for query, text in whole)) and counts[1] > 10
    (example,) = task.examples_in([("likes cat", "the cat sees a dog the cat finds")])
    assert example.limited == {"truncated": "data.seq_len=11 tokens"}
    with pytest.raises(UserError, match=r"input 1: got a query of 8 tokens; expected at most 7, so that data\.seq"):
        list(task.examples_in([("likes the small red old big small cat", "a dog")]))


@pytest.mark.parametrize(
    ("objective", "change", "told"),
    [
        ("listwise", {"positive": " "}, "an empty text in column 'positive'"),
        ("listwise", {"negatives": []}, "a row without negatives; expected one negative or more"),
        ("listwise,scores", {"negatives": [], "scores": [1]}, "a row without negatives"),
        ("binary", {"negatives": []}, "a row without negatives"),
        ("binary", {"negatives": ["cat a"], "positive": "cat a"}, "a negative that is equal to the positive"),
        ("binary,scores", {"negatives": [], "scores": [1.5]}, r"\[1.5\] in column 'scores'; expected numbers from 0"),
        ("regression", {"negatives": [], "scores": None}, "None in column 'scores'; expected a finite number"),
        ("distillation", {"negatives": ["dog", "fish"], "scores": [1, 2]}, "2 scores in column 'scores'; expected 3"),
        ("listwise", {"query": "the " * 14}, "a query of 14 tokens; expected at most 12"),
    ],
)
def test_bad_rows(objective, change, told, tmp_path):
    """A row without negatives is good if it has a score, and the objective does not compare texts."""
    bad = {"query": "likes cat", "positive": "cat", "negatives": ["dog"], "scores": [1, 0], **change}
    is_alone = objective in ("binary,scores", "regression")
    good = {**bad, "query": "a", "positive": "cat", "negatives": [] if is_alone else ["dog"]}
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{json.dumps({**good, 'scores': 0.5 if is_alone else [3, 2]})}\n{json.dumps(bad)}\n")
    with pytest.raises(UserError, match=f"bad.jsonl:2: got {told}"):
        ready(tmp_path, objective, **{"data.valid_source": str(path)})


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"data.num_negatives": 1}, "config key data.num_negatives: got 1; expected 3 or more"),
        ({"data.text_columns": ("query",)}, "config key data.text_columns: got .*the columns of the query and"),
        ({"data.text_columns": ("query", "positive")}, "a third column, of negatives, with objective=listwise"),
        ({"objective": "regression", "data.score_column": ""}, "data.score_column: got ''; expected a column with"),
    ],
)
def test_keys_that_do_not_fit(values, told, tmp_path):
    with pytest.raises(UserError, match=told):
        ready(tmp_path, **values)


def test_metrics(tmp_path):
    logits = [[0.5, 0.5, -1.0], [2.0, 1.0], [0.0, *range(1, 12)]]
    scores = [[1.0, 0.2, 0.9], [0.0, 1.0], [1.0, *[0.0] * 11]]
    results = [
        (Example([], inputs.Source(RelatedTexts([], y, None))), [{"logits": np.float32(each)} for each in x])
        for x, y in zip(logits, scores, strict=True)
    ]
    found = ready(tmp_path).task.score(results)
    orders = [retrieval.ranked({str(i): each for i, each in enumerate(row)}) for row in logits]
    for name, (metric, cutoff) in {**retrieval.METRICS, "accuracy@1": (retrieval.recall, 1)}.items():
        if name in found:
            assert found.pop(name) == pytest.approx(np.mean([metric(order, {"0": 1}, cutoff) for order in orders]))
    assert not found
    expected = {"average_precision": 0.15826263197586726}  # scikit-learn's average_precision_score
    assert ready(tmp_path / "b", "binary,scores").task.score(results) == pytest.approx(expected)


@pytest.mark.parametrize("objective", ["listwise", "regression"])
def test_samples_show_queries_and_texts(objective, tmp_path):
    task, data, *_ = ready(tmp_path, objective)
    for example, row in zip(shown(task, data, tmp_path / "shown").examples, data.valid, strict=False):
        query, positive, *_ = row.source.item.texts
        reference = positive if objective == "listwise" else row.source.item.scores[0]
        assert (example["text"], example["reference"]) == (query, reference)


def test_a_cross_encoder_of_any_version_opens_with_its_activation(tmp_path):
    task, *_ = ready(tmp_path, "binary")
    task.export(random_params(task.init), folder := tmp_path / "exported")
    ours, config = bertjax.load(folder), json.loads((folder / "config.json").read_text())
    assert (ours.config.experiment, ours.config.activation, ours.config.data.seq_len) == ("reranker", "sigmoid", 16)
    del config["sentence_transformers"]

    def opened(stated, of_version_6, experiment=""):
        (folder / "config.json").write_text(json.dumps({**config, **stated}))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(of_version_6))
        return bertjax.load(folder, experiment)

    name = "torch.nn.modules.linear.Identity"
    for stated in ({"sentence_transformers": {"activation_fn": name}}, {"sbert_ce_default_activation_function": name}):
        assert opened(stated, {}).config.activation == "identity"
    with pytest.raises(UserError, match=r"a model with one output: .*configs/reranker\.py"):
        opened({}, {})
    assert opened({}, {}, "reranker").config.activation == "sigmoid"
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.Transformer"}]))
    theirs = opened({}, {"model_type": "CrossEncoder", "activation_fn": name})
    logit, score = (model.predict([("likes cat", "the cat runs")])[0]["score"] for model in (theirs, ours))
    assert score == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-6)
    with pytest.raises(UserError, match=r"activation of scores: got x\.Tanh; expected torch"):
        opened({}, {"model_type": "CrossEncoder", "activation_fn": "x.Tanh"})
