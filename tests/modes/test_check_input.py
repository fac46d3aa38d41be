"""What is wrong with an input file ends a prediction before it begins, or is written in place of a prediction."""

import contextlib
import json
import logging
from types import MappingProxyType
from unittest import mock

import pytest

from bertjax import files
from bertjax.contract import BadInput, Example
from bertjax.errors import UserError
from bertjax.modes.predict import predict
from bertjax.modes.request import Request
from bertjax.progress import log_once
from bertjax.tools.reporting import attention
from bertjax.training import inference


class Task:
    """Predicts on lines, none of which may be empty."""

    line = open_folder = None

    def examples_of(self, path):
        return None

    def record(self, example, outputs):
        return {"text": example.source}

    def examples(self, lines):
        for number, line in enumerate(lines, start=1):
            if not line:
                raise UserError(f"input line {number}", got="nothing", expected="a text", fix="delete it")
            log_once(f"read {line}", logging.WARNING)
            yield Example([], line)


class Runner:
    config = MappingProxyType({"data": {"on_bad_row": "stop"}})

    def records(self, examples, done=0):
        return ({"text": example.source} for example in list(examples)[done:])


def infer(tmp_path, name, content, task=None, runner=None, form="", plot=""):
    source = tmp_path / "in.txt"
    source.write_text(content)
    request = Request(mode="predict", input=str(source), output=f"{tmp_path}/{name}", format=form, plot=plot)
    model = runner or Runner()
    model.task = task or Task()
    predict(model, request, lambda form: f"made of {form}")
    return (tmp_path / name).read_text()


@pytest.mark.parametrize("name", ["out.jsonl", "out.html"])
def test_a_bad_last_line_is_found_before_anything_is_predicted(tmp_path, monkeypatch, name):
    monkeypatch.setattr(Runner, "records", lambda *_: pytest.fail("predicts already"))
    with pytest.raises(UserError, match="input line 3: got nothing"):
        infer(tmp_path, name, "one\ntwo\n\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt"]


def test_a_warning_about_an_input_is_logged_once(tmp_path, caplog):
    assert infer(tmp_path, "out.jsonl", "one\ntwo\n") == '{"text": "one"}\n{"text": "two"}\n'
    assert caplog.messages == ["read one", "read two"], "neither lost nor repeated by the check before"


class Skipping(Task):
    """Skips empty lines; writes text, the field's form and folders, and has attention."""

    def examples(self, lines):
        return (Example([], line or BadInput("nothing")) for line in lines)

    def line(self, record):
        return record["text"]

    def official(self, records):
        return {record["text"]: 1 for record in records}

    @contextlib.contextmanager
    def open_folder(self, folder):
        folder.mkdir()
        records = []
        yield records.append
        (folder / "all").write_text(json.dumps(records))

    def attention(self, params, example, outputs):
        return {"kind": example.source}


@pytest.fixture
def runner():
    """An inference whose outputs are those of one row for each good example."""
    runner = inference.Inference.__new__(inference.Inference)
    runner.task, runner.params, runner.config = Skipping(), None, Runner.config
    runner._predictor = lambda _, examples, done=0: ((each, [{}] * isinstance(each.source, str)) for each in examples)
    return runner


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("out.jsonl", '{"text": "one"}\n{"error": "nothing"}\n{"text": "two"}\n{"error": "nothing"}\n'),
        ("out.txt", "one\n\ntwo\n\n"),
        ("out.json", '{"one": 1, "two": 1}\n'),
    ],
)
def test_a_bad_input_has_an_error_in_place_of_a_prediction(tmp_path, caplog, runner, name, expected):
    assert infer(tmp_path, name, "one\n\ntwo\n\n", Skipping(), runner) == expected
    assert caplog.messages == ["2 of 4 inputs are bad: their records have an error instead of a prediction"]


def test_truncated_and_split_inputs_are_marked_and_counted(tmp_path, caplog, runner):
    class Limiting(Skipping):
        official = line = None

        def examples(self, lines):
            limits = ({"truncated": "2 tokens"}, {"split": "3 words"}, {})
            return (Example([], line, limited) for line, limited in zip(lines, limits, strict=True))

    runner.task = Limiting()
    with caplog.at_level(logging.INFO):
        found = infer(tmp_path, "out.jsonl", "one\ntwo\nsix\n", Limiting(), runner)
    assert found == '{"text": "one", "truncated": true}\n{"text": "two", "split": true}\n{"text": "six"}\n'
    told = "1 of 3 inputs are truncated: they have more than 2 tokens"
    assert caplog.messages == [told, "1 of 3 inputs are split: they have more than 3 words"]


def test_empty_and_incomplete_texts_are_counted(tmp_path, caplog, runner):
    class Writing(Skipping):
        official = None

        def examples(self, lines):
            return (Example([{}], line) for line in lines)

        def record(self, example, outputs):
            return {"text": "" if example.source == "one" else "a", "complete": example.source != "two"}

    runner.task = Writing()
    with caplog.at_level(logging.INFO):
        infer(tmp_path, "out.txt", "one\ntwo\nsix\n", Writing(), runner)
    told = "1 of 3 predicted texts are truncated at the maximum length of `decoding`"
    assert caplog.messages == ["1 of 3 predicted texts are empty", told]


def test_one_process_writes_a_folder(tmp_path, runner):
    with files.alone(tmp_path / "out"), pytest.raises(UserError, match="another process is writing"):
        infer(tmp_path, "out/", "one\n", Skipping(), runner)
    assert not (tmp_path / "out").exists()


def test_a_folder_has_all_inputs(tmp_path, runner):
    with pytest.raises(IsADirectoryError):
        infer(tmp_path, "out/", "one\n\n", Skipping(), runner)
    assert json.loads((tmp_path / "out" / "all").read_text()) == [{"text": "one"}, {"error": "nothing"}]


def test_a_page_names_bad_inputs(tmp_path, runner):
    page = infer(tmp_path, "out.html", "\n\n", Skipping(), runner)
    assert page.count("<span>nothing</span>") == 2 and page.rstrip().endswith("</html>")


def test_there_is_no_picture_of_a_bad_input(tmp_path, monkeypatch, runner):
    draw = mock.Mock()
    monkeypatch.setattr(attention, "drawer", lambda *_: draw)
    infer(tmp_path, "out.txt", "one\n\ntwo\n", Skipping(), runner, plot="a.svg")
    assert draw.call_args_list == [mock.call(1, {"kind": "one"}), mock.call(3, {"kind": "two"})]


def test_a_model_without_attention_cannot_be_drawn(tmp_path, monkeypatch, runner):
    monkeypatch.setattr(Skipping, "attention", lambda *_: {})
    with pytest.raises(UserError, match=r"--plot: got a model without attention; .*model\.attention=additive"):
        infer(tmp_path, "out.txt", "one\n", Skipping(), runner, plot="a.svg")


class Writes(Skipping):
    """Writes text, for want of an official form."""

    official = None


@pytest.mark.parametrize(
    ("name", "form", "is_json"), [("out.json", "", True), ("out.json", "text", False), ("out.de", "", False)]
)
def test_the_suffix_of_the_output_selects_the_format(tmp_path, runner, name, form, is_json):
    expected = '{"text": "one"}\n' if is_json else "one\n"
    assert infer(tmp_path, name, "one\n", Writes(), runner, form) == expected
