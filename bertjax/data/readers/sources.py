"""Streams raw text documents in bounded memory, from plain files, JSON lines, TFDS or the documentation."""

import copy
import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertjax.data.readers import documentation, lines, tables
from bertjax.data.readers.kinds import TABLES, kind_of, split_name, suffix_of
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, RowError
from bertjax.errors import UserError

if TYPE_CHECKING:
    from bertjax.data.readers.records import TextRecords

DATES = "dates"  # the source of generated dates, which are pairs for translation
# The limit on memory. A long book is a thirtieth of it.
MAX_DOCUMENT_BYTES = 2**26
# A share is a group of files of about this many bytes together, one longer file, or this many records.
_SHARE_BYTES = 2**28
_SHARE_RECORDS = 2**16


class Document(NamedTuple):
    """Text that belongs together, in reading order."""

    lines: list[str]  # sentences or paragraphs; stripped and not empty
    where: str  # the position of the first line for messages, such as "file:line"


class TextSource:
    """A stream of documents; the same text gives the same stream on every machine.

    `source` is one of:
    - `documentation`: the embedded default, see `bertjax.data.readers.documentation`;
    - paths or globs (`**` too), separated by commas; the files of a glob are sorted; or `hf:FOLDER`. A table (see
      `tables.read_rows`) has one document per row, in column `text_field`, with lines separated by "\\n". Any other
      file that `kinds.kind_of` accepts is UTF-8 text, `.gz` or not, with one sentence or paragraph per line; a document
      ends at a blank line or at the end of the file;
    - `tfds:NAME[/CONFIG][:VERSION][:SPLIT]` (default split: `train`): one document per record, in field `text_field`.

    Only "\\n" ends a line. Lines are stripped. A line has at most `MAX_LINE_BYTES`, a document at most
    `MAX_DOCUMENT_BYTES`.

    Args:
      source: the source, in one of these forms.
      text_field: the field of a row or record that holds the text. Ignored for plain text.
      on_bad_row: "stop" raises an error at the first bad line, row or record; "skip" skips and counts it. Damaged
        files, binary files and plain-text documents over the limit always raise an error.
      key: the config key of the source, for messages.
    Raises:
      UserError: if the source is empty or unknown, a path is not a regular file, a glob matches no file, a file is
        named twice, or a TFDS dataset cannot be read.
    """

    def __init__(self, source: str, text_field: str, on_bad_row: str, key: str = "data.source") -> None:
        self._source = source
        self._key = key
        self._text_field = text_field
        self._bad_rows = BadRows(on_bad_row)
        self._paths: list[Path] = []
        self._records: TextRecords | None = None
        if source.startswith("tfds:"):
            self._records = _open_records(source, text_field, key)
        elif source != "documentation":
            also = "documentation, tfds:NAME[:SPLIT]"
            self._paths = tables.find_files(source, key, also)
            for path in self._paths:
                kind_of(path, key, TABLES, "lines of text")
        self._is_share = False
        self.counts: dict[str, int] = {}

    def documents(self) -> Iterator[Document]:
        """Yields the documents that have text, in order.

        `counts` is complete when the stream ends. Its keys are `documents`, `lines`, `bad_rows` (skipped) and
        `empty_documents` (rows, records or files without text, which are not yielded).

        Raises:
          UserError: if text is bad, with file and line; or if the whole source has no text.
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
                f"config key {self._key}={self._source}",
                got=f"no text{self._bad_rows.skipped()}",
                expected="at least one line of text",
                fix="check the source and config.data.text_field",
            )

    def shares(self) -> list["TextSource"]:
        """Returns the parts of the source for workers, in order: some files or records each. A part may be empty."""
        if self._records is not None:
            name, split = split_name(self._source, self._key)
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
            groups[-1].append(path.absolute())  # workers start in other folders
            size += path.stat().st_size
        return [self._share(self._source, group) for group in groups]

    def _share(self, source: str, paths: list[Path]) -> "TextSource":
        share = copy.copy(self)
        share._source = source
        share._paths = paths
        share._is_share = True
        share._records = self._records and _open_records(source, self._text_field, self._key)
        return share

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": None}  # __setstate__ opens them again

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._source.startswith("tfds:"):
            self._records = _open_records(self._source, self._text_field, self._key)

    def fingerprint(self) -> dict[str, Any]:
        """Returns a JSON-serializable description of the text, independent of folder, time and machine.

        It contains, for files, base name, size and SHA-256 as stored; for the documentation, the Python version and
        SHA-256; for TFDS, the name with version, the split, and the number of records.
        """
        if self._records is not None:
            return {**self._records.fingerprint(), "text_field": self._text_field}
        if not self._paths:
            return documentation.fingerprint()
        fields = {"text_field": self._text_field} if any(map(_has_rows, self._paths)) else {}
        return {"kind": "files", "files": [lines.fingerprint(path) for path in self._paths], **fields}

    def _all_documents(self) -> Iterator[Document]:
        """Yields every document, including empty ones."""
        if self._records is not None:
            yield from self._record_documents(self._records)
        elif not self._paths:
            yield from (Document(text, where) for where, text in documentation.documents())
        for path in self._paths:
            yield from self._row_documents(path) if _has_rows(path) else self._plain_documents(path)

    def _plain_documents(self, path: Path) -> Iterator[Document]:
        good = self._bad_rows.sift(map(_with_text, lines.read_lines(path, MAX_LINE_BYTES)))
        is_empty = True
        for has_text, run in itertools.groupby(good, key=lambda pair: bool(pair[1])):
            if has_text:
                is_empty = False
                yield _plain_document(run)
        if is_empty:
            yield Document([], f"{path}:1")

    def _row_documents(self, path: Path) -> Iterator[Document]:
        rows = tables.read_file(path, True, self._bad_rows, limit=MAX_DOCUMENT_BYTES)
        return self._bad_rows.sift(map(partial(_row_document, text_field=self._text_field), rows))

    def _record_documents(self, records: "TextRecords") -> Iterator[Document]:
        return self._bad_rows.sift(map(partial(_record_document, source=self._source), itertools.count(), records))


def _with_text(line: Line) -> tuple[Line, str]:
    return line, lines.decode(line).strip()


def _plain_document(run: Iterable[tuple[Line, str]]) -> Document:
    """Returns the document of consecutive lines with text."""
    texts: list[str] = []
    where = ""
    size = 0
    for line, text in run:
        where = where or line.where
        texts.append(text)
        size += len(line.content)
        if size > MAX_DOCUMENT_BYTES:
            got = f"a document of more than {MAX_DOCUMENT_BYTES:,} bytes without a blank line"
            fix = "separate the documents by blank lines, or divide this one"
            raise UserError(where, got=got, expected="a blank line between documents", fix=fix)
    return Document(texts, where)


def _row_document(row: tables.Row, text_field: str) -> Document:
    """Returns the document of a row of a table."""
    text = tables.value_of(row, text_field, "data.text_field")
    if not isinstance(text, str):
        raise RowError(row.where, f"{type(text).__name__} in column {text_field!r}", "a text")
    return _text_document(text, row.where)


def _record_document(index: int, value: str | bytes, source: str) -> Document:
    where = f"{source} record {index}"
    text = value if isinstance(value, str) else lines.decode(Line(where, 0, value, MAX_DOCUMENT_BYTES))
    return _text_document(text, where)


def _text_document(text: str, where: str) -> Document:
    """Returns the document with the lines of `text`."""
    lines.check_text(text, where)
    stripped = [line.strip() for line in text.split("\n")]
    if max(len(line.encode("utf-8")) for line in stripped) > MAX_LINE_BYTES:
        raise lines.too_long(where, MAX_LINE_BYTES)
    return Document([line for line in stripped if line], where)


def _has_rows(path: Path) -> bool:
    return suffix_of(path) in TABLES


def _open_records(source: str, text_field: str, key: str) -> "TextRecords":
    name, split = split_name(source, key)
    # Imported here, because the import is slow and only TFDS sources need it.
    from bertjax.data.readers.records import TextRecords

    return TextRecords(name, split, text_field)
