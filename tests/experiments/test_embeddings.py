"""Embeddings, from related texts to vectors of new texts."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.errors import UserError
from bertjax.models.embedding_losses import Texts, total
from bertjax.tasks import samples as page_samples
from bertjax.tools.reporting import samples
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, SIZES, done, flags, lines_of, trained, tree_of
from tests.random_params import random_params
from tests.trees import specs

SMALL = {
    "batch_size": 16,
    "log_every": 50,
    **SIZES,
    **NO_DROPOUT,
    "data.seq_len": 24,
    "data.valid_fraction": 0.2,
    "data.text_columns": ("query", "positive", "negatives"),
}
PAIRS = {"data.text_columns": ("query", "positive"), "data.score_column": "score"}
TEACHER = {"data.score_column": "scores"}
CLASSES = {"data.text_columns": ("query",), "data.label_column": "label"}


def ready(folder, **values):
    tree = tree_of("embeddings", "tiny", {**SMALL, **tiny.write_related(folder), "num_steps": 2, **values})
    return tiny.ready(tree, folder / "kept")


@pytest.mark.slow
def test_a_run_learns_and_its_vectors_are_those_of_its_export(tmp_path):
    values = {**SMALL, **CLASSES, **tiny.write_related(tmp_path, 500)}
    values |= {
        "num_epochs": 10.0,
        "optimizer.learning_rate": 3e-3,
        "data.query_prompt": "the ",
        "sizes": (8, 12),
        "truncate_dim": 12,
        "learn_scale": True,
    }
    values["retrieval.source"] = tiny.write_collection(tmp_path / "beir", ["cat runs", "dog sees horse", "big cat"])
    (run, _), exported = trained("embeddings.py:tiny", tmp_path, values), tmp_path / "exported"
    metrics = lines_of(run / "metrics.jsonl")
    assert metrics[-1]["valid/accuracy@1"] > 0.9
    source = {"init_from": run, "data.test_source": values["retrieval.source"]}
    scores = json.loads(done("--mode=evaluate", "--config=configs/retrieval.py", *flags(source)).stdout)
    assert scores["test/ndcg@10"] == metrics[-1]["valid/retrieval/ndcg@10"] > 0
    done("--mode=report", f"--workdir={run}")
    assert samples.read(run).examples[0]["kind"] == "retrieval"
    done("--mode=export", f"--workdir={run}", f"--output={exported}")
    texts, (ours, theirs) = ["cat runs", "dog sees big horse"], map(bertjax.load, (run, exported))
    vectors = ours.encode(texts)
    np.testing.assert_allclose(theirs.encode(texts), vectors, atol=1e-6)
    assert vectors.shape == (2, 12)
    np.testing.assert_allclose([record["features"] for record in ours.predict(texts)], vectors, atol=1e-6)
    table = [{"query": text, "more": {"id": number}} for number, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    command = ["--mode=predict", f"--workdir={run}", f"--input={tmp_path / 'texts.jsonl'}", "--columns=more.id"]
    done(*command, f"--output={tmp_path / 'out.jsonl'}")
    predicted = lines_of(tmp_path / "out.jsonl")
    assert [next(iter(record.items())) for record in predicted] == [("more.id", 0), ("more.id", 1)]
    np.testing.assert_allclose([record["features"] for record in predicted], vectors, atol=1e-5)
    prompted = ours.encode([f"the {text}" for text in texts])
    np.testing.assert_allclose(theirs.encode(texts, prompt_name="query"), prompted, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "own"),
    [
        ("ranking", {}),
        ("ranking", {"data.text_columns": ("query", "positive"), "symmetric": True, "learn_scale": True}),
        ("ranking", CLASSES),
        ("cosine", PAIRS),
        ("cosent", PAIRS),
        ("triplet", {"sentence_pooling": "cls+max"}),
        ("margin", {**TEACHER, "sizes": (8,)}),
    ],
)
def test_the_loss_of_packed_texts_is_that_of_separate_ones(tmp_path, objective, own):
    task, data, _, config = ready(tmp_path, objective=objective, normalize=False, **own)
    params, batch = random_params(task.init), next(data.batches("train", 0, np.arange(16)))
    assert specs(batch) in list(map(specs, task.batch_specs()))
    present = batch["places"] >= 0
    rows, numbers = np.divmod(batch["places"][present], batch["cls_positions"].shape[1])
    own_tokens = batch["segment_ids"][rows] == numbers[:, None] + 1
    alone = {name: np.zeros(own_tokens.shape, np.int32) for name in ("input_ids", "token_type_ids", "segment_ids")}
    for number, (row, tokens) in enumerate(zip(rows, own_tokens, strict=True)):
        alone["input_ids"][number, : tokens.sum()] = batch["input_ids"][row][tokens]
        alone["segment_ids"][number, : tokens.sum()] = 1
    features = np.asarray(jax.jit(task.infer)(params, alone)["features"])
    vectors = np.zeros((*present.shape, features.shape[1]), np.float32)
    vectors[present] = features
    scores = batch["scores"] if config["data"]["score_column"] else np.zeros((16, 0), np.float32)
    texts = Texts(present, batch["numbers"], scores, batch["weights"])
    assert len({*batch["numbers"][present]}) > 2
    scale = jnp.float32(config["scale"])
    expected = total(objective, jnp.asarray(vectors), texts, scale, task._loss, config["sizes"])
    params = params | {name: task.init(jax.random.key(0))[name] for name in params if name == "log_scale"}
    sums, _ = jax.jit(task.loss)(params, batch, None)
    np.testing.assert_allclose(sums[objective], expected, rtol=1e-5)


def test_queries_and_documents_have_their_prompts_except_in_prediction(tmp_path):
    task, data, *_ = ready(tmp_path, **{"data.query_prompt": "the ", "data.document_prompt": "a big "})
    encode = data.vocabulary.encode_batch
    example = next(data.validation_examples())
    query, *documents = example.source.item.texts
    prompted = [f"the {query}", *(f"a big {text}" for text in documents)]
    assert [row["input_ids"].tolist()[1:-1] for row in example.rows] == encode(prompted)
    (example,) = task.examples_in(["cat runs"])
    assert example.rows[0]["input_ids"].tolist()[1:-1] == encode(["cat runs"])[0]
    searched = task.text_vectors()
    for codec, prompt in ((searched.query, "the "), (searched.document, "a big ")):
        fields, *_ = codec.encode([searched.of_text("cat runs")])
        assert fields["input_ids"].values.tolist()[1:-1] == encode([f"{prompt}cat runs"])[0]


@pytest.mark.parametrize(
    ("values", "has_classes"), [(CLASSES, True), ({}, False), ({"objective": "cosent", **PAIRS}, False)]
)
def test_errors_of_texts_with_classes_have_a_place_on_two_axes(tmp_path, values, has_classes):
    task, data, *_ = ready(tmp_path, **values)
    rng = np.random.default_rng(0)

    def infer(examples):
        return [(example, [{"features": rng.normal(size=4)} for _ in example.rows]) for example in examples]

    records = list(task.errors(data, infer))
    assert len(records) > 5 and all(("projection" in record) == has_classes for record in records)
    if has_classes:
        classes = {example.source.item.texts[0]: example.source.item.label for example in data.validation_examples()}
        assert {record["text"]: record["class"] for record in records} == classes
        shares = np.var([record["projection"] for record in records], axis=0)
        assert 1 > shares[0] >= shares[1] > 0.2 and shares.sum() < 1


def test_the_variances_of_a_projection_are_the_shares_of_principal_axes():
    vectors = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32) * np.arange(1, 7)
    points = page_samples.projection(vectors)
    variances = np.linalg.eigvalsh(np.cov(vectors.T.astype(np.float64)))[::-1]
    np.testing.assert_allclose(points.var(axis=0), variances[:2] / variances.sum(), rtol=1e-6)
    np.testing.assert_allclose(points.T @ points / 50, np.diag(points.var(axis=0)), atol=1e-9)
    np.testing.assert_array_equal(page_samples.projection(vectors), points)
    for shape in ((3, 4), (1, 1)):  # without variance
        np.testing.assert_array_equal(page_samples.projection(np.ones(shape)), np.zeros((shape[0], 2)))


def test_slices_draw_the_same_dropout(tmp_path):
    def gradient(slices):
        task, data, *_ = ready(
            tmp_path,
            accumulation_steps=slices,
            **{"model.dropout": 0.2, "model.attention_dropout": 0.2, "data.row_multiple": 8 // slices},
        )
        batch = next(data.batches("train", 0, np.arange(16)))
        loss = jax.jit(jax.value_and_grad(lambda params: task.loss(params, batch, jax.random.key(1))[0]["ranking"]))
        return loss(random_params(task.init))

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient(1), gradient(4))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"objective": "cosine"}, "data.score_column: got ''; expected a column with objective=cosine"),
        ({"objective": "triplet", "data.text_columns": ("query", "positive")}, "a third column, of negatives"),
        ({**CLASSES, "objective": "triplet"}, "expected ranking with classes"),
        ({"sizes": (32,)}, "sizes: got .*expected numbers below 32"),
        ({"data.num_negatives": 2}, "jsonl:1: got 3 negatives; expected at most 2"),
        ({"data.text_columns": ("query", "label2")}, "label2"),
        ({**TEACHER, "objective": "margin", "data.text_columns": ("query", "positive", "label")}, "4 scores in column"),
        ({"sentence_pooling": "median"}, "got 'median'; expected one of cls, max, mean"),
    ],
)
def test_bad_values_are_refused(tmp_path, values, message):
    with pytest.raises(UserError, match=message):
        ready(tmp_path, **values)


def test_a_score_that_no_cosine_has_is_refused(tmp_path):
    row = {"query": "cat runs", "positive": "big cat", "score": 3.5}
    (tmp_path / "rated.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    rated = {**PAIRS, "data.valid_source": str(tmp_path / "rated.jsonl")}
    with pytest.raises(UserError, match=r"rated.jsonl:1: got 3.5 in column 'score'; expected a number from -1 to 1"):
        next(ready(tmp_path, objective="cosine", **rated)[1].validation_examples())
    next(ready(tmp_path, objective="cosent", **rated)[1].validation_examples())
