"""What is wrong with an input file ends a prediction before it begins."""

import logging
from unittest import mock

import pytest

from bertjax.errors import UserError
from bertjax.task import Example
from bertjax.training import modes


class Task:
    """Predicts on lines, none of which may be empty."""

    def examples(self, lines):
        for number, line in enumerate(lines, start=1):
            if not line:
                raise UserError(f"input line {number}", got="nothing", expected="a text", fix="delete it")
            logging.getLogger("bertjax").warning("read %s", line)
            yield Example([], line)


class Runner:
    def records(self, examples):
        return ({"text": example.source} for example in examples)


def infer(tmp_path, name, content):
    (tmp_path / "in.txt").write_text(content)
    names = ("format", "checkpoint", "topology", "profile")
    request = mock.Mock(**dict.fromkeys(names, ""), input=str(tmp_path / "in.txt"), draw=None, workdir="")
    request.mode, request.output = "predict", str(tmp_path / name)
    (tmp_path / "weights").mkdir(exist_ok=True)
    modes._infer(request, {"init_from": str(tmp_path / "weights")}, Task(), Runner())
    return (tmp_path / name).read_text()


@pytest.mark.parametrize("name", ["out.jsonl", "out.html"])
def test_a_bad_last_line_is_found_before_anything_is_predicted(tmp_path, monkeypatch, name):
    monkeypatch.setattr(Runner, "records", lambda *_: pytest.fail("predicts already"))
    with pytest.raises(UserError, match="input line 3: got nothing"):
        infer(tmp_path, name, "one\ntwo\n\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "weights"]


def test_what_is_said_of_an_input_is_said_once(tmp_path, caplog):
    assert infer(tmp_path, "out.jsonl", "one\ntwo\n") == '{"text": "one"}\n{"text": "two"}\n'
    assert caplog.messages == ["read one", "read two"]
