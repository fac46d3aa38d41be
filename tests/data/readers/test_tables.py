import csv
import io
import json
from functools import partial

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.readers import tables
from bertjax.data.readers.lines import BadRows
from bertjax.data.readers.tables import Row
from bertjax.errors import UserError
from tests.data import tfds_files
from tests.data.files import write


def read(source: str, header: bool = True, separator: str = "", on_bad_row: str = "stop") -> list[Row]:
    rows = tables.read_rows(source, "data.source", header, separator, BadRows(on_bad_row))
    return [row._replace(table="") for row in rows]


def skipping(source: str, header: bool = True, separator: str = "") -> tuple[list[dict[str, object]], int]:
    bad_rows = BadRows("skip")
    rows = tables.read_rows(source, "data.source", header, separator, bad_rows)
    return [dict(row.values) for row in rows], bad_rows.count


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tsv_quotes_nothing(name):
    write(name, '\ufeffQuality\t#1 String\r\n1\t"so he said\r\n\r\n0\t say "no"\t\r\n'.replace("\t\r", "\r"))
    assert read(name) == [
        Row({"Quality": "1", "#1 String": '"so he said'}, f"{name}:2"),
        Row({"Quality": "0", "#1 String": ' say "no"'}, f"{name}:4"),
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_is_quoted(name):
    write(name, '"3","Say ""no"", he said","one\\\r\n\r\ntwo"\r\n\r\n4,plain,"last"\r\n5,,\r\n')
    assert read(name, header=False) == [
        Row({"0": "3", "1": 'Say "no", he said', "2": "one\\\n\ntwo"}, f"{name}:1"),
        Row({"0": "4", "1": "plain", "2": "last"}, f"{name}:5"),
        Row({"0": "5", "1": "", "2": ""}, f"{name}:6"),
    ]
    write("b.csv", 'label,"the text"\n1,"a\nb"\n')
    assert read("b.csv") == [Row({"label": "1", "the text": "a\nb"}, "b.csv:2")]


def test_a_custom_separator_leaves_the_rest_to_the_last_column():
    write("a.txt", "ENTY:other What is it ?\nHUM:ind  Who ?\n")
    assert read("a.txt", header=False, separator=" ") == [
        Row({"0": "ENTY:other", "1": "What is it ?"}, "a.txt:1"),
        Row({"0": "HUM:ind", "1": " Who ?"}, "a.txt:2"),
    ]
    write("b.txt", "label || source || text\n1 || web || a || b\n")
    assert read("b.txt", separator=" || ") == [Row({"label": "1", "source": "web", "text": "a || b"}, "b.txt:2")]


def test_data_separator_overrides_the_file_name():
    write("a.txt", 'a\tb\n"x\ty\n')
    assert read("a.txt", separator="\t") == [Row({"a": '"x', "b": "y"}, "a.txt:2")]
    write("a.tsv", 'a,b\n"x,1",y\n')
    assert read("a.tsv", separator=",") == [Row({"a": "x,1", "b": "y"}, "a.tsv:2")]


def test_a_column_may_be_a_key_of_an_object():
    row = Row({"a": {"b": 1, "c.d": 2}, "a.c": 3, "e": None}, "f:1")
    assert [tables.value_of(row, name, "data.x") for name in ("a.b", "a.c", "a")] == [1, 3, row.values["a"]]
    for name, message in (("a.x", "a row without column 'x'; its columns: 'b', 'c.d'"), ("e.b", "NoneType for column")):
        with pytest.raises(UserError, match=rf"f:1: got {message}"):
            tables.value_of(row, name, "data.x")


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", "label,body\n1,x\n", "'label', 'body'"),
        ("a.tsv", "a b\n1\n", "'a b'"),
        ("a.jsonl", '{"a": 1}\n{"label": 1, "a": 2}\n', "'a', 'label'"),
        ("a.json", '[{"text.": {"en": 1}}, {}]', "'text.'"),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_a_column_that_no_row_has_is_an_error_of_the_table(name, content, columns, on_bad_row):
    write(name, content)
    bad_rows = BadRows(on_bad_row)
    for column in ("text", "text.de"):
        rows = tables.read_rows(name, "data.source", True, "", bad_rows)
        message = rf"^{name}: got no column '{column}'; its columns: {columns}; .* Fix: correct --config\.data\.x\.$"
        with pytest.raises(UserError, match=message):
            list(bad_rows.sift(map(partial(tables.text_of, column=column, key="data.x"), rows)))


def test_a_column_that_other_rows_have_is_an_error_of_the_row():
    write("a.jsonl", '{"a": 1}\n{"text": {"en": "x"}}\n')
    bad_rows = BadRows("skip")
    rows = tables.read_rows("a.jsonl", "data.source", True, "", bad_rows)
    assert list(bad_rows.sift(map(partial(tables.text_of, column="text.en", key="data.x"), rows))) == ["x"]
    assert bad_rows.count == 1


def test_a_table_without_a_header_is_detected():
    write("a.csv", f"1,{'An article. ' * 9}\n0,Another.\n")
    (row,) = tables.read_rows("a.csv", "data.source", True, "", BadRows("stop"))
    with pytest.raises(
        UserError,
        match=r"^a\.csv: .* first line, which seems to be no header: '1', 'An .{37}\.\.\.'; .*data\.header=False",
    ):
        tables.text_of(row, "text", "data.x")


def test_other_separators_of_csv_files():
    write("a.csv", 'text;label\n"a; b, c";1\n')
    assert read("a.csv", separator=";") == [Row({"text": "a; b, c", "label": "1"}, "a.csv:2")]
    (row,) = tables.read_input("a.csv", "data.x", ("text",), True, ";", BadRows("stop"))
    assert row.values["label"] == "1"
    write("b.csv", "text\tlabel\na\t1\n")
    assert read("b.csv", separator=r"\t") == [Row({"text": "a", "label": "1"}, "b.csv:2")]
    with pytest.raises(UserError, match=r"a\.csv:1: got a header with one column, 'text;label'.*separator=';' if it"):
        read("a.csv")


def test_each_file_has_its_own_header():
    write("a.tsv", "text\tlabel\nx\t1\n")
    write("b.csv", "label,text\n2,y\n")
    write("c.tsv", "")
    write("d.jsonl", '{"text": "z", "label": "3"}\n')
    expected = [{"text": text, "label": label} for text, label in zip("xyz", "123", strict=True)]
    assert [dict(row.values) for row in read("*.tsv,b.csv,d.jsonl")] == expected


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("a.tsv", "1", "one field; expected 2, the columns 'label', 'text'"),
        ("a.tsv", "1\tx\ty", r"3 fields; expected 2, .*Fix: correct the row, or config\.data\.header or config"),
        ("a.tsv", "1\t\0", "a NUL character"),
        ("a.csv", '1,"x"y', r"a row that is not valid CSV \(',' expected after '\"'\); expected fields quoted"),
        ("a.jsonl", '{"text": ', "not valid JSON"),
        ("a.jsonl", '{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_bad_rows_are_errors(name, row, message):
    good = {"a.tsv": "1\tx", "a.csv": "1,x", "a.jsonl": '{"label": "1", "text": "x"}'}[name]
    header = {"a.tsv": "label\ttext\n", "a.csv": "label,text\n", "a.jsonl": "\n"}[name]
    write(name, (header + "\n".join([good, row, good]) + "\n").encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=rf"{name}:3: got .*{message}") as error:
        read(name)
    assert "on_bad_row=skip" in str(error.value)
    assert skipping(name) == ([{"label": "1", "text": "x"}] * 2, 1)


def test_fields_can_be_as_long_as_lines():
    text = "x" * 300_000
    write("a.csv", f'label,text\n1,{text}\n2,"{text}\n{text}"\n')
    assert [row.values["text"] for row in read("a.csv")] == [text, f"{text}\n{text}"]


@pytest.mark.parametrize("row", ["x" * 2**20, '"' + ("some, text" * 9_000 + "\n") * 20 + '"'])
@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_a_row_that_is_too_long_ends_the_reading(row, on_bad_row):
    write("a.csv", f"label,text\n1,x\n2,{row}\n3,y\n")
    message = r"a\.csv:3: got a row of more than 1,048,576 bytes; expected shorter rows.* Fix: close the quote"
    with pytest.raises(UserError, match=message):
        read("a.csv", on_bad_row=on_bad_row)


@pytest.mark.parametrize("bad", [b"\0", b"\xff"], ids=["NUL", "not UTF-8"])
def test_a_bad_line_of_a_quoted_row_is_no_row_of_its_own(bad):
    write("a.csv", b'label,text\n1,"a' + bad + b'\nb"\n2,"c\nd' + bad + b'"\n3,x\n')
    assert skipping("a.csv") == ([{"label": "3", "text": "x"}], 2)


def test_an_open_quote_is_reported_where_it_begins():
    write("a.csv", 'label,text\n1,x\n2,"y\n3,z\n')
    with pytest.raises(UserError, match=r"a\.csv:3: got a row that is not valid CSV \(unexpected end of data\)"):
        read("a.csv")
    assert skipping("a.csv") == ([{"label": "1", "text": "x"}], 1)


def test_a_line_without_the_custom_separator_is_an_error():
    write("a.txt", "LOC:city Where ?\nwhere\n")
    with pytest.raises(UserError, match=r"a\.txt:2: got one field; expected 2, the columns '0', '1'"):
        read("a.txt", header=False, separator=" ")


def test_a_bad_header_is_not_skipped():
    write("a.tsv", b"label\ttext\xff\n1\tx\n")
    with pytest.raises(UserError, match=r"a\.tsv:1: got byte 0xff"):
        skipping("a.tsv")
    write("a.tsv", "x\ty\tx\n1\t2\t3\n")
    with pytest.raises(UserError, match=r"a\.tsv:1: got a header with 'x' twice; .*--config\.data\.header=False"):
        skipping("a.tsv")


def test_a_bad_first_row_without_a_header_does_not_name_columns():
    write("a.tsv", b"\xff\n1\tx\n")
    assert skipping("a.tsv", header=False) == ([{"0": "1", "1": "x"}], 1)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a.txt", r"data\.test=a\.txt: got a file whose name does not determine .*\.jsonl, \.json or \.tmx"),
        ("b.tsv", r"data\.test=b\.tsv: got a path that does not exist; expected .*or tfds:NAME"),
        ("tfds:nonesuch", r"data\.test=tfds:nonesuch: got an unknown dataset"),
    ],
)
def test_wrong_sources_are_errors(source, message):
    write("a.txt", "a\n")
    with pytest.raises(UserError, match=message):
        next(tables.read_rows(source, "data.test", True, "", BadRows("stop")))


