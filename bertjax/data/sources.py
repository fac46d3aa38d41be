"""Raw text documents as a stream, in bounded memory: plain files, JSON lines, TFDS or the documentation."""

import contextlib
import gzip
import hashlib
import itertools
import json
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from glob import glob, has_magic
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bertjax.data import documentation
from bertjax.errors import UserError, choice

if TYPE_CHECKING:
    from bertjax.data.records import TextRecords

T = TypeVar("T")

# What is held in memory at once. No paragraph comes near the first; a long book is a thirtieth of the second.
MAX_LINE_BYTES = 2**20
MAX_DOCUMENT_BYTES = 2**26

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_TFDS_SOURCE = re.compile(r"tfds:(?P<name>[^:]+(:\d+\.[\d*]+\.[\d*]+)?)(:(?P<split>.+))?")


class Document(NamedTuple):
    """Some text that belongs together, in reading order."""

    lines: list[str]  # a sentence or a paragraph each; stripped, none empty
    where: str  # "file:line" (or the like) of its first line, for messages


class TextSource:
    """A stream of documents, the same on every machine that holds the same text.

    `source` is one of:
    - `documentation`: the embedded default, see `bertjax.data.documentation`;
    - paths or globs (`**` too), separated by commas; the files of a glob come in sorted order. Names ending
      in `.jsonl` or `.jsonl.gz` hold a document a row, in field `text_field`, its lines separated by "\\n".
      All others are UTF-8 text, `.gz` or not, a sentence or a paragraph a line; a blank line ends a document,
      and so does the file;
    - `tfds:NAME[/CONFIG][:VERSION][:SPLIT]` (split `train` if none is given): a document a record, likewise.

    Lines end in "\\n" alone and are stripped. A line has at most `MAX_LINE_BYTES`, a document at most
    `MAX_DOCUMENT_BYTES`.

    Args:
      source: as above.
      text_field: the field of a row or record that holds the text; files of plain text have none.
      on_bad_row: "stop" raises at the first bad line, row or record; "skip" leaves it out and counts it.
        Damaged files, binary files and documents without end stop in both.
    Raises:
      UserError: an empty or unknown source, a path that is no regular file, a glob that matches none, a file
        named twice, or a TFDS dataset that cannot be read.
    """

    def __init__(self, source: str, text_field: str, on_bad_row: str) -> None:
        self._source = source
        self._text_field = text_field
        self._on_bad_row = choice(on_bad_row, ("stop", "skip"), "data.on_bad_row")
        self._paths: list[Path] = []
        self._records: TextRecords | None = None
        if source.startswith("tfds:"):
            self._records = _open_records(source, text_field)
        elif source != "documentation":
            self._paths = _paths(source)
        self.counts: dict[str, int] = {}

    def documents(self) -> Iterator[Document]:
        """Yields the documents that have text, in order.

        `counts`, complete once the stream ends, has `documents`, `lines`, `bad_rows` (left out by "skip") and
        `empty_documents` (rows, records or files without text, which are not yielded).

        Raises:
          UserError: bad text, with file and line; or no text in the whole source.
        """
        self.counts = {"documents": 0, "lines": 0, "bad_rows": 0, "empty_documents": 0}
        for document in self._all_documents():
            if document.lines:
                self.counts["documents"] += 1
                self.counts["lines"] += len(document.lines)
                yield document
            else:
                self.counts["empty_documents"] += 1
        if not self.counts["documents"]:
            raise UserError(
                f"config key data.source={self._source}",
                got=f"no text at all ({self.counts['bad_rows']} bad rows left out)",
                expected="at least one line of text",
                fix="check that the source and config.data.text_field are the ones meant",
            )

    def fingerprint(self) -> dict[str, Any]:
        """Returns a JSON-able description of the text, which tells nothing of its folder, time and machine.

        Files have their base name, size and SHA-256 as stored; the documentation its Python version and
        SHA-256; TFDS its name with version, split and number of records.
        """
        if self._records is not None:
            return {**self._records.fingerprint(), "text_field": self._text_field}
        if not self._paths:
            return documentation.fingerprint()
        fields = {"text_field": self._text_field} if any(map(_is_json_lines, self._paths)) else {}
        return {"kind": "files", "files": [_file_fingerprint(path) for path in self._paths], **fields}

    def _all_documents(self) -> Iterator[Document]:
        """Yields every document, empty ones too."""
        if self._records is not None:
            yield from self._record_documents(self._records)
        elif not self._paths:
            yield from (Document(lines, where) for where, lines in documentation.documents())
        for path in self._paths:
            yield from self._row_documents(path) if _is_json_lines(path) else self._plain_documents(path)

    def _plain_documents(self, path: Path) -> Iterator[Document]:
        texts = ((line, self._unless_bad(_decode, line)) for line in _read_lines(path, MAX_LINE_BYTES))
        good = ((line, text) for line, text in texts if text is not None)
        found = False
        for has_text, run in itertools.groupby(good, key=lambda pair: bool(pair[1])):
            if has_text:
                found = True
                yield _plain_document(run)
        if not found:
            yield Document([], f"{path}:1")

    def _row_documents(self, path: Path) -> Iterator[Document]:
        for line in _read_lines(path, MAX_DOCUMENT_BYTES):
            if line.content.strip():
                document = self._unless_bad(_row_document, line, self._text_field)
                if document is not None:
                    yield document

    def _record_documents(self, records: "TextRecords") -> Iterator[Document]:
        for index, value in enumerate(records):
            document = self._unless_bad(_record_document, value, f"{self._source} record {index}")
            if document is not None:
                yield document

    def _unless_bad(self, parse: Callable[..., T], *arguments: Any) -> T | None:
        """Returns `parse(*arguments)`; if that raises UserError and bad rows are skipped, counts it: None."""
        try:
            return parse(*arguments)
        except UserError:
            if self._on_bad_row == "stop":
                raise
            self.counts["bad_rows"] += 1
            return None


