"""Raw text documents as a stream, in bounded memory: plain files, JSON lines, TFDS or the documentation."""

import copy
import itertools
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertjax.data.readers import documentation, lines
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, RowError
from bertjax.errors import UserError

if TYPE_CHECKING:
    from bertjax.data.readers.records import TextRecords

# What is held in memory at once: a long book is a thirtieth of it.
MAX_DOCUMENT_BYTES = 2**26
# A share has files of so many bytes together, or a longer one, or so many records.
_SHARE_BYTES = 2**28
_SHARE_RECORDS = 2**16

_TFDS_SOURCE = re.compile(r"tfds:(?P<name>[^:]+(:\d+\.[\d*]+\.[\d*]+)?)(:(?P<split>.+))?")


class Document(NamedTuple):
    """Some text that belongs together, in reading order."""

    lines: list[str]  # a sentence or a paragraph each; stripped, none empty
    where: str  # "file:line" (or the like) of its first line, for messages


class TextSource:
    """A stream of documents, the same on every machine that holds the same text.

    `source` is one of:
    - `documentation`: the embedded default, see `bertjax.data.readers.documentation`;
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
        self._bad_rows = BadRows(on_bad_row)
        self._paths: list[Path] = []
        self._records: TextRecords | None = None
        if source.startswith("tfds:"):
            self._records = _open_records(source, text_field)
        elif source != "documentation":
            self._paths = _find_files(source)
        self._is_share = False
        self.counts: dict[str, int] = {}

    def documents(self) -> Iterator[Document]:
        """Yields the documents that have text, in order.

        `counts`, complete once the stream ends, has `documents`, `lines`, `bad_rows` (left out by "skip") and
        `empty_documents` (rows, records or files without text, which are not yielded).

        Raises:
          UserError: bad text, with file and line; or no text in the whole source.
        """
        self.counts = {"documents": 0, "lines": 0, "bad_rows": 0, "empty_documents": 0}
        self._bad_rows.count = 0
        for document in self._all_documents():
            if document.lines:
                self.counts["documents"] += 1
                self.counts["lines"] += len(document.lines)
                yield document
            else:
                self.counts["empty_documents"] += 1
        self.counts["bad_rows"] = self._bad_rows.count
        if not self.counts["documents"] and not self._is_share:
            raise UserError(
                f"config key data.source={self._source}",
                got=f"no text at all ({self.counts['bad_rows']} bad rows left out)",
                expected="at least one line of text",
                fix="check that the source and config.data.text_field are the ones meant",
            )

    def shares(self) -> list["TextSource"]:
        """Returns its parts, for workers, in order: some files each, or some records; there may be no text in one."""
        if self._records is not None:
            name, split = split_name(self._source, "data.source")
            starts = range(0, len(self._records), _SHARE_RECORDS) if split.isidentifier() else ()
            slices = [f"tfds:{name}:{split}[{start}:{start + _SHARE_RECORDS}]" for start in starts[:-1]]
            last = [f"tfds:{name}:{split}[{start}:]" for start in starts[-1:]]
            return [self._share(source, []) for source in [*slices, *last] or [self._source]]
        groups: list[list[Path]] = [[]]
        size = 0
        for path in self._paths:
            if size >= _SHARE_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(path.absolute())  # workers begin in other folders
            size += path.stat().st_size
        return [self._share(self._source, group) for group in groups]

    def _share(self, source: str, paths: list[Path]) -> "TextSource":
        share = copy.copy(self)
        share._source, share._paths, share._is_share = source, paths, True
        share._records = self._records and _open_records(source, self._text_field)
        return share

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": None}  # opened where the rest arrives

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._source.startswith("tfds:"):
            self._records = _open_records(self._source, self._text_field)

    def fingerprint(self) -> dict[str, Any]:
        """Returns a JSON-able description of the text, which tells nothing of its folder, time and machine.

        Files have their base name, size and SHA-256 as stored; the documentation its Python version and
        SHA-256; TFDS its name with version, split and number of records.
        """
        if self._records is not None:
            return {**self._records.fingerprint(), "text_field": self._text_field}
        if not self._paths:
            return documentation.fingerprint()
        fields = {"text_field": self._text_field} if any(map(lines.is_json_lines, self._paths)) else {}
        return {"kind": "files", "files": [lines.fingerprint(path) for path in self._paths], **fields}

    def _all_documents(self) -> Iterator[Document]:
        """Yields every document, empty ones too."""
        if self._records is not None:
            yield from self._record_documents(self._records)
        elif not self._paths:
            yield from (Document(text, where) for where, text in documentation.documents())
        for path in self._paths:
            yield from self._row_documents(path) if lines.is_json_lines(path) else self._plain_documents(path)

    def _plain_documents(self, path: Path) -> Iterator[Document]:
        good = self._bad_rows.sift(map(_with_text, lines.read_lines(path, MAX_LINE_BYTES)))
        found = False
        for has_text, run in itertools.groupby(good, key=lambda pair: bool(pair[1])):
            if has_text:
                found = True
                yield _plain_document(run)
        if not found:
            yield Document([], f"{path}:1")

    def _row_documents(self, path: Path) -> Iterator[Document]:
        rows = (line for line in lines.read_lines(path, MAX_DOCUMENT_BYTES) if not line.is_blank)
        return self._bad_rows.sift(map(partial(_row_document, text_field=self._text_field), rows))

    def _record_documents(self, records: "TextRecords") -> Iterator[Document]:
        return self._bad_rows.sift(map(partial(_record_document, source=self._source), itertools.count(), records))


def split_name(source: str, key: str) -> tuple[str, str]:
    """Returns the dataset's name and the split of `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`; `key` named it."""
    match = _TFDS_SOURCE.fullmatch(source)
    if match is None:
        raise UserError(
            lines.named(key),
            got=repr(source),
            expected="tfds:NAME[/CONFIG][:VERSION][:SPLIT]",
            fix="name the dataset, for example tfds:lm1b:train",
        )
    return match["name"], match["split"] or "train"


