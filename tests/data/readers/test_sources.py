import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from bertjax.data.readers import documentation, sources
from bertjax.data.readers.sources import TextSource
from bertjax.errors import UserError
from tests.data.files import write


def read(source: str, on_bad_row: str = "stop", text_field: str = "text") -> list[list[str]]:
    return [document.lines for document in TextSource(source, text_field, on_bad_row).documents()]


def counts(source: str, on_bad_row: str = "skip") -> tuple[int, int, int, int]:
    text = TextSource(source, "text", on_bad_row)
    assert [len(document.lines) for document in text.documents()].count(0) == 0
    return tuple(text.counts[key] for key in ("documents", "lines", "bad_rows", "empty_documents"))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "no_suffix", "a.jsonl.txt"])
def test_plain_text(name):
    write(name, "\ufeff One. \r\nTwo.\r\n\r\n \t\n\nThree\u2028still\x0cthree\rhere.\n")
    assert read(name) == [["One.", "Two."], ["Three\u2028still\x0cthree\rhere."]]
    where = [document.where for document in TextSource(name, "text", "stop").documents()]
    assert where == [f"{name}:1", f"{name}:6"]


def test_a_document_ends_with_its_file_and_order_is_kept():
    write("b.txt", "b")
    write("a.txt.gz", "a\n\naa")
    write("c/d/e.txt", "e\n")
    write("c/x.jsonl", '{"text": "x\\n y \\r\\n\\nz"}\n\n{"text": " "}\n{"text": "w"}')
    write("empty.txt", "\n \n")
    assert read("b.txt, a.txt.gz,c/x.jsonl") == [["b"], ["a"], ["aa"], ["x", "y", "z"], ["w"]]
    assert read("*.txt*") == [["a"], ["aa"], ["b"]]
    assert read("c/**/*.txt,[ab].txt") == [["e"], ["b"]]
    assert counts("b.txt,c/x.jsonl,empty.txt") == (3, 5, 0, 2)


def test_an_existing_path_with_glob_characters_is_a_path():
    write("a[1].txt", "this one")
    write("a1.txt", "not this one")
    assert read("a[1].txt") == [["this one"]]


def test_documentation():
    documents = itertools.islice(TextSource("documentation", "text", "stop").documents(), 20)
    expected = ((where, lines) for where, lines in documentation.documents() if lines)
    found = [(document.where, document.lines) for document in documents]
    assert found == list(itertools.islice(expected, 20))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pipe", "not a regular file"),
        ("x" * 5000, "unreadable file"),
        ("tfds:", r"got 'tfds:'; expected tfds:NAME\[/CONFIG\]"),
    ],
)
def test_wrong_sources_are_reported_at_once(source, message):
    os.mkfifo("pipe")
    with pytest.raises(UserError, match=message):
        TextSource(source, "text", "stop")


def gzipped(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)  # the same bytes in every process that collects tests


@pytest.mark.parametrize(
    ("name", "stored", "message"),
    [
        ("a.txt", b"\n \n\xef\xbb\xbf", None),  # a byte order mark within a file is text
        ("a.txt", b"\xef\xbb\xbf\n \n", "got no text;"),
        ("a.txt", b"PK\x03\x04\0\0abc", r"a\.txt: got a binary file \(it has NUL bytes\)"),
        ("a.txt", gzipped("text"), r"gzip data in a file not named \.gz"),
        ("a.txt.gz", b"text", r"a file named \.gz that is not gzip"),
        ("a.txt.gz", gzipped("some text")[:-3], "a damaged or truncated gzip file"),
        ("a.txt.gz", gzipped("some text") + b"more", "a damaged or truncated gzip file"),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_damaged_files_raise_with_both_settings_of_on_bad_row(name, stored, message, on_bad_row):
    Path(name).write_bytes(stored)
    if message is None:
        assert read(name, on_bad_row)
        return
    with pytest.raises(UserError, match=message):
        read(name, on_bad_row)


BAD_LINES = [
    (b"caf\xe9 au lait", "got byte 0xe9 at byte offset 16, not valid UTF-8"),
    (b"x" * 101, r'a line that is too long; expected at most 100 bytes before its "\\n"'),
]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize(("bad", "message"), BAD_LINES)
def test_bad_lines(name, bad, message, monkeypatch):
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 100)
    write(name, b"First.\nOkay.\n" + bad + b"\nLast." + b"y" * 95)
    with pytest.raises(UserError, match=message) as error:
        read(name)
    assert f"{name}:3: got" in str(error.value)
    assert "on_bad_row=skip" in str(error.value)
    assert read(name, "skip") == [["First.", "Okay.", "Last." + "y" * 95]]
    assert counts(name) == (1, 3, 1, 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"a\.jsonl:2: got a row that is not valid JSON \(Expecting"),
        ('{"a": 1, "body": "x"}', r"without column 'text'; its columns: 'a', 'body'; .*--config\.data\.text_field"),
        ('{"text": null}', "got NoneType in column 'text'; expected a text"),
        ('{"text": "\\ud800 x"}', "half of a surrogate pair"),
        (json.dumps({"text": "y\n" + "x" * 1001}), "a line that is too long; expected at most 1,000 bytes"),
        (json.dumps({"text": "xy\n" * 70_000}), "a line that is too long; expected at most 200,000 bytes"),
    ],
)
def test_bad_rows(row, message, monkeypatch):
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 200_000)
    write("a.jsonl", f'{{"text": "one"}}\n{row}\n{{"text": "\\ud83d\\ude00", "more": 1}}\n')
    with pytest.raises(UserError, match=message) as error:
        read("a.jsonl")
    assert "a.jsonl:2" in str(error.value)
    assert "on_bad_row=skip" in str(error.value)
    assert read("a.jsonl", "skip") == [["one"], ["😀"]]
    assert counts("a.jsonl") == (2, 2, 1, 0)


