"""Evaluation by search, reranking, clustering and probing, and mining of negatives, from files to numbers."""

import functools
import json
import random

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.interop import huggingface
from bertjax.models.bert import BertInputs
from bertjax.models.heads import BertForSequenceClassification
from bertjax.modes.evaluate import table
from bertjax.scoring import probing, retrieval
from tests import published, tiny
from tests.experiments.commands import done, flags, lines_of
from tests.random_params import random_params

CONFIG = "--config=configs/retrieval.py"
PROMPTS = {"query": "the ", "passage": "a dog "}
WORDS = ["the", "cat", "dog", "sees", "cats", "birds", "birding", "doggy"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = published.write_sentence_transformers(tmp_path_factory.mktemp("model"), "mean_tokens", False, 16)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return folder


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A folder in BEIR's form, in which query "d7" has the id of a document."""
    folder, rng = tmp_path_factory.mktemp("beir"), random.Random(0)
    texts = list(dict.fromkeys(" ".join(rng.choices(WORDS, k=rng.randint(2, 6))) for _ in range(60)))
    (folder / "qrels").mkdir()
    queries, documents = {f"q{i}": text for i, text in enumerate(texts[:9])}, dict(enumerate(texts[9:]))
    queries["d7"] = f"{texts[16]} ."
    grades = {
        query: {f"d{i}": rng.randint(1, 2) for i in rng.sample(range(40), 8) if f"d{i}" != query} for query in queries
    }
    rows = [{"_id": f"d{i}", "text": text} for i, text in documents.items()]
    for name, each in (("corpus", rows), ("queries", [{"_id": i, "text": text} for i, text in queries.items()])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))
    lines = [f"{query}\t{name}\t{grade}\n" for query, names in grades.items() for name, grade in names.items()]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder, queries, {row["_id"]: row["text"] for row in rows}, grades


def evaluate(model, source, config=CONFIG, **values):
    values = {"init_from": model, "data.test_source": source, **values}
    return json.loads(done("--mode=evaluate", config, *flags(values)).stdout)


def similarities(model, queries, documents):
    """The cosines of all queries and documents, from vectors that `bertjax.load` makes."""
    load = bertjax.load(model)
    prompted = ((queries, PROMPTS["query"]), (documents, PROMPTS["passage"]))
    first, second = (load.encode(list(texts.values()), prompt=prompt, normalize=True) for texts, prompt in prompted)
    rows = [dict(zip(documents, map(float, row), strict=True)) for row in first @ second.T]
    return dict(zip(queries, rows, strict=True))


def test_a_folder_is_scored_as_its_vectors_rank_the_documents(model, collection):
    folder, queries, documents, grades = collection
    found = similarities(model, queries, documents)
    del found["d7"]["d7"]
    ranked = {query: retrieval.ranked(scores) for query, scores in found.items()}
    expected = retrieval.summarized(list(retrieval.each_query(ranked, grades)))
    record = evaluate(model, folder)
    for name, values in expected.items():
        assert record[f"test/{name}"] == pytest.approx(values.mean())
        assert record[f"test/{name}_low"] <= record[f"test/{name}"] <= record[f"test/{name}_high"]
    assert 0.05 < record["test/ndcg@10"] < 0.9
    assert (record["test/queries"], record["test/documents"]) == (10, len(documents))
    protocol = record["protocol"]
    assert protocol["prompts"] == {"query": "the ", "document": "a dog "}
    assert (protocol["seq_len"], protocol["similarity"], protocol["dtype"]) == (16, "cosine", "float32")
    assert protocol["fingerprints"].keys() == {"test", "init_from"} and "jax" in protocol["packages"]
    assert "protocol" not in table(record)
    other = evaluate(model, folder, query_prompt="cat ", similarity="dot")
    assert other["protocol"]["prompts"]["query"] == "cat " and other["test/ndcg@10"] != record["test/ndcg@10"]


def test_a_cross_encoder_reorders_the_first_documents(model, collection, tmp_path):
    folder, queries, documents, grades = collection
    head, ids = BertForSequenceClassification(published.CONFIG, 1, 0.0, 0), jnp.zeros((1, 1), jnp.int32)
    params = random_params(functools.partial(head.init, deterministic=True), BertInputs(ids, ids, ids), scale=0.5)
    huggingface.save(tmp_path, params["params"], published.CONFIG, "BertForSequenceClassification", ["score"])
    published.TOKENIZER.save(tmp_path)
    record = evaluate(model, folder, reranker=tmp_path, rerank=5)
    settings = {"objective": "regression", "metrics": ("pearson",), "data.text_columns": ("a", "b"), "data.seq_len": 32}
    scorer = bertjax.load(tmp_path, "classification", config=settings)
    found = similarities(model, queries, documents)
    del found["d7"]["d7"]
    expected = {}
    for query, scores in found.items():
        names = retrieval.ranked(scores)
        pairs = [(queries[query], documents[name]) for name in names[:5]]
        best = {name: each["score"] for name, each in zip(names, scorer.predict(pairs), strict=False)}
        expected[query] = [*retrieval.ranked(best), *names[5:]]
    values = retrieval.summarized(list(retrieval.each_query(expected, grades)))
    assert record["test/ndcg@10"] == pytest.approx(values["ndcg@10"].mean())
    assert record["test/ndcg@10"] != record["test/before_reranking/ndcg@10"]
    assert record["protocol"]["fingerprints"].keys() == {"test", "init_from", "reranker"}