class _Line(NamedTuple):
    where: str  # "file:line", from 1
    offset: int  # of its first byte, in the file or in what the .gz unpacks to
    content: bytes  # without its line end
    limit: int  # content is cut one byte after it


def _read_lines(path: Path, limit: int) -> Iterator[_Line]:
    """Yields the lines of a file, holding no more than `limit` bytes of any."""
    with _open(path) as stream:
        offset = 0
        for number in itertools.count(1):
            content = stream.readline(limit + 1)
            if not content:
                return
            start = offset
            offset += len(content)
            if number == 1 and content.startswith(_BOM):
                content, start = content.removeprefix(_BOM), len(_BOM)
            yield _Line(f"{path}:{number}", start, content.removesuffix(b"\n"), limit)
            while len(content) > limit and not content.endswith(b"\n"):
                content = stream.readline(limit + 1)
                offset += len(content)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Opens a text file, unpacking .gz; what goes wrong in the with block's reads is told as a UserError."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP_MAGIC
        _check_name(path, is_gzip)
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as stream:
            if b"\0" in stream.peek(1):
                raise UserError(
                    str(path),
                    got="a binary file (it has NUL bytes)",
                    expected="UTF-8 text",
                    fix="convert it to UTF-8 text, or leave it out of config.data.source",
                )
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            str(path),
            got=f"a damaged or truncated gzip file ({error})",
            expected="a complete one",
            fix="make or copy the file again (gzip -t tests one)",
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _check_name(path: Path, is_gzip: bool) -> None:
    if is_gzip != (path.suffix == ".gz"):
        raise UserError(
            str(path),
            got="gzip data in a file not named .gz" if is_gzip else "a file named .gz that is not gzip",
            expected="the name to end in .gz if and only if the file is gzip",
            fix="rename the file, or compress it with gzip",
        )


def _decode(line: _Line) -> str:
    """Returns the stripped text of a line."""
    if len(line.content) > line.limit:
        raise _too_long(line.where, line.limit)
    try:
        text = line.content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        offset = line.offset + error.start
        got = f"byte {line.content[error.start]:#04x} at byte offset {offset}, not valid UTF-8"
        raise _bad_row(line.where, got, "UTF-8 text", "convert the file to UTF-8 (iconv does)") from None
    if "\0" in text:
        raise _bad_row(line.where, "a NUL character", "text")
    return text


def _plain_document(run: Iterable[tuple[_Line, str]]) -> Document:
    """Returns the document of a run of lines with text."""
    texts: list[str] = []
    where = ""
    size = 0
    for line, text in run:
        where = where or line.where
        texts.append(text)
        size += len(line.content)
        if size > MAX_DOCUMENT_BYTES:
            raise UserError(
                where,
                got=f"a document of more than {MAX_DOCUMENT_BYTES:,} bytes without a blank line",
                expected="a blank line between documents",
                fix="separate the documents with blank lines, or cut this one into parts",
            )
    return Document(texts, where)


