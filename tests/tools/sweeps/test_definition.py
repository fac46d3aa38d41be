"""Sweep files: reading and checks."""

import pytest

from bertjax.config import build
from bertjax.configs.sweeps import parts
from bertjax.errors import UserError
from bertjax.tools.sweeps import definition
from bertjax.tools.sweeps.definition import Row
from tests.tiny import check_message as check
from tests.tools.sweeps import made


def write(folder, values):
    (folder / "sweep.py").write_text(f"def get_sweep(variant=''):\n    return {values!r}\n")
    return str(folder / "sweep.py")


def test_a_file_becomes_a_sweep(tmp_path):
    sweep = definition.load(write(tmp_path, made.values()))
    assert sweep == made.sweep()
    assert [row.name for row in sweep.rows] == ["base", "No A", "No A & B"]
    assert sweep.stage("task").init_from == "pretrain"


def test_the_variant_is_passed_to_get_sweep(tmp_path):
    (tmp_path / "sweep.py").write_text("def get_sweep(variant=''):\n    raise ValueError(f'no {variant} here')\n")
    with pytest.raises(UserError, match=r"--sweep=.*sweep.py:big: got ValueError: no big here"):
        definition.load(f"{tmp_path}/sweep.py:big")


@pytest.mark.parametrize(
    ("source", "got"),
    [(None, "FileNotFoundError"), ("def get_sweep(", "SyntaxError"), ("x = 1", "AttributeError"), ("1 / 0", "ZeroDiv")],
)
def test_invalid_sweep_files(tmp_path, source, got):
    path = tmp_path / "sweep.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(UserError) as error:
        definition.load(str(path))
    check(f"error: {error.value}", "--sweep=", got, "configs/sweeps", "correct the path")


ROWS = made.values()["rows"]


@pytest.mark.parametrize(
    ("changed", "what", "got"),
    [
        ({"rows": [*ROWS, parts.row("No A")]}, "sweep: rows", "two named 'no-a'"),
        ({"rows": []}, "sweep: rows", "none"),
        ({"stages": [*made.values()["stages"]] * 2}, "sweep: stages", "two named 'pretrain'"),
        ({"stages": [parts.stage("task", "x.py", {}, "later"), parts.stage("later", "x.py")]}, "init_from", "'later'"),
        ({"stages": [parts.stage("a-b", "x.py")]}, "stage 'a-b'", "an invalid name"),
        ({"base": "bass"}, "sweep: base", "'bass'"),
        ({"rows": [parts.row("base", {}, {"skore": 1.0})]}, "row 'base': paper", "'skore'"),
        ({"rows": [parts.row("base", configs={"tusk": "x.py"})]}, "row 'base': configs", "'tusk'"),
        ({"metrics": [parts.metric("score", "tusk", "valid/f1")]}, "metric 'score': stage", "'tusk'"),
        ({"metrics": [parts.metric("score", "task", "f1")]}, "metric 'score'", "'f1'"),
        ({"needs": {"tusk.data.source": "rows"}}, "sweep: needs", "'tusk'"),
        ({"seeds": (1, 1)}, "sweep: seeds", r"\(1, 1\)"),
        ({"sauce": ""}, r"--sweep=.*sweep\.py: sweep key sauce", "an unknown key"),
    ],
)
def test_contradictory_values(tmp_path, changed, what, got):
    with pytest.raises(UserError) as error:
        definition.load(write(tmp_path, made.values(**changed)))
    check(f"error: {error.value}", what, got, ".", ".")


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("LTR & no NSP", "ltr-no-nsp"),
        ("+ BiLSTM", "bilstm"),
        ("80/10/10", "80-10-10"),
        ("ε 0.1", "0.1"),
        ("한국어, 가", "한국어-가"),
    ],
)
def test_folder_names_of_rows(name, slug):
    assert build(Row, parts.row(name), "row").slug == slug


def test_a_missing_key_is_reported_with_the_file(tmp_path):
    values = made.values()
    del values["source"]
    assert definition.load(write(tmp_path, values)).source == ""
    del values["base"]
    with pytest.raises(UserError, match=r"sweep\.py: sweep key base: got no value; .* Fix: set base=VALUE\.$"):
        definition.load(write(tmp_path, values))
    with pytest.raises(UserError, match="got TypeError: get_sweep returns int, not a dict"):
        definition.load(write(tmp_path, 3))
