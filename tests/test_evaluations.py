"""Evaluations that a run makes in addition to that of its validation split."""

import json
import shutil
from pathlib import Path

import pytest

from bertjax import evaluations
from bertjax.errors import UserError
from bertjax.tasks.minimal_pairs import FloatModel
from bertjax.training import loop
from tests import tiny
from tests.experiments.commands import done, lines_of
from tests.test_errors import write_package

SEARCH = {"evaluations": "retrieval", "retrieval__every": 2}
RARE = {"retrieval__source": "beir", **SEARCH, "checkpoint__best_metric": "valid/retrieval/ndcg@10"}
# An evaluation of an installed package: the mean of the features of two rows.
MODULE = """
import dataclasses
import numpy as np
from bertjax.config import Constrained
from bertjax.contract import Evaluation, Example
from bertjax.evaluations import retrieval

@dataclasses.dataclass(frozen=True)
class Config(Constrained, prefix="mine"):
    length: int = 4

def evaluation(config, task, on_bad_row):
    view = retrieval._MeanVectors(task)
    row = dict.fromkeys(("input_ids", "token_type_ids", "segment_ids"), np.ones(config.length, np.int32))
    def examples():
        return iter([Example([row], None), Example([row], None)])
    def score(results):
        return {"mine/mean": float(np.mean([outputs[0]["features"] for _, outputs in results]))}
    return Evaluation("mine", view, examples, score, ("mine/mean",))
"""


def of_steps(run, metric):
    return [record["step"] for record in lines_of(run / "metrics.jsonl") if metric in record]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluations")
    collection = tiny.write_collection(folder / "beir", ["the cat runs", "dogs see horses", "a big cat"])
    values = {**SEARCH, "retrieval__source": collection, "evaluate_every": 2}
    done(*tiny.arguments(tiny.write_text(folder / "t.txt"), folder / "run", **values))
    return folder / "run"


def test_an_evaluation_is_added_to_any_task_with_its_own_interval(run):
    assert of_steps(run, "valid/masked_lm_loss") == [2, 4, 6]
    assert of_steps(run, "valid/retrieval/ndcg@10") == [4, 6]
    config = json.loads((run / "config.json").read_text())
    assert config["retrieval"] == {"source": str(run.parent / "beir"), "qrels": "test", "every": 2}


def test_a_trained_run_is_evaluated_with_another_evaluation(run, tmp_path):
    collection = tiny.write_collection(tmp_path / "beir", ["the cat", "cat the"])
    flags = [f"--config.retrieval.source={collection}", "--config.evaluations=retrieval"]
    scores = json.loads(done("--mode=evaluate", f"--workdir={run}", *flags).stdout)
    same = json.loads(done("--mode=evaluate", f"--workdir={run}").stdout)
    assert scores["valid/masked_lm_loss"] == same["valid/masked_lm_loss"]
    assert same["valid/retrieval/ndcg@10"] == lines_of(run / "metrics.jsonl")[-1]["valid/retrieval/ndcg@10"]
    assert 0 < scores["valid/retrieval/ndcg@10"] != same["valid/retrieval/ndcg@10"]


@pytest.mark.parametrize(
    ("values", "what", "got", "expected", "fix"),
    [
        ({"evaluations": "retrieval"}, "retrieval.source", "no folder", "BEIR", "--config.retrieval.source=FOLDER"),
        ({"evaluations": "blimp"}, "evaluations", "'blimp'", "one of .*, minimal_pairs, retrieval", "choose one"),
        (RARE, "checkpoint.best_metric", "ndcg@10, which only one of 2", "of every evaluation", "retrieval.every=1"),
        ({**SEARCH, "retrieval__sauce": "x"}, "retrieval.sauce", "an unknown key", "--keys", "retrieval.source"),
    ],
)
def test_wrong_evaluations_are_reported_before_training(tmp_path, monkeypatch, values, what, got, expected, fix):
    monkeypatch.chdir(tmp_path)
    tiny.write_collection(Path("beir"), ["the cat", "the dog"])
    outcome = tiny.run_on_one(*tiny.arguments(tiny.write_text(tmp_path / "t.txt"), tmp_path / "run", **values))
    tiny.check_message(outcome.error, what=what, got=got, expected=expected, fix=fix)
    assert not (tmp_path / "run").exists()