def test_a_source_of_only_bad_rows_has_no_text():
    write("a.jsonl", "1\n2\n")
    with pytest.raises(UserError, match=r"no text, 2 bad rows skipped;"):
        read("a.jsonl", "skip")


def test_the_text_field_can_be_chosen():
    write("a.jsonl", '{"text": "no", "body": "yes"}\n')
    assert read("a.jsonl", text_field="body") == [["yes"]]


def test_a_document_that_exceeds_the_limit_raises(monkeypatch):
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 100)
    write("a.txt", "short\n\n" + "long enough\n" * 100)
    with pytest.raises(UserError, match=r"a\.txt:3: got a document of more than 100 bytes .*blank lines"):
        read("a.txt", "skip")


def test_an_unreadable_file_is_reported(monkeypatch):
    write("a.txt", "a")
    text = TextSource("a.txt", "text", "stop")

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    for use in (text.fingerprint, lambda: list(text.documents())):
        with pytest.raises(UserError, match=r"a\.txt: got an unreadable file \(Permission denied\)"):
            use()


def test_fingerprint_depends_on_the_text_and_not_on_folder_or_time(monkeypatch):
    write("one/a.txt", "text")
    write("one/b.jsonl.gz", '{"text": "x"}')
    first = TextSource("one/*", "text", "stop").fingerprint()
    assert json.loads(json.dumps(first)) == first
    assert [entry["name"] for entry in first["files"]] == ["a.txt", "b.jsonl.gz"]
    digest = "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"
    assert first["files"][0] == {"name": "a.txt", "bytes": 4, "sha256": digest}
    shutil.copytree("one", "two/three")
    os.utime("two/three/a.txt", (0, 0))
    assert TextSource(str(Path("two/three/*").absolute()), "text", "skip").fingerprint() == first
    assert TextSource("one/*", "body", "stop").fingerprint() != first
    assert TextSource("one/b.jsonl.gz,one/a.txt", "text", "stop").fingerprint() != first
    write("one/a.txt", "Text")
    assert TextSource("one/*", "text", "stop").fingerprint() != first
    monkeypatch.setattr(documentation, "fingerprint", lambda: {"kind": "documentation"})
    assert TextSource("documentation", "text", "stop").fingerprint() == {"kind": "documentation"}


def test_only_tfds_sources_import_tfds():
    write("a.txt", "text")
    code = (
        "import sys; from bertjax.data.readers.sources import TextSource; "
        "list(TextSource('a.txt', 'text', 'stop').documents()); "
        "print(*{'tensorflow_datasets', 'jax', 'nltk'} & {*sys.modules})"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(sources.__file__).parents[3])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.split() == []


@pytest.mark.slow
def test_memory_is_bounded():
    with Path("a.txt").open("wb") as stream:
        for _ in range(30):
            stream.write(b"x" * 2**20)  # one line of 30 MB
        stream.write(b"\nshort\n")
        for _ in range(5_000):
            stream.write(b"A line of an ordinary document.\n\n")
    tracemalloc.start()
    number = sum(1 for _ in TextSource("a.txt", "text", "skip").documents())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert number == 5_000
    assert peak < 8 * 2**20
