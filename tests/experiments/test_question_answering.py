"""Question answering, from SQuAD files to answers as characters of the text."""

import gzip
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.configs import question_answering as config_file
from bertjax.data import prepared
from bertjax.data.fine_tuning import questions, spans
from bertjax.errors import UserError
from tests import tiny
from tests.random_params import random_params
from tests.showing import shown

SMALL = {
    "num_epochs": 8.0,
    "batch_size": 16,
    "log_every": 50,
    "evaluate_every": 100,
    "model.num_layers": 1,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.intermediate_size": 32,
    "model.max_positions": 24,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.initializer_range": 0.1,
    "data.seq_len": 24,
    "data.doc_stride": 6,
    "data.max_query_length": 8,
    "data.max_answer_length": 4,
    "data.valid_fraction": 0.2,
    "optimizer.learning_rate": 4e-3,
}
# Values that predictions need without a run's config.
LENGTHS = [f"--config.{key}={value}" for key, value in SMALL.items() if key.startswith("data.")]
LONG = "The cat Sees a bird. " * 6
TEXTS = [
    {
        "context": f"{LONG}It is DARK\n gray. {LONG} late  Súnday, {LONG}",
        "qas": [{"id": "a", "question": "Which color is it?"}, {"id": 7, "question": "Which time is it?"}],
    },
    {"context": "Pale green fish sleeps.", "qas": [{"id": "b", "question": "Which color is it?", "answers": []}]},
]


def squad(*paragraphs):
    return {"version": "2.0", "data": [{"title": "Texts", "paragraphs": list(paragraphs)}]}