def test_negatives_of_a_folder_and_of_a_table(model, collection, tmp_path):
    folder, queries, documents, grades = collection
    command = ("--mode=mine", CONFIG, f"--config.init_from={model}", "--config.mining.num_negatives=3")
    of_folder = (*command, f"--config.data.source={folder}", "--config.mining.skip=1")
    error = tiny.run(*of_folder).error
    tiny.check_message(error, what="data.source", got="no qrels/train.tsv", expected="", fix="qrels to one of test")
    done(*of_folder, "--config.data.qrels=test", f"--output={tmp_path / 'rows.jsonl'}")
    rows = lines_of(tmp_path / "rows.jsonl")
    found = similarities(model, queries, documents)
    expected = []
    for query, text in queries.items():
        others = [name for name in retrieval.ranked(found[query]) if name not in grades[query]]
        chosen = [documents[name] for name in others[1:4]]
        expected += [{"query": text, "positive": documents[name], "negatives": chosen} for name in grades[query]]
    assert rows == expected
    pairs = [("the cat", "cats"), ("the cat", "dog"), ("sees", "birds")]
    lines = (json.dumps(dict(zip(("query", "positive"), pair, strict=True))) + "\n" for pair in pairs)
    (tmp_path / "pairs.jsonl").write_text("".join(lines))
    source = f"--config.data.source={tmp_path / 'pairs.jsonl'}"
    rows = [json.loads(line) for line in done(*command, source).stdout.splitlines()]
    assert [sorted(row["negatives"]) for row in rows] == [["birds"], ["birds"], ["cats", "dog"]]
    command = (*command, source, f"--config.data.corpus={folder}")
    drawn = [done(*command, "--config.mining.sampling=random") for _ in range(2)]
    assert drawn[0].stdout == drawn[1].stdout != done(*command).stdout


def test_labeled_texts_are_clustered_and_probed(model, tmp_path):
    rng, words = random.Random(0), (("birds", "the", "birding"), ("cat", "dog", "sees"))
    texts = [" ".join(rng.choices(words[number % 2], k=4)) for number in range(90)]
    lines = [f"{text}\tc{number % 2}\n" for number, text in enumerate(texts)]
    for name, own in (("train", lines[:60]), ("test", lines[60:])):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(own))
    config, source = f"{CONFIG}:labels", tmp_path / "test.tsv"
    record = evaluate(model, source, config, **{"data.source": tmp_path / "train.tsv"})
    vectors, classes = bertjax.load(model).encode(texts, prompt="the "), np.arange(90) % 2
    right = probing.fit(vectors[:60], classes[:60], 2)(vectors[60:]) == classes[60:]
    assert record["test/probe/accuracy"] == right.mean() > 0.7 and 0 <= record["test/v_measure"] <= 1
    assert record["test/training_texts"] == 60 and "test/probe/accuracy_low" in record
    without = evaluate(model, source, config)
    assert without["test/v_measure"] == record["test/v_measure"] and "test/probe/accuracy" not in without


def test_predictions_are_vectors_of_queries(model):
    outcome = done("--mode=predict", CONFIG, f"--config.init_from={model}", stdin="the cat\n")
    (record,) = map(json.loads, outcome.stdout.splitlines())
    np.testing.assert_allclose(record["features"], bertjax.load(model).encode(["the cat"], prompt="the "), atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "config", "values", "what", "got"),
    [
        ("evaluate", CONFIG, {}, "data.test_source", "no source"),
        ("evaluate", CONFIG, {"data.test_source": "{model}"}, "source", r"no corpus\.jsonl"),
        ("evaluate", CONFIG, {"data.test_source": "{folder}", "reranker": "{model}"}, "reranker", "0 outputs"),
        ("evaluate", CONFIG, {"data.test_source": "{folder}", "reranker": "missing"}, "reranker", "no such folder"),
        ("mine", CONFIG, {"data.source": "{folder}", "mining.up_to": 3}, "mining.up_to", "3"),
        ("mine", f"{CONFIG}:labels", {"data.source": "{folder}", "data.qrels": "test"}, "data.label_column", "label"),
        ("mine", "--config=configs/minimal_pairs.py", {}, "--mode=mine", "an experiment without training"),
        ("mine", "--config=configs/classification.py", {}, "--mode=mine", "the experiment classification"),
    ],
)
def test_mistakes_are_reported_before_texts_are_encoded(model, collection, mode, config, values, what, got):
    values = {key: str(value).format(model=model, folder=collection[0]) for key, value in values.items()}
    error = tiny.run_on_one(f"--mode={mode}", config, f"--config.init_from={model}", *flags(values)).error
    tiny.check_message(error, what=what, got=got, expected="", fix="")
