import gzip
import json

import pytest

from bertjax.data.fine_tuning.questions import Answer, QuestionsConfig, parse_questions, read_questions, read_splits
from bertjax.data.readers.lines import BadRows
from bertjax.errors import UserError

CONTEXT = "Ada met Bob. Bob met Ada's cat."


def squad(*questions, context=CONTEXT, title="Pets"):
    return {"version": "2.0", "data": [{"title": title, "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def row(id_="q1", answers=((CONTEXT[:3], 0),), **more):
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": "Who?", "answers": found, **more}


def write(tmp_path, value, name="dev.json"):
    path = tmp_path / name
    data = (value if isinstance(value, str) else json.dumps(value)).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(tmp_path, value, on_bad_row="stop", aligned=True, name="dev.json"):
    path = write(tmp_path, value, name)
    return list(read_questions(str(path), "data.source", BadRows(on_bad_row), aligned=aligned))


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz"])
def test_questions_are_read(tmp_path, name):
    impossible = row("q2", (), is_impossible=True, plausible_answers=[{"text": "Bob", "answer_start": 8}])
    value = squad(row(answers=(("Bob", 13), ("Bob. Bob", 8)), is_impossible=False), impossible)
    first, second = read(tmp_path, value, name=name)
    assert first[:6] == ("q1", "Pets", "Who?", CONTEXT, (Answer("Bob", 13), Answer("Bob. Bob", 8)), False)
    assert first.where == f"{tmp_path / name}: data[0].paragraphs[0].qas[0]"
    assert (second.id, second.answers, second.is_impossible) == ("q2", (), True)


def test_numbered_ids_and_no_title(tmp_path):
    value = squad(row(7))
    del value["data"][0]["title"]
    (question,) = read(tmp_path, value)
    assert (question.id, question.title) == ("7", "")


def test_answers_for_scoring_may_have_wrong_positions(tmp_path):
    answers = (("Bob", 8), ("Bob", 9), ("Robert", 8), ("cat", "28"), ("cat.", -4))
    bare = {"id": "q2", "question": "Who?", "answers": [{"text": "Ada"}]}
    first, second = read(tmp_path, squad(row(answers=answers), bare), aligned=False)
    assert first.answers == (("Bob", 8), ("Bob", None), ("Robert", None), ("cat", None), ("cat.", None))
    assert second.answers == (("Ada", None),)
    with pytest.raises(UserError, match=r"\(id q1\): got no answers; expected an answer"):
        read(tmp_path, squad(row(answers=())), aligned=False)


def test_questions_for_prediction_have_no_answers():
    rows = row(answers=()), row("q2", (("Eve", 99),), is_impossible=True), {**row("q3"), "answers": 3}
    first, *others = parse_questions(json.dumps(squad(*rows)), BadRows("stop"))
    assert (first.id, first.answers, first.where) == ("q1", (), "input: data[0].paragraphs[0].qas[0]")
    assert [(each.id, each.answers, each.is_impossible) for each in others] == [("q2", (), False), ("q3", (), False)]
    with pytest.raises(UserError, match=r"input:2: got invalid JSON at column 1 .*expected one JSON value"):
        list(parse_questions('{"data":\n', BadRows("stop")))


def several(tmp_path, name, contexts):
    articles = [squad(row(f"{n}a"), row(f"{n}b"), context=f"{CONTEXT} {n}")["data"][0] for n in contexts]
    return str(write(tmp_path, {"data": articles}, name))


def splits(config):
    rows = list(read_splits(config))
    return [[question for split, question in rows if split == name] for name in ("train", "valid")]


def test_questions_of_a_context_are_in_one_split(tmp_path):
    source = several(tmp_path, "all.json", range(40))
    train, valid = splits(QuestionsConfig(source, "", 0.25, "stop"))
    assert len(train) + len(valid) == 80
    assert 8 <= len(valid) <= 32
    assert not {question.context for question in train} & {question.context for question in valid}
    assert splits(QuestionsConfig(source, "", 0.25, "stop")) == [train, valid]


def test_validation_questions_can_have_their_own_source(tmp_path):
    config = QuestionsConfig(several(tmp_path, "a.json", (1, 2)), several(tmp_path, "b.json", (1,)), 0.0, "stop")
    assert [len(questions) for questions in splits(config)] == [4, 2]
    write(tmp_path, squad(row(answers=(("Robert", 8),))), "b.json")
    assert splits(config)[1][0].answers == (("Robert", None),)


@pytest.mark.parametrize(
    ("value", "got", "expected", "fix"),
    [
        (
            squad(row(answers=(("Bob", 14),))),
            "qas[0] (id q1), answer 1: got 'ob ' at answer_start 14 of 31 characters",
            "the answer, 'Bob'",
            "set answer_start to 13, or set --config.data.on_bad_row=skip",
        ),
        (squad(row(answers=(("cat.", -4),))), "'Ada ' at answer_start -4", "'cat.'", "set answer_start to 27"),
        (squad(row(answers=(("Eve", 0),))), "'Ada' at", "'Eve'", "correct the text, which is not in the context"),
        (squad(row(answers=(("", 0),))), "answer 1: got an empty 'text'", "text", "correct it"),
        (squad(row(answers=(("Ada", "0"),))), "a JSON str under 'answer_start'", "a JSON int", "correct it"),
        (squad(row(answers=())), "(id q1): got no answers", "an answer, or is_impossible true", "add an answer, or"),
        (squad(row(is_impossible=True)), "is_impossible with 1 answers", "not both", "set is_impossible to false"),
        (squad(row(), row()), "qas[1] (id q1): got the same id as", "a unique id", "give each question its own id"),
        (squad({**row(), "question": "\ud800?"}), "half of a surrogate pair", "whole characters", "correct the row"),
        (squad(row(), context=" \n"), "paragraphs[0]: got an empty 'context'", "text", "correct it"),
        (squad(["who"]), "qas[0]: got a JSON list", "an object with 'id'", "correct it"),
        ({"data": ["x"]}, "data[0]: got a JSON str", "an object with 'paragraphs'", "correct it"),
    ],
)  # fmt: skip
def test_bad_rows_are_errors(tmp_path, value, got, expected, fix):
    with pytest.raises(UserError) as error:
        read(tmp_path, value)
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'dev.json'}: data[0]")
    for part in (got, f"expected {expected}" if expected.startswith(("a ", "an ")) else expected, f"Fix: {fix}"):
        assert part in message
    good = squad(row("good"))["data"]
    path, bad_rows = write(tmp_path, {"data": value["data"] + good}), BadRows("skip")
    questions = list(read_questions(str(path), "data.source", bad_rows, aligned=True))
    assert questions[-1].id == "good"
    assert bad_rows.count == 1


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ([squad(row())], "got a JSON list; expected SQuAD's form: an object with a list of articles under 'data'"),
        ({"data": {}}, "got a JSON dict with the keys 'data'"),
        ({"data": []}, "config key data.source={path}: got no questions; expected"),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_a_file_that_is_not_squad_raises_with_both_settings(tmp_path, value, got, on_bad_row):
    with pytest.raises(UserError) as error:
        read(tmp_path, value, on_bad_row)
    assert got.replace("{path}", str(tmp_path / "dev.json")) in str(error.value)
