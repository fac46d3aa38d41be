import gzip
import json
from pathlib import Path

import pytest

from bertjax.data.readers import json_rows
from bertjax.data.readers.lines import BadRows, RowError
from bertjax.errors import UserError


def read(content, name="a.json", on_bad_row="stop", limit=1000):
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    bad_rows = BadRows(on_bad_row)
    return list(bad_rows.sift(json_rows.read_objects(Path(name), limit))), bad_rows.count


def test_a_repeated_key_is_an_error():
    lines = '{"a": 1}\n{"b": {"a": 1, "a": 2}}\n'
    with pytest.raises(RowError, match=r"a\.jsonl:2: got .*\(the key 'a' twice in an object"):
        read(lines, "a.jsonl")
    assert read(lines, "a.jsonl", on_bad_row="skip")[1] == 1
    with pytest.raises(UserError, match=r"a\.json:2: got invalid JSON \(the key 'a' twice in an object\)"):
        read('[{"a": 1},\n{"a": 1, "a": 2}]', on_bad_row="skip")


@pytest.mark.parametrize("content", ["", " \n", "[]", "\ufeff[ ]\n"])
def test_a_file_may_have_no_objects(content):
    assert read(content) == ([], 0)


def test_arrays_and_lines_have_the_same_objects():
    rows = [{"text": "a\nb", "n": 1}, {"text": "\U0001f600", "more": [{"x": None}]}, {}]
    for indent in (None, 2):
        content = json.dumps(rows, indent=indent, ensure_ascii=False)
        assert [row for row, _ in read(content)[0]] == rows
    assert [row for row, _ in read(gzip.compress(content.encode()), "b.json.gz")[0]] == rows
    of_lines = "\n\n".join(map(json.dumps, rows)) + "\n"
    assert read(of_lines, "a.jsonl")[0] == [(row, f"a.jsonl:{line}") for row, line in zip(rows, (1, 3, 5), strict=True)]
    assert [row for row, _ in read(of_lines)[0]] == rows
    assert read('\n[\n{"a": 1}, {"a":\n2},\r\n{"a": 3}]')[0] == [
        ({"a": 1}, "a.json:3"),
        ({"a": 2}, "a.json:3"),
        ({"a": 3}, "a.json:5"),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_an_array_is_read_in_small_parts(monkeypatch, size):
    monkeypatch.setattr(json_rows, "_CHUNK_BYTES", size)
    rows = [{"é": "\u0928\u093f", "n": 12345}, {"b": [1.5e3, {"c": "]},{"}]}] * 50
    assert [row for row, _ in read(json.dumps(rows, ensure_ascii=False))[0]] == rows
    with pytest.raises(UserError, match=r"a\.json: got byte 0xff at byte offset 8, not valid UTF-8"):
        read(b'[{"a": "\xff"}]')


def test_bad_elements_can_be_skipped():
    content = '[{"a": 1}, 12, {"a": "\\ud800"},\n"b", {"a": 2}]'
    assert read(content, on_bad_row="skip") == ([({"a": 1}, "a.json:1"), ({"a": 2}, "a.json:2")], 3)
    with pytest.raises(RowError, match=r"a\.json:1: got a JSON int; expected an array of JSON objects, or one JSON ob"):
        read(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1},\n{"a": 2}', r"a\.json:2: got invalid JSON \(the end\)"),
        ('[{"a": 1}\n{"a": 2}]', r"a\.json:2: got invalid JSON \('\{' instead of ',' or '\]'\)"),
        ('[{"a": 1},\n]', r"a\.json:2: got invalid JSON \(Expecting value\)"),
        ('[{"a": 1}]\n{"a": 2}', r"a\.json:2: got invalid JSON \(text after the array\)"),
        ('[{"a": "' + "b" * 70_000 + '"}]', r"a\.json:1: got invalid JSON \(more than 1,000 characters, or Unterm"),
        ("[" * 100_000, r"a\.json:1: got invalid JSON \(.*recursion"),
        ('{"data": [\n{"a": 1}]}', r"a\.json:1: got a row that is not valid JSON .*; expected an array of JSON obj"),
    ],
)
def test_malformed_files_are_errors(content, message):
    with pytest.raises(UserError, match=message):
        read(content)


def test_an_array_named_jsonl_is_an_error():
    with pytest.raises(RowError, match=r"got a JSON list; expected one JSON object per line\. Fix: rename the file to"):
        read('[{"a": 1}]', "a.jsonl")