def test_a_task_without_the_view_of_an_evaluation(tmp_path):
    tree = tiny.config(tiny.write_text(tmp_path / "t.txt"))
    task = tiny.ready(tree, tmp_path / "kept").task
    view = FloatModel(task.language_models[0], task.predict_lengths())
    for name in ("minimal_pairs", "causal_pairs", "likelihood", "word_likelihood", "retrieval"):
        module = evaluations.find(name)
        with pytest.raises(UserError, match=f"evaluations: got {name}, for a task without a "):
            module.evaluation(module.Config(), view, "stop")


def test_text_without_tokens_has_no_likelihood(tmp_path):
    task = tiny.ready(tiny.config(tiny.write_text(tmp_path / "t.txt")), tmp_path / "kept").task
    (tmp_path / "hyphens.txt").write_text("\u00ad\n", encoding="utf-8")  # a soft hyphen, which normalization drops
    config = evaluations.likelihood.Config(source=str(tmp_path / "hyphens.txt"), seq_len=16)
    with pytest.raises(UserError, match=r"likelihood.source: got no token in .*hyphens.txt"):
        evaluations.likelihood.evaluation(config, task, "stop").examples()


def test_an_evaluation_has_the_values_of_its_keys_and_the_policy_for_bad_rows(tmp_path):
    tree = tiny.config(tiny.write_text(tmp_path / "t.txt"))
    task = tiny.ready(tree, tmp_path / "kept").task
    folder = tiny.write_collection(tmp_path / "beir", ["the cat", "the dog"])
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "dev.tsv")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write("\nbad\n")
    pairs = [{"good": "the cat", "bad": "cat the", "UID": "a"}] * 3
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in [*pairs, "bad"]))
    own = {
        "minimal_pairs": {"source": str(tmp_path / "pairs.jsonl"), "every": 2, "per_paradigm": 0},
        "retrieval": {"source": str(folder), "every": 3, "qrels": "dev"},
    }
    tree = evaluations.with_keys({**tree, **own, "data": {**tree["data"], "on_bad_row": "skip"}})
    found = evaluations.of_config(tree, task)
    assert [(each.name, each.every) for each in found] == [("minimal_pairs", 2), ("retrieval", 3)]
    assert [len(list(each.examples())) for each in found] == [3, 4]
    for each in evaluations.of_config({**tree, "data": {**tree["data"], "on_bad_row": "stop"}}, task):
        with pytest.raises(UserError, match=r"jsonl:\d: got .*bad"):
            list(each.examples())


def test_an_installed_package_adds_evaluations(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_evaluation.py").write_text(MODULE)
    write_package(tmp_path, "mine", "mine = mine_evaluation", "bertjax.evaluations")
    tree = {**tiny.config(tiny.write_text(tmp_path / "t.txt"), evaluate_every=6), "evaluations": "mine"}
    tree = evaluations.with_keys({**tree, "mine": {"length": 3}})
    assert tree["mine"] == {"length": 3}
    assert "every" in tree["minimal_pairs"]  # those of the config file stay
    task, data, settings, _ = tiny.ready(tree, tmp_path / "kept")
    loop.train(task, data, settings, tmp_path / "run", evaluations=evaluations.of_config(tree, task))
    assert of_steps(tmp_path / "run", "valid/mine/mean") == [6]


def test_a_run_predicts_without_the_package_of_its_evaluation(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    config = json.loads((copy / "config.json").read_text())
    config |= {"evaluations": "gone,retrieval", "gone": {"length": 3}}
    (copy / "config.json").write_text(json.dumps(config))
    outcome = done("--mode=predict", f"--workdir={copy}", stdin="the [MASK]\n")
    assert "evaluations gone: no installed package has them; ignored" in outcome.stderr
    assert outcome.stdout == done("--mode=predict", f"--workdir={run}", stdin="the [MASK]\n").stdout
    error = tiny.run_on_one("--mode=evaluate", f"--workdir={copy}").error
    tiny.check_message(error, what="evaluations", got="'gone'", expected="one of .*, minimal_pairs, retrieval", fix="")