def flags(values):
    return [f"--config.{key}={value}" for key, value in values.items()]


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def train(folder, variant, **questions):
    values = {**SMALL, **tiny.write_questions(folder, **questions)}
    command = [f"--config=configs/question_answering.py:tiny,{variant}", f"--workdir={folder / 'run'}", *flags(values)]
    outcome = tiny.run_on_one(*command)
    assert outcome.status is None, outcome.status
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to answer with colors and times, in texts of several windows."""
    return train(tmp_path_factory.mktemp("answering"), "squad", contexts=100, words=30)


@pytest.fixture(scope="module")
def null_run(tmp_path_factory):
    """A run that has learned to answer these, and to detect that there is no answer."""
    return train(tmp_path_factory.mktemp("answering"), "squad2", contexts=250, answerable=0.6)


def predict(*command, questions=TEXTS):
    outcome = tiny.run_on_one("--mode=predict", *command, stdin=json.dumps(squad(*questions)).encode())
    assert outcome.status is None, outcome.status
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def ready(tmp_path, variant="squad", answerable=1.0, **overrides):
    tree = config_file.get_config(f"tiny,{variant}")
    values = tiny.write_questions(tmp_path, answerable=answerable, words=20)
    tree.update_from_flattened_dict({**SMALL, **values, **overrides})
    return tiny.ready(json.loads(tree.to_json_best_effort()), tmp_path / "kept")


def test_a_run_learns(run):
    metrics = lines_of(run / "metrics.jsonl")
    assert 0 < metrics[0]["valid/whole_text_f1"] < 50
    assert metrics[-1]["valid/f1"] >= metrics[-1]["valid/exact_match"] > 85
    assert [line["train/accuracy"] for line in metrics if "train/accuracy" in line][-1] > 0.5
    config = json.loads((run / "config.json").read_text())
    windows = config["num_steps"] / config["num_epochs"] * config["batch_size"]
    assert windows > 1.5 * 2 * 80  # two questions for each of 80 texts
    assert config["optimizer"]["warmup_steps"] == round(0.1 * config["num_steps"])
    assert (run / "vocab.txt").exists()


def test_a_run_learns_to_detect_unanswerable_questions(null_run):
    metrics = lines_of(null_run / "metrics.jsonl")
    last = metrics[-1]
    assert last["valid/HasAns_total"] + last["valid/NoAns_total"] == last["valid/total"]
    baseline = metrics[0]["valid/no_answer_f1"]
    assert baseline == pytest.approx(100 * last["valid/NoAns_total"] / last["valid/total"])
    assert last["valid/best_f1"] >= last["valid/f1"] > 85 > 60 > baseline
    assert last["valid/NoAns_f1"] > 80 and last["valid/HasAns_f1"] > 80
    assert np.isfinite(last["valid/best_f1_thresh"])
    assert json.loads((null_run / "config.json").read_text())["checkpoint"]["best_metric"] == "valid/best_f1"


def test_evaluation_repeats_the_scores(null_run):
    last = lines_of(null_run / "metrics.jsonl")[-1]
    outcome = tiny.run_on_one("--mode=evaluate", f"--workdir={null_run}", "--checkpoint=latest")
    assert outcome.status is None, outcome.status
    record = json.loads(outcome.stdout)
    scores = {name for name in last if name.startswith("valid/")}
    assert len(scores) == 13
    for name in scores:
        assert record[name] == pytest.approx(last[name], rel=1e-4, abs=1e-4)


def test_predictions_are_spans_of_the_text(run):
    records = predict(f"--workdir={run}")
    found = [(record["id"], record["answer"]) for record in records]
    assert found == [("a", "DARK\n gray"), ("7", "late  Súnday"), ("b", "Pale green")]
    contexts = [TEXTS[0]["context"]] * 2 + [TEXTS[1]["context"]]
    for record, context in zip(records, contexts, strict=True):
        assert record.keys() == {"id", "answer", "start", "end", "score", "null_score"}
        assert context[record["start"] : record["end"]] == record["answer"]


def test_predictions_without_an_answer(null_run):
    texts = [{"context": "The Cat sees PALE Green.", "qas": TEXTS[0]["qas"]}]
    color, time = predict(f"--workdir={null_run}", questions=texts)
    assert (color["answer"], color["start"], color["end"]) == ("PALE Green", 13, 23)
    assert (time["answer"], time["start"], time["end"]) == ("", None, None)
    assert color["null_score"] <= 0 < time["null_score"]
    command = ["--config=configs/question_answering.py:squad2", f"--config.init_from={null_run}", *LENGTHS]
    for threshold, answered in ((color["null_score"] - 1, [False, False]), (time["null_score"] + 1, [True, True])):
        records = predict(*command, f"--config.data.null_threshold={threshold}", questions=texts)
        assert [bool(record["answer"]) for record in records] == answered
        assert [record["score"] for record in records] == [color["score"], time["score"]]


def test_a_text_without_words_has_no_answer(run):
    (record,) = predict(f"--workdir={run}", questions=[{**TEXTS[1], "context": "\u200b"}])
    nothing = dict.fromkeys(("start", "end", "score", "null_score"))
    assert record == {"id": "b", "answer": "", **nothing}


def test_validation_questions_are_scored_without_training_questions(run, tmp_path):
    source = tiny.write_questions(tmp_path, contexts=20)["data.source"]
    command = ["--config=configs/question_answering.py", f"--config.init_from={run}", *LENGTHS]
    outcome = tiny.run_on_one("--mode=evaluate", *command, f"--config.data.valid_source={source}")
    assert outcome.status is None, outcome.status
    assert json.loads(outcome.stdout)["valid/f1"] > 85
    assert predict(*command, "--config.data.source=gone.json", "--config.data.valid_source=gone.json")


def test_files_in_and_out(run, tmp_path):
    plain, packed, named = tmp_path / "dev.json", tmp_path / "dev.json.gz", tmp_path / "answers.jsonl"
    plain.write_text("\ufeff" + json.dumps(squad(*TEXTS), indent=2), newline="\r\n")
    packed.write_bytes(gzip.compress(json.dumps(squad(*TEXTS)).encode()))
    expected = predict(f"--workdir={run}")
    for path in (plain, packed):
        command = ["--mode=predict", f"--workdir={run}", f"--input={path}"]
        assert tiny.run_on_one(*command, f"--output={named}").status is None
        assert lines_of(named) == expected
    official = tmp_path / "predictions.json"
    assert tiny.run_on_one(*command, f"--output={official}").status is None
    assert json.loads(official.read_text()) == {record["id"]: record["answer"] for record in expected}


def test_an_exported_run_predicts_the_same(run, tmp_path):
    exported = tmp_path / "exported"
    assert tiny.run_on_one("--mode=export", f"--workdir={run}", f"--output={exported}").status is None
    assert json.loads((exported / "config.json").read_text())["architectures"] == ["BertForQuestionAnswering"]
    assert json.loads((exported / "tokenizer_config.json").read_text())["model_max_length"] == 24
    command = ["--config=configs/question_answering.py", f"--config.init_from={exported}", *LENGTHS]
    assert predict(*command) == predict(f"--workdir={run}")


@pytest.mark.parametrize(
    ("text", "what", "got", "expected", "fix"),
    [
        ("", "input:1", "invalid JSON at column 1", "one JSON value", "correct the file"),
        ('{"data":\n [}', "input:2", "invalid JSON at column 3", "one JSON value", "correct the file"),
        ("[]", "input", "a JSON list", "an object with a list of articles under 'data'", "convert it"),
        (
            json.dumps(squad(*TEXTS, *TEXTS)),
            r"input: data\[0\].paragraphs\[2\].qas\[0\] \(id a\)",
            "the same id as ",
            "a unique id",
            "give each",
        ),
    ],
)
def test_bad_input(run, text, what, got, expected, fix):
    outcome = tiny.run_on_one("--mode=predict", f"--workdir={run}", stdin=text.encode())
    tiny.check_message(outcome.error, what=what, got=got, expected=expected, fix=fix)


def test_an_input_that_is_not_gzip(run, tmp_path):
    path = tmp_path / "dev.json.gz"
    packed = gzip.compress(json.dumps(squad(*TEXTS)).encode())
    for content in (b"{}", packed[:-9], packed[:20] + b"damage" + packed[26:]):
        path.write_bytes(content)
        outcome = tiny.run_on_one("--mode=predict", f"--workdir={run}", f"--input={path}")
        tiny.check_message(
            outcome.error, what="--input=.*gz", got="damaged or truncated", expected="complete", fix="copy the file"
        )


def change_answer(questions):
    questions["data"][0]["paragraphs"][2]["qas"][0]["answers"][0]["answer_start"] += 1


def drop_answers(questions):
    questions["data"][0]["paragraphs"][2]["qas"][0] |= {"answers": [], "is_impossible": True}


@pytest.mark.parametrize(
    ("spoil", "got", "expected", "fix"),
    [
        (change_answer, "at answer_start", "the answer", "set answer_start to"),
        (drop_answers, "a question without an answer", "data.null_answers=False", r"question_answering.py:squad2"),
    ],
)
def test_bad_questions(tmp_path, spoil, got, expected, fix):
    values = tiny.write_questions(tmp_path)
    path = Path(values["data.source"])
    questions = json.loads(path.read_text())
    spoil(questions)
    path.write_text(json.dumps(questions))
    command = ["--config=configs/question_answering.py:tiny", f"--workdir={tmp_path / 'run'}"]
    outcome = tiny.run_on_one(*command, *flags(SMALL | values))
    what = r"questions.json: data\[0\].paragraphs\[2\].qas\[0\] \(id c2-color\)"
    tiny.check_message(outcome.error, what=what, got=got, expected=expected, fix=fix)


def test_a_missing_vocabulary_is_reported_before_anything_is_written(tmp_path):
    values = tiny.write_questions(tmp_path) | {"data.vocab_file": ""}
    command = ["--config=configs/question_answering.py:tiny", f"--workdir={tmp_path / 'run'}"]
    outcome = tiny.run_on_one(*command, *flags(SMALL | values))
    tiny.check_message(outcome.error, what="data.vocab_file", got="nothing", expected="a vocab.txt", fix="init_from")
    assert not (tmp_path / "run").exists()


def test_the_recipes_of_the_paper():
    one, two = (config_file.get_config(variant) for variant in ("base,squad", "squad2,base"))
    assert (one.batch_size, one.num_epochs, one.optimizer.learning_rate) == (32, 3.0, 5e-5)
    assert (two.batch_size, two.num_epochs, two.optimizer.learning_rate) == (48, 2.0, 5e-5)
    assert (one.data.null_answers, two.data.null_answers) == (False, True)
    assert config_file.get_config("base") == one


def right_logits(example, length=24):
    """Returns outputs that point to the first answer, or to [CLS] without one. Padding lengths vary by row."""
    question, windows = example.source
    for number, window in enumerate(windows):
        start, end = spans.target(window, question.answers[0] if question.answers else None)
        logits = np.zeros((2, length + number), np.float32)
        logits[0, start] = logits[1, end] = 5 if start else 1
        logits[:, len(window.inputs["input_ids"]) :] = 100  # padding must be ignored
        yield dict(zip(("start", "end"), logits, strict=True))


@pytest.mark.parametrize(
    ("variant", "answerable", "expected"),
    [
        ("squad", 1.0, {"exact_match": 100, "f1": 100}),
        ("squad2", 0.6, {"exact": 100, "f1": 100, "NoAns_exact": 100, "HasAns_f1": 100, "best_f1": 100}),
        ("squad2", 1.0, {"exact": 100, "best_exact": 100}),
    ],
)
def test_right_logits_score_100(tmp_path, variant, answerable, expected):
    task, data, settings, _ = ready(tmp_path, variant, answerable)
    examples = list(data.validation_examples())
    assert len(examples) == len({example.source[0].id for example in examples}) > 8
    assert max(len(example.rows) for example in examples) > 1
    assert {row["segment_ids"].sum() for example in examples for row in example.rows} > {24}
    scores = task.score([(example, list(right_logits(example))) for example in examples])
    assert {name: scores[name] for name in expected} == expected
    assert set(task.score_names()) <= set(scores)
    assert settings.checkpoint.best_metric.removeprefix("valid/") in task.score_names()
    for example in examples:
        record = task.record(example, list(right_logits(example)))
        assert record["answer"] == "".join(answer.text for answer in example.source[0].answers)


def test_validation_questions_share_no_text_with_training(tmp_path):
    data = ready(tmp_path).data
    train, valid = (
        [question for split, question in data.recipe.read() if split == name] for name in ("train", "valid")
    )
    assert len(train) + len(valid) == 80
    assert not {question.context for question in train} & {question.context for question in valid}
    assert list(data.read.held_out("valid")) == valid == [example.source[0] for example in data.validation_examples()]


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("packing", [False, True])
def test_each_question_has_its_rows(tmp_path, packing):
    data = ready(tmp_path, "squad2", 0.6, **{"data.packing": packing}).data
    vocabulary, encode, sizes = data.vocabulary, data.vocabulary.encode_with_offsets, []
    rows = [question for split, question in data.recipe.read() if split == "train"]
    expected = {name: [] for name in ("input_ids", "token_type_ids", "start_positions", "end_positions")}
    for question in rows:
        query, context = encode(question.question).ids[:8], encode(question.context).ids
        answer = encode(question.answers[0].text).ids.tolist() if question.answers else None
        room = 24 - 3 - len(query)
        starts = range(0, max(len(context) - room, 0) + 6, 6)
        sizes.append(len(starts))
        for start in starts:
            part = context[start : start + room].tolist()
            place = next((i for i in range(len(part)) if answer == part[i : i + len(answer or ())]), None)
            first = 0 if place is None else len(query) + 2 + place
            ids = [vocabulary.cls_id, *query, vocabulary.sep_id, *part, vocabulary.sep_id]
            expected["input_ids"].append(ids)
            expected["token_type_ids"].append([0] * (len(query) + 2) + [1] * (len(part) + 1))
            expected["start_positions"].append(first)
            expected["end_positions"].append(first + len(answer) - 1 if first else 0)
    fields = data.fields()
    assert max(sizes) > 2 and any(expected["start_positions"]) and not all(expected["start_positions"])
    for name in ("input_ids", "token_type_ids"):
        found, lengths = fields[name]
        assert found.tolist() == [each for row in expected[name] for each in row] and found.dtype == np.int32
        assert lengths.tolist() == [len(row) for row in expected[name]]
    for name in ("start_positions", "end_positions"):
        assert fields[name].tolist() == expected[name] and fields[name].dtype == np.int32
    report = data.report()
    assert (report["windows"], report["answers_in_no_window"]) == (sum(sizes), 0)


def test_answers_outside_all_windows_are_counted(tmp_path):
    first = ready(tmp_path, **{"data.doc_stride": 18}).data
    counts = [
        len(spans.windows(question, first.vocabulary, first.recipe.spans))
        for split, question in first.recipe.read()
        if split == "train"
    ]
    labeled = np.split(first.fields()["start_positions"] > 0, np.cumsum(counts)[:-1])
    lost = sum(not windows.any() for windows in labeled)
    assert first.report()["answers_in_no_window"] == lost > 0


def test_questions_are_read_once(tmp_path, monkeypatch):
    first = ready(tmp_path)
    monkeypatch.setattr(questions, "read_questions", lambda *_, **__: pytest.fail("read again"))
    again = ready(tmp_path, seed=7, **{"data.n_best": 3, "data.null_threshold": 1.0})
    assert again.data.prepared.folder == first.data.prepared.folder
    one, two = ([example.source[0] for example in each.data.validation_examples()] for each in (first, again))
    assert one == two and first.data.baselines() == again.data.baselines()


def test_questions_without_answers_are_reported_after_a_run_that_accepts_them(tmp_path):
    ready(tmp_path, "squad2", 0.6)
    with pytest.raises(UserError, match="a question without an answer"):
        ready(tmp_path, "squad", 0.6)


def test_two_workers_prepare_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_BLOCK_CHARACTERS", 2000)
    monkeypatch.setattr(prepared, "_FEW_CHARACTERS", 0)
    one, two = (ready(tmp_path / f"{n}", **{"data.workers": n}).data.prepared.folder for n in (1, 2))
    files = files_of(one)
    # Locations of questions contain the file name, whose folder differs here.
    for name, content in files_of(two).items():
        assert content.replace(str(tmp_path / "2").encode(), str(tmp_path / "1").encode()) == files[name]
    assert len(files) > 6


def test_training_rows_point_to_their_answers(tmp_path):
    task, data, *_ = ready(tmp_path)
    batch = next(data.batches("train", 0, np.arange(16)))
    assert {name: (array.dtype, array.shape) for name, array in batch.items()} in [
        {name: (spec.dtype, spec.shape) for name, spec in specs.items()} for specs in task.batch_specs()
    ]
    phrases = {"color": ("dark gray", "light blue", "pale green"), "time": ("early monday", "late sunday")}
    for row in np.flatnonzero(batch["weights"]):
        words = [task._tokenizer.vocab[i] for i in batch["input_ids"][row]]
        start, end = batch["start_positions"][row], batch["end_positions"][row]
        text = " ".join(words)
        assert (start > 0) == any(phrase in text for phrase in phrases[words[2]])
        assert (start, end) == (0, 0) or " ".join(words[start : end + 1]) in phrases[words[2]]


def test_padding_rows_do_not_count(tmp_path):
    task, data, *_ = ready(tmp_path)
    few = {name: array[:3] for name, array in next(data.batches("train", 0, np.arange(16))).items()}
    filled = {name: np.concatenate([array, np.zeros_like(array)]) for name, array in few.items()}
    params = random_params(task.init)

    def mean(params, batch):
        sums, metrics = task.loss(params, batch, None)
        return sums["span"] / task.denominators(batch)["span"], metrics["accuracy"]

    update = jax.jit(jax.value_and_grad(mean, has_aux=True))
    alone, among = (update(params, batch) for batch in (few, filled))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), alone, among)
    assert alone[0][1][1] == 3


def test_the_loss_excludes_padding(tmp_path):
    task, data, *_ = ready(tmp_path)
    batch = next(data.batches("train", 0, np.arange(16)))
    short = {name: array * (np.arange(24) < 16) if array.ndim == 2 else array for name, array in batch.items()}
    short |= {name: np.minimum(batch[name], 15) for name in ("start_positions", "end_positions")}
    cut = {name: array[:, :16] if array.ndim == 2 else array for name, array in short.items()}
    loss, params = jax.jit(task.loss), random_params(task.init)
    one, two = (loss(params, each, None)[0]["span"] for each in (short, cut))
    np.testing.assert_allclose(one, two, rtol=1e-5)


def test_samples_show_questions_and_contexts(tmp_path):
    task, data, *_ = ready(tmp_path)
    for example, asked in zip(shown(task, data, tmp_path / "shown").examples, data.validation_examples(), strict=False):
        question, _ = asked.source
        assert "".join(part["text"] for part in example["parts"]) == question.context
        assert [part["text"] for part in example["parts"] if part["right"]] == [question.answers[0].text]


def test_a_run_is_evaluated_on_other_questions(run, tmp_path):
    source = tiny.write_questions(tmp_path, contexts=10, words=20)["data.source"]
    record = tiny.evaluate_elsewhere(run, tmp_path, data__test_source=source, data__max_answer_length=20)
    assert set(record) == {"test/exact_match", "test/f1", "test/whole_text_f1"}
    assert record["test/f1"] > 50
