"""Question answering, from SQuAD files to answers as characters of the text."""

import csv
import gzip
import json

import numpy as np
import pytest

from bertjax.data.codecs.questions import spans
from bertjax.errors import UserError
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, SIZES, done, lines_of, trained, tree_of
from tests.showing import shown

SMALL = {
    "num_epochs": 8.0,
    "batch_size": 16,
    "log_every": 50,
    "evaluate_every": 100,
    **SIZES,
    **NO_DROPOUT,
    "model.initializer_range": 0.1,
    "data.seq_len": 24,
    "data.doc_stride": 6,
    "data.max_query_length": 8,
    "data.max_answer_length": 4,
    "data.valid_fraction": 0.2,
    "optimizer.learning_rate": 4e-3,
}
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


def train(folder, variant, **questions):
    values = {**SMALL, **tiny.write_questions(folder, **questions)}
    return trained(f"question_answering.py:tiny,{variant}", folder, values)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to answer with colors and times, in texts of several windows."""
    return train(tmp_path_factory.mktemp("answering"), "squad", contexts=100, words=30)


def predict(*command, questions=TEXTS):
    outcome = done("--mode=predict", *command, stdin=json.dumps(squad(*questions)).encode())
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def ready(tmp_path, variant="squad", answerable=1.0, **overrides):
    values = {**SMALL, **tiny.write_questions(tmp_path, answerable=answerable, words=20), **overrides}
    return tiny.ready(tree_of("question_answering", f"tiny,{variant}", values), tmp_path / "kept")


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


def test_predictions_are_spans_of_the_text(run):
    records = predict(f"--workdir={run}")
    found = [(record["id"], record["answer"]) for record in records]
    assert found == [("a", "DARK\n gray"), ("7", "late  Súnday"), ("b", "Pale green")]
    contexts = [TEXTS[0]["context"]] * 2 + [TEXTS[1]["context"]]
    for record, context in zip(records, contexts, strict=True):
        assert record.keys() - {"split"} == {"id", "answer", "start", "end", "score", "null_score"}
        assert context[record["start"] : record["end"]] == record["answer"]


def test_files_in_and_out(run, tmp_path):
    plain, packed = tmp_path / "dev.json", tmp_path / "dev.json.gz"
    plain.write_text("\ufeff" + json.dumps(squad(*TEXTS), indent=2), newline="\r\n")
    packed.write_bytes(gzip.compress(json.dumps(squad(*TEXTS)).encode()))
    rows = tmp_path / "dev.jsonl"
    rows.write_text("\n".join(json.dumps({**row, "date": number}) for number, row in enumerate(TEXTS)))
    expected = predict(f"--workdir={run}")
    command = ["--mode=predict", f"--workdir={run}"]
    done(*command, f"--input={plain}", f"--output={tmp_path / 'answers.jsonl'}")
    assert lines_of(tmp_path / "answers.jsonl") == expected
    done(*command, f"--input={rows}", f"--output={tmp_path / 'rows.jsonl'}", "--columns=date")
    dated = [{"date": date, **each} for date, each in zip((0, 0, 1), expected, strict=True)]
    assert lines_of(tmp_path / "rows.jsonl") == dated
    command.append(f"--input={packed}")
    done(*command, f"--output={tmp_path / 'answers.csv'}")
    with (tmp_path / "answers.csv").open(newline="") as file:
        assert [row["answer"] for row in csv.DictReader(file)] == [record["answer"] for record in expected]
    official = tmp_path / "predictions.json"
    done(*command, f"--output={official}")
    assert json.loads(official.read_text()) == {record["id"]: record["answer"] for record in expected}


def right_logits(example, length=24):
    """Returns outputs that point to the first answer, or to [CLS] without one. Padding lengths vary by row."""
    question, windows = example.source
    for number, window in enumerate(windows):
        start, end = spans.target(window, question.answers[0] if question.answers else None)
        logits = np.zeros((2, length + number), np.float32)
        logits[0, start] = logits[1, end] = 5 if start else 1
        logits[:, window.length :] = 100  # padding must be ignored
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
    assert len(examples) == len({example.source.item.id for example in examples}) > 8
    assert max(len(example.rows) for example in examples) > 1
    assert {row["segment_ids"].sum() for example in examples for row in example.rows} > {24}
    scores = task.score([(example, list(right_logits(example))) for example in examples])
    assert {name: scores[name] for name in expected} == expected
    assert set(task.score_names()) <= set(scores)
    assert settings.checkpoint.best_metric.removeprefix("valid/") in task.score_names()
    for example in examples:
        record = task.record(example, list(right_logits(example)))
        assert record["answer"] == "".join(answer.text for answer in example.source.item.answers)


def test_answers_outside_all_windows_and_windows_without_overlap_are_counted(tmp_path, caplog):
    first = ready(tmp_path, **{"data.doc_stride": 18}).data
    train = [question for split, question in first.codec.splits() if split == "train"]
    counts = [len(spans.windows(question, first.vocabulary, first.codec.spans)) for question in train]
    labeled = np.split(first.fields()["start_positions"] > 0, np.cumsum(counts)[:-1])
    lost = sum(not windows.any() for windows in labeled)
    assert first.report()["answers_in_no_window"] == lost > 0
    split = sum(count > 1 for count in counts)
    assert f"{split} of {len(counts)} contexts have windows that do not overlap" in caplog.text


def test_the_metric_of_korean_answers(tmp_path, caplog):
    qas = [{"id": "x", "question": "?", "answers": [{"text": "세종대왕", "answer_start": 0}]}]
    (tmp_path / "ko.json").write_text(json.dumps(squad({"context": "세종대왕은 왕", "qas": qas})))
    values = {"data.valid_source": str(tmp_path / "ko.json")}
    f1 = [
        ready(tmp_path, variant, **values).data.baselines()["valid/whole_text_f1"] for variant in ("squad", "korquad")
    ]
    assert f1 == pytest.approx([0, 100 * 2 * 4 / 10])  # 4 common characters of 6 and 4
    assert caplog.text.count("F1 counts words, but most answers are Korean") == 1


def test_questions_without_answers_are_reported_after_a_run_that_accepts_them(tmp_path):
    ready(tmp_path, "squad2", 0.6)
    with pytest.raises(UserError, match="a question without an answer"):
        ready(tmp_path, "squad", 0.6)


def test_samples_show_questions_and_contexts(tmp_path):
    task, data, *_ = ready(tmp_path)
    for example, asked in zip(shown(task, data, tmp_path / "shown").examples, data.validation_examples(), strict=False):
        question, _ = asked.source
        assert "".join(part["text"] for part in example["parts"]) == question.context
        assert [part["text"] for part in example["parts"] if part["right"]] == [question.answers[0].text]
