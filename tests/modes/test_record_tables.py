"""Records as CSV and TSV, and columns of the input that records copy, from file to file."""

import datetime
import json

import pyarrow
import pytest
from pyarrow import parquet

from bertjax.contract import BadInput, Example
from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows, RowError, of_row
from bertjax.errors import UserError
from bertjax.modes.predict import predict
from bertjax.modes.record_tables import parse_columns
from bertjax.modes.request import Request
from bertjax.training import inference
from tests.tools.reporting.pages import Page


class Task:
    """Says of each text in the column "text" whether it is long; texts without letters are bad."""

    line = open_folder = None

    def __init__(self, on_bad_row):
        self.on_bad_row = on_bad_row

    def examples(self, lines):
        return (Example([{}], line) for line in lines)

    def examples_of(self, path):
        bad_rows = BadRows(self.on_bad_row)
        rows = tables.read_input(path, "data.text", ["text"], True, "", bad_rows)

        def made(row):
            with of_row(row.values):
                if not any(map(str.isalpha, row.values["text"])):
                    raise RowError(row.where, "no letters", "letters")
                return Example([{}], row.values["text"], columns=row.values)

        def examples():
            for example in bad_rows.marked(bad_rows.sift(map(made, rows))):
                is_bad = isinstance(example, RowError)
                yield Example([], BadInput(example.reason), columns=example.columns) if is_bad else example

        return rows and examples()

    def record(self, example, outputs):
        share = {"long": len(example.source) / 10, "short": None}
        return {"text": example.source, "shares": share, "words": example.source.split(" "), "complete": True}

    def record_fields(self):
        return ("text", "shares.long", "shares.short", "words", "complete")


def run(source, output, columns=(), form="", on_bad_row="skip", task=Task):
    model = inference.Inference.__new__(inference.Inference)
    model.task, model.params, model.config = task(on_bad_row), None, {"data": {"on_bad_row": on_bad_row}}
    model._predictor = lambda _, examples, done=0: ((each, [{}]) for each in [*examples][done:])
    request = Request(mode="predict", input=str(source), output=str(output), format=form)
    predict(model, request, lambda form: "abc", columns)
    return output.read_text() if output.exists() else ""


ROWS = [
    {"id": 1, "text": 'a\t"b"', "more": {"key": "x\ny"}},
    {"id": None, "text": "c\\d\ne", "more": {"key": [1, {"z": "\\"}]}},
    {"id": "3", "text": ".", "more": {"key": True}},
]
COLUMNS = ("id", "more.key")
HEADER = ["id", "more.key", "text", "shares.long", "shares.short", "words", "complete", "truncated", "split", "error"]
ERROR = "SOURCE:3: got no letters; expected letters"
WRITTEN = {
    "out.csv": [
        ",".join(HEADER),
        '1,"x',
        r'y","a	""b""",0.5,,"[""a\t\""b\""""]",true,,,',
        r',"[1, {""z"": ""\\""}]","c\d',
        r'e",0.5,,"[""c\\d\ne""]",true,,,',
        f"3,true,,,,,,,,{ERROR}",
    ],
    "out.tsv": [
        "\t".join(HEADER),
        r'1	x\ny	a\t"b"	0.5		["a\t\"b\""]	true			',
        r'	[1, {"z": "\\"}]	c\\d\ne	0.5		["c\\d\ne"]	true			',
        f"3	true								{ERROR}",
    ],
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_is_the_same_wherever_it_was_interrupted(tmp_path, source, name):
    expected = "".join(f"{line}\n" for line in WRITTEN[name]).replace("SOURCE", str(source))
    assert run(source, tmp_path / name, COLUMNS) == expected
    for end in range(len(expected.encode()) + 1):
        (tmp_path / f"{name}.abc.partial").write_bytes(expected.encode()[:end])
        assert run(source, tmp_path / name, COLUMNS) == expected


def test_values_that_json_does_not_have(tmp_path):
    values = [datetime.date(2024, 5, 17), None]
    rows = {"text": ["a", "b"], "id": values, "part": [1.0, float("nan")], "bytes": [b"a", b"\xff"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "in.parquet")
    first, second = run(tmp_path / "in.parquet", tmp_path / "out", ("id", "part", "bytes")).splitlines()
    assert first.startswith('{"id": "2024-05-17", "part": 1.0, "bytes": "a", "text": "a"')
    assert "in.parquet: got Out of range float values are not JSON compliant" in json.loads(second)["error"]
    message = r"row 2 of .*: got 'utf-8' codec .* in column 'bytes'; expected a value that J"
    with pytest.raises(UserError, match=message):
        run(tmp_path / "in.parquet", tmp_path / "out", ("bytes",), on_bad_row="stop")


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("in.csv", "id,text\n1,a\n", ("x",), r"row 1 of .*: got a row without column 'x'; its columns: 'id', 'text'"),
        ("in.jsonl", '{"text": "a", "id": 1}\n{"text": "b"}\n', ("id",), r"row 2 of .*: got a row without column 'id'"),
        ("in.jsonl", '{"text": "a", "id": 1}\n', ("id.x",), r"row 1 of .*: got int for column 'id.x'"),
        ("in.txt", "a\n", ("id",), r"--columns=id: got .*in\.txt, which is no table"),
        ("in.csv", "id,text\n1,a\n", ("text",), r"--columns: got 'text', a name that records have already"),
        ("in.csv", "id,error\n1,a\n", ("error",), r"--columns: got 'error', a name that records have already"),
        ("in.csv", "id,shares\n1,a\n", ("shares",), r"--columns: got 'shares', a name that records have already"),
    ],
)
def test_wrong_columns_are_reported_before_anything_is_predicted(
    tmp_path, monkeypatch, name, content, columns, message
):
    (tmp_path / name).write_text(content)
    monkeypatch.setattr(Task, "record", lambda *_: pytest.fail("predicts already"))
    with pytest.raises(UserError, match=message):
        run(tmp_path / name, tmp_path / "out.csv", columns, on_bad_row="stop" if name == "in.jsonl" else "skip")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_row_without_a_column_is_bad(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b", "id": 2}\n')
    first, second = run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", ("id",)).splitlines()
    assert "got a row without column 'id'" in json.loads(first)["error"] and json.loads(second)["id"] == 2


def test_an_output_without_columns(tmp_path, source):
    class Writes(Task):
        def line(self, record):
            return record["text"]

    with pytest.raises(UserError, match=r"--columns: got an output without columns; .* Fix: set --format to jsonl"):
        run(source, tmp_path / "out", COLUMNS, "text", task=Writes)


def test_a_page_has_columns(tmp_path, source):
    table = Page(run(source, tmp_path / "out.html", COLUMNS, "html")).tables["records"]
    assert table[0][: len(COLUMNS)] == list(COLUMNS)


def test_a_record_with_another_name_is_not_lost(tmp_path, source, monkeypatch):
    monkeypatch.setattr(Task, "record_fields", lambda _: ("text", "shares.long", "words", "complete"))
    with pytest.raises(UserError, match=r"--format=csv: got a record with shares\.short; expected the columns text, "):
        run(source, tmp_path / "out.csv")


@pytest.mark.parametrize(("text", "source"), [("id,,x", "in.csv"), ("id, id", "in.csv"), (" ", "in.csv"), ("id", "-")])
def test_columns_that_cannot_be_read(text, source):
    with pytest.raises(UserError, match="--columns"):
        parse_columns(text, source)
