import gzip
import json
import unicodedata

import pyarrow as pa
import pytest
from pyarrow import parquet

from bertjax.data.codecs.questions.questions import (
    Answer,
    QuestionsConfig,
    parse_questions,
    read_input,
    read_questions,
    read_splits,
)
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


def flat(answers, **more):
    return {"context": CONTEXT, "question": "Who?", "answers": answers, **more}


TWO = {"text": ["Bob", "Bob"], "answer_start": [8, 13]}
FLAT = [flat(TWO, id="q1", title="Pets"), flat({"text": [], "answer_start": []}, id="q2", title=None)]
DETECTED = {"text": "bob", "char_spans": [[8, 10], [13, 15]]}
MRQA = [
    {"header": {"dataset": "HotpotQA", "split": "train"}},
    {
        "context": CONTEXT,
        "qas": [
            {"qid": "q1", "question": "Who?", "answers": ["Bobby"], "detected_answers": [DETECTED]},
            {"qid": "q2", "question": "Who?", "answers": [], "detected_answers": [], "is_impossible": True},
        ],
    },
]


def json_lines(rows):
    return "\n".join(map(json.dumps, rows))


def test_each_form_has_the_same_questions(tmp_path):
    listed = [flat([{"text": "Bob", "answer_start": start} for start in (8, 13)], id="q1"), flat([], id="q2")]
    table = pa.Table.from_pylist(FLAT)
    parquet.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_stream(tmp_path / "data.arrow", table.schema) as stream:
        stream.write_table(table)
    write(tmp_path, {"_data_files": [{"filename": "data.arrow"}]}, "state.json")
    sources = {
        "parquet": tmp_path / "a.parquet",
        "hf": f"hf:{tmp_path}",
        "array": write(tmp_path, json.dumps(FLAT, indent=1), "array.json"),
        "one line": write(tmp_path, FLAT, "line.json"),
        "lines": write(tmp_path, json_lines(FLAT), "lines.json"),
        "listed": write(tmp_path, json_lines(listed), "listed.jsonl"),
        "mrqa": write(tmp_path, json_lines(MRQA), "mrqa.jsonl.gz"),
    }
    for name, source in sources.items():
        first, second = read_questions(str(source), "data.source", BadRows("stop"), aligned=True)
        assert (first.id, first.answers, first.is_impossible) == ("q1", (("Bob", 8), ("Bob", 13)), False), name
        assert (second.id, second.answers, second.is_impossible) == ("q2", (), True), name
        assert (first.context, first.title) == (CONTEXT, "" if name in ("listed", "mrqa") else "Pets"), name
    scored = read_questions(str(sources["mrqa"]), "data.valid_source", BadRows("stop"), aligned=False)
    assert [question.answers for question in scored] == [(("Bobby", None),), ()]
    found = list(read_input(sources["mrqa"], BadRows("stop")))
    assert [(question.id, question.answers) for question in found] == [("q1", ()), ("q2", ())]
    bare = write(tmp_path, json_lines([{"context": CONTEXT, "question": "Who?"}] * 2), "bare.jsonl")
    assert [question.id for question in read_input(bare, BadRows("stop"))] == ["1", "2"]


def mrqa(**changes):
    row = {**MRQA[1]["qas"][0], "detected_answers": [{**DETECTED, **changes}]}
    return {"context": CONTEXT, "qas": [row]}


@pytest.mark.parametrize(
    ("row", "got", "fix"),
    [
        (flat({"text": ["Bob"], "answer_start": [7]}, id="q"), "answer 1: got ' Bo' at", "set answer_start to 8"),
        (flat({"text": ["Bob"], "answer_start": []}, id="q"), "(id q): got 1 texts and 0 starts", "correct the lists"),
        (flat("Bob"), ":1 (id 1): got a JSON str under 'answers'", "correct it"),
        (flat(None), ":1 (id 1): got no 'answers'; its keys: 'context', 'question', 'id'", "add it"),
        (flat(TWO, context=None), ":1: got no 'context'", "add it"),
        (mrqa(char_spans=[[8, 31]]), "(id q1), detected answer 1: got [8, 31] in 'char_spans'", "correct the row"),
        (mrqa(char_spans=[[8, 9]]), "got 'Bo' at characters 8 to 9; expected the answer", "correct char_spans, whose"),
        ({"qas": 1}, ":1: got a JSON int under 'qas'", "correct it"),
    ],
)  # fmt: skip
def test_bad_rows_of_tables_are_errors(tmp_path, row, got, fix):
    with pytest.raises(UserError) as error:
        read(tmp_path, json_lines([row]), name="a.jsonl")
    assert f"{tmp_path / 'a.jsonl'}:1" in str(error.value)
    assert got in str(error.value)
    assert f"Fix: {fix}" in str(error.value)
    found = read(tmp_path, json_lines([row, flat(TWO, id="good")]), "skip", name="a.jsonl")
    assert [question.id for question in found] == ["good"]


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


@pytest.mark.parametrize("text", ["München", "한국어"])
@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_answers_have_the_normalization_form_of_their_context(tmp_path, text, form, other):
    stored, answer = (unicodedata.normalize(form, text) for form in (form, other))
    value = squad(row(answers=((answer, 3),)), context=f"In {stored}.")
    for aligned in (True, False):
        (question,) = read(tmp_path, value, aligned=aligned)
        assert question.answers == ((stored, 3),)
    detected = {"text": answer, "char_spans": [[3, 2 + len(stored)]]}
    mrqa = [MRQA[0], {"context": f"In {stored}.", "qas": [{**MRQA[1]["qas"][0], "detected_answers": [detected]}]}]
    (question,) = read(tmp_path, "".join(f"{json.dumps(line)}\n" for line in mrqa), name="a.jsonl")
    assert question.answers == ((stored, 3),)


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
    rows = [flat(TWO, context=f"{CONTEXT} {n % 40}") for n in range(80)]
    flat_rows = splits(QuestionsConfig(str(write(tmp_path, json_lines(rows), "a.jsonl")), "", 0.25, "stop"))
    for found, expected in zip(flat_rows, (train, valid), strict=True):
        assert {each.context for each in found} == {each.context for each in expected}


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
        ("[\n[", "{path}:2: got invalid JSON"),
        ({"data": {}}, "got a JSON dict with the keys 'data'; expected SQuAD's form: an object with a list of"),
        ({"data": []}, "config key data.source={path}: got no questions; expected"),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_a_file_that_is_not_squad_raises_with_both_settings(tmp_path, value, got, on_bad_row):
    with pytest.raises(UserError) as error:
        read(tmp_path, value, on_bad_row)
    assert got.replace("{path}", str(tmp_path / "dev.json")) in str(error.value)