def _row_document(line: _Line, text_field: str) -> Document:
    """Returns the document in one row of JSON lines."""
    content = _decode(line)
    try:
        row = json.loads(content)
    except (ValueError, RecursionError) as error:
        got = f"a row that is not valid JSON ({error})"
        raise _bad_row(line.where, got, "one JSON object a line") from None
    if not isinstance(row, dict):
        raise _bad_row(line.where, f"a JSON {type(row).__name__}", "one JSON object a line")
    if text_field not in row:
        got = f"a row without field {text_field!r}; its fields: {', '.join(map(repr, row)) or 'none'}"
        fix = "set --config.data.text_field to the field that holds the text"
        raise _bad_row(line.where, got, "the field that config.data.text_field names", fix)
    if not isinstance(row[text_field], str):
        got = f"{type(row[text_field]).__name__} in field {text_field!r}"
        raise _bad_row(line.where, got, "a string")
    return _text_document(row[text_field], line.where)


def _record_document(value: str | bytes, where: str) -> Document:
    text = value if isinstance(value, str) else _decode(_Line(where, 0, value, MAX_DOCUMENT_BYTES))
    return _text_document(text, where)


def _text_document(text: str, where: str) -> Document:
    """Returns the document whose lines are those of `text`."""
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    try:
        longest = max((len(line.encode("utf-8")) for line in lines), default=0)
    except UnicodeEncodeError:
        raise _bad_row(where, "half of a surrogate pair in the text", "whole characters") from None
    if longest > MAX_LINE_BYTES:
        raise _too_long(where, MAX_LINE_BYTES)
    if "\0" in text:
        raise _bad_row(where, "a NUL character", "text")
    return Document(lines, where)


def _bad_row(where: str, got: str, expected: str, fix: str = "correct the row") -> UserError:
    skip = "set --config.data.on_bad_row=skip to leave such rows out"
    return UserError(where, got=got, expected=expected, fix=f"{fix}, or {skip}")


def _too_long(where: str, limit: int) -> UserError:
    return _bad_row(where, "a longer line", f'at most {limit:,} bytes up to its "\\n"', "break the line up")


def _is_json_lines(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def _paths(source: str) -> list[Path]:
    """Returns the files of comma-separated paths and globs."""
    parts = [part.strip() for part in source.split(",")]
    if not all(parts):
        raise UserError(
            "config key data.source",
            got=f"{source!r}, with an empty name",
            expected="documentation, paths or globs separated by commas, or tfds:NAME[:SPLIT]",
            fix="name the text, for example --config.data.source=corpus/*.txt",
        )
    paths = [path for part in parts for path in _matches(part)]
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UserError(
                f"config key data.source={source}",
                got=f"{path} twice",
                expected="each file once",
                fix="remove the repetition, or the glob that also matches it",
            )
        seen.add(path.resolve())
    return paths


def _matches(part: str) -> list[Path]:
    """Returns the file that `part` names, or else the files that it matches as a glob, sorted."""
    path = Path(part)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _globbed(part)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if stat.S_ISDIR(mode):
        fix = f"name its files, for example {path / '*.txt'} or {path / '**' / '*.txt'}"
        raise UserError(f"config key data.source={part}", got="a folder", expected="files", fix=fix)
    if path.name.endswith((".json", ".json.gz")) or not stat.S_ISREG(mode):
        raise UserError(
            f"config key data.source={part}",
            got="a .json file" if stat.S_ISREG(mode) else "something that is not a regular file",
            expected="plain text, or JSON lines in a file named .jsonl (or .jsonl.gz)",
            fix="rename it if it has one JSON object a line, otherwise convert it or copy its text to a file",
        )
    return [path]


def _globbed(part: str) -> list[Path]:
    # Path.glob would match hidden files, and takes ** differently in different Python versions.
    names = sorted(glob(part, recursive=True)) if has_magic(part) else []  # noqa: PTH207
    files = [Path(name) for name in names if not Path(name).is_dir()]
    if not files:
        raise UserError(
            f"config key data.source={part}",
            got="a pattern that matches no file" if has_magic(part) else "a path that does not exist",
            expected=f"documentation, files seen from {Path.cwd()}, or tfds:NAME[:SPLIT]",
            fix="correct the path",
        )
    return [path for file in files for path in _matches(str(file))]


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error)
    fix = "correct the path, or the file's permissions"
    return UserError(str(path), got=f"an unreadable file ({reason})", expected="a readable one", fix=fix)


def _file_fingerprint(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return {"name": path.name, "bytes": stream.tell(), "sha256": digest}
    except OSError as error:
        raise _unreadable(path, error) from None


def _open_records(source: str, text_field: str) -> "TextRecords":
    match = _TFDS_SOURCE.fullmatch(source)
    if match is None:
        raise UserError(
            "config key data.source",
            got=repr(source),
            expected="tfds:NAME[/CONFIG][:VERSION][:SPLIT]",
            fix="name the dataset, for example tfds:lm1b:train",
        )
    # Imported here, so that only those who read TFDS wait for it.
    from bertjax.data.records import TextRecords

    return TextRecords(match["name"], match["split"] or "train", text_field)