ROWS = [("good \u2028 text", 1, 4.5, True), (" ", -1, -1.0, False), ("bad \udcff byte", 1, 0.0, True)]


@pytest.fixture
def prepared(tmp_path):
    """A dataset on disk with a field of each kind. Record 1 has no label."""
    features = {
        "text": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["bad", "good"]),
        "score": np.float64,
        "number": np.int32,
        "flag": np.bool_,
        "tokens": tfds.features.Sequence(tfds.features.Text()),
        "tags": tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "I"])),
    }
    values = [(text.encode("utf-8", "surrogateescape"), *others) for text, *others in ROWS]
    lists = ["a", "\u00e4"], [1, 0]
    rows = [dict(zip(features, (*row[:3], key, row[3], *lists), strict=True)) for key, row in enumerate(values)]
    tfds_files.prepare(tmp_path, features, rows)
    tfds.core.add_data_dir(tmp_path)
    yield
    tfds.core.utils.file_utils.clear_registered_data_dirs()


def test_records_are_rows_of_their_values_and_lists(prepared):
    lists = {"tokens": ["a", "\u00e4"], "tags": ["I", "O"]}
    expected = [
        {"text": "good \u2028 text", "label": "good", "score": 4.5, "number": 0, "flag": True, **lists},
        {"text": " ", "label": None, "score": -1.0, "number": 1, "flag": False, **lists},
    ]
    rows = read("tfds:tiny_text:train[:2]")
    assert rows == [Row(values, f"tfds:tiny_text:train[:2] record {n}") for n, values in enumerate(expected)]
    types = [{type(value) for value in row.values.values()} for row in rows]
    assert types == [{str, float, int, bool, list}, {str, type(None), float, int, bool, list}]
    assert tables.class_names("tfds:tiny_text", "data.source", "tags") == ("O", "I")
    assert skipping("tfds:tiny_text") == (expected, 1)
    with pytest.raises(UserError, match="tfds:tiny_text record 2: got byte 0xff at byte offset 4"):
        read("tfds:tiny_text")


field = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0"), max_size=5)
table = st.integers(2, 4).flatmap(lambda n: st.lists(st.lists(field, min_size=n, max_size=n), min_size=1, max_size=5))


@given(table)
def test_any_written_table_is_read_back(tmp_path_factory, rows):
    rows[0] = [f"{number}{name}" for number, name in enumerate(rows[0])]
    names, *values = [[text.replace("\t", " ") for text in row] for row in rows]
    expected = [dict(zip(names, row, strict=True)) for row in values]
    quoted = io.StringIO()
    csv.writer(quoted).writerows([names, *values])
    contents = {
        "a.tsv": "".join("\t".join(row) + "\n" for row in (names, *values)),
        "a.csv": quoted.getvalue(),
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in expected),
    }
    folder = tmp_path_factory.mktemp("any")
    for name, content in contents.items():
        (folder / name).write_bytes(content.encode())
        assert [dict(row.values) for row in read(str(folder / name))] == expected
