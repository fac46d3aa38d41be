import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.readers import lines
from bertjax.data.readers.lines import BadRows, Line, RowError
from bertjax.errors import UserError
from tests.data.files import write


def line(content: bytes, limit: int = 100) -> Line:
    return Line("a.txt:3", 10, content, limit)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_have_their_position_and_are_truncated_at_the_limit(name):
    path = write(name, b"\xef\xbb\xbfab\r\n\n" + b"x" * 12 + b"\nlast")
    assert list(lines.read_lines(path, 5)) == [
        Line(f"{name}:1", 3, b"ab\r", 5),
        Line(f"{name}:2", 7, b"", 5),
        Line(f"{name}:3", 8, b"x" * 6, 5),
        Line(f"{name}:4", 21, b"last", 5),
    ]


@pytest.mark.parametrize(
    ("content", "text"), [(b" a\t\r", " a\t"), ("caf\u00e9\u2028".encode(), "caf\u00e9\u2028"), (b"\r\r", "\r")]
)
def test_decode_removes_only_the_line_end(content, text):
    assert lines.decode(line(content)) == text


@pytest.mark.parametrize(("content", "is_blank"), [(b"", True), (b" \t\r", True), (b" a", False), (b" " * 101, False)])
def test_a_truncated_line_is_not_blank(content, is_blank):
    assert line(content).is_blank == is_blank


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ab\xff", r"a\.txt:3: got byte 0xff at byte offset 12, not valid UTF-8; expected UTF-8 text\. Fix: convert"),
        (b"a\0", "got a NUL character; expected text"),
        (b"x" * 101, "got a line that is too long; expected at most 100 bytes"),
    ],
)
def test_bad_lines_can_be_skipped(content, message):
    with pytest.raises(RowError, match=rf"{message}.*or set --config\.data\.on_bad_row=skip"):
        lines.decode(line(content))


def test_text_that_utf8_cannot_encode_is_an_error():
    lines.check_text("\U0001f600", "a")
    with pytest.raises(RowError, match="a: got half of a surrogate pair"):
        lines.check_text("\ud83d", "a")
    with pytest.raises(RowError, match="a: got a NUL character"):
        lines.check_text("\0", "a")


def test_bad_rows_are_skipped_and_counted():
    def parse(number: int) -> int:
        if number % 2:
            raise RowError(f"row {number}", "odd", "even")
        return number

    bad_rows = BadRows("skip")
    assert list(bad_rows.sift(map(parse, range(6)))) == [0, 2, 4]
    assert bad_rows.count == 3
    with pytest.raises(RowError, match=r"row 1: got odd; expected even\. Fix: correct the row, or set"):
        list(BadRows("stop").sift(map(parse, range(6))))
    with pytest.raises(UserError, match=r"data\.on_bad_row: got 'ignore'; expected one of stop, skip"):
        BadRows("ignore")
    with pytest.raises(AssertionError, match="a generator ends when it raises"):
        list(bad_rows.sift(parse(number) for number in range(6)))


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_json_files(name, start):
    value = {"data": [1, None, "caf\u00e9"]}
    path = write(name, start + json.dumps(value, indent=1, ensure_ascii=False).encode())
    assert lines.read_json(path) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n "a": 1,\n "b" 2}', r"a\.json:3: got invalid JSON at column 6 \(Expecting ':' delimiter\); expected one"),
        (b'\xef\xbb\xbf"\xff"', r"a\.json: got byte 0xff at byte offset 4, not valid UTF-8; .*Fix: convert"),
        (b"[" * 100_000, "got JSON that cannot be read"),
        (b'{"b": [{}, "{"],\n "a": {"b": 1},\n "\\u0062": 2}', r"a\.json:3: .*column 2 \(the key 'b' twice in "),
        (b'"\0"', "got a binary file"),
    ],
)
def test_bad_json_files_are_errors(content, message):
    with pytest.raises(UserError, match=message) as error:
        lines.read_json(write("a.json", content))
    assert "Fix:" in str(error.value)
    assert "on_bad_row" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", r"data\.test: got '', with an empty name; expected paths or globs.*--config\.data\.test="),
        ("b.tsv", r"data\.test=b\.tsv: got a path that does not exist; expected files relative to /"),
        ("*.csv", r"data\.test=\*\.csv: got a pattern that matches no file"),
        ("c", r"data\.test=c: got a folder; expected files"),
        ("a.tsv,*.tsv", r"data\.test=.*got a\.tsv twice"),
    ],
)
def test_missing_files_are_errors(source, message):
    write("a.tsv", b"x")
    Path("c").mkdir()
    with pytest.raises(UserError, match=message) as error:
        lines.find_files(source, "data.test")
    assert "data.source" not in str(error.value)


@given(st.binary(max_size=60), st.booleans(), st.integers(1, 20))
def test_any_bytes_are_read_or_reported(tmp_path_factory, content, zipped, limit):
    path = tmp_path_factory.mktemp("bytes") / ("a.txt.gz" if zipped else "a.txt")
    path.write_bytes(gzip.compress(content) if zipped else content)
    try:
        found = list(lines.read_lines(path, limit))
    except UserError as error:
        assert b"\0" in content or content.startswith(b"\x1f\x8b")
        assert "Fix:" in str(error)
        return
    expected = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [line.content[:limit] for line in found] == [line[:limit] for line in expected]
    starts = [content[line.offset : line.offset + len(line.content)] for line in found]
    assert starts == [line.content for line in found]