def _with_text(line: Line) -> tuple[Line, str]:
    return line, lines.decode(line).strip()


def _plain_document(run: Iterable[tuple[Line, str]]) -> Document:
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


def _row_document(line: Line, text_field: str) -> Document:
    """Returns the document in one row of JSON lines."""
    row = lines.decode_object(line)
    if text_field not in row:
        got = f"a row without field {text_field!r}; its fields: {', '.join(map(repr, row)) or 'none'}"
        fix = "set --config.data.text_field to the field that holds the text"
        raise RowError(line.where, got, "the field that config.data.text_field names", fix)
    if not isinstance(row[text_field], str):
        got = f"{type(row[text_field]).__name__} in field {text_field!r}"
        raise RowError(line.where, got, "a string")
    return _text_document(row[text_field], line.where)


def _record_document(index: int, value: str | bytes, source: str) -> Document:
    where = f"{source} record {index}"
    text = value if isinstance(value, str) else lines.decode(Line(where, 0, value, MAX_DOCUMENT_BYTES))
    return _text_document(text, where)


def _text_document(text: str, where: str) -> Document:
    """Returns the document whose lines are those of `text`."""
    lines.check_text(text, where)
    stripped = [line.strip() for line in text.split("\n")]
    if max(len(line.encode("utf-8")) for line in stripped) > MAX_LINE_BYTES:
        raise lines.too_long(where, MAX_LINE_BYTES)
    return Document([line for line in stripped if line], where)


def _find_files(source: str) -> list[Path]:
    paths = lines.find_files(source, "data.source", also="documentation or tfds:NAME[:SPLIT]")
    for path in paths:
        if path.name.endswith((".json", ".json.gz")):
            raise UserError(
                f"config key data.source={path}",
                got="a .json file",
                expected="plain text, or JSON lines in a file named .jsonl (or .jsonl.gz)",
                fix="rename it if it has one JSON object a line, otherwise convert it or copy its text to a file",
            )
    return paths


def _open_records(source: str, text_field: str) -> "TextRecords":
    name, split = split_name(source, "data.source")
    # Imported here, so that only those who read TFDS wait for it.
    from bertjax.data.readers.records import TextRecords

    return TextRecords(name, split, text_field)
