"""Reads rows of text files whose fields are divided by a separator, such as TSV and CSV."""

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bertjax.data.readers import lines
from bertjax.data.readers.kinds import suffix_of
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, RowError
from bertjax.errors import UserError

_LONG_NAME = 40  # characters
_SEPARATORS = {".tsv": "\t", ".csv": ","}
_Fields = tuple[str, list[str]]  # "file:line" and the fields; a plain tuple is fast, and there is one per row

# After exceeding its own limit `csv` would continue inside the field; longer rows are rejected before that.
csv.field_size_limit(MAX_LINE_BYTES)


def read_rows(path: Path, header: bool, separator: str, bad_rows: BadRows) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yields the values of each row by column, and the row's position for messages; see `tables.read_rows`."""
    # Shells pass '\t' as a backslash and a t.
    separator = separator.replace("\\t", "\t") or _SEPARATORS[suffix_of(path)]
    is_quoted = separator == "," or (suffix_of(path) == ".csv" and len(separator.strip(" ")) == 1)
    rows: Iterator[_Fields] = _CsvFields(path, separator) if is_quoted else _split_lines(path, separator)
    try:
        first = next(rows if header else bad_rows.sift(rows), None)
    except RowError as error:
        if not header:
            raise
        # This row is not skipped, because the next row would be read as the header.
        fix = "correct the first line, or set --config.data.header=False if it is a row"
        raise UserError(error.where, got=error.got, expected=error.expected, fix=fix) from None
    if first is None:
        return
    takes_rest = not is_quoted and separator != "\t"
    if header:
        columns = _names(first)
    else:
        columns = ["0", "1"] if takes_rest else [str(number) for number in range(len(first[1]))]
        rows = itertools.chain([first], rows)
    if takes_rest:
        rows = map(partial(_merged, len(columns), separator), rows)
    yield from bad_rows.sift(map(partial(_named, columns), rows))


def first_fields(path: Path) -> list[str]:
    """Returns the fields of the first non-empty line of a TSV or CSV file. Accepts malformed lines."""
    first = next(_lines_with_fields(path), None)
    text = first.content.decode("utf-8", "replace").removesuffix("\r") if first else ""
    if suffix_of(path) == ".tsv":
        return text.split("\t")
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def is_long(name: str) -> bool:
    """Returns whether the name of a column is so long that `listed` shortens it."""
    return len(name) > _LONG_NAME


def listed(columns: Iterable[str]) -> str:
    """Returns the names of columns for messages. Long ones are shortened."""
    names = (f"{name[:_LONG_NAME]}..." if is_long(name) else name for name in columns)
    return ", ".join(map(repr, names)) or "none"


def _split_lines(path: Path, separator: str) -> Iterator[_Fields]:
    return map(partial(_split, separator), _lines_with_fields(path))


def _lines_with_fields(path: Path) -> Iterator[Line]:
    return (line for line in lines.read_lines(path, MAX_LINE_BYTES) if line.content.strip(b"\r"))


def _split(separator: str, line: Line) -> _Fields:
    return line.where, lines.decode(line).split(separator)


def _merged(number: int, separator: str, row: _Fields) -> _Fields:
    """Returns the row with all fields from the last column on joined."""
    where, fields = row
    head = fields[: number - 1]
    rest = fields[number - 1 :]
    return (where, [*head, separator.join(rest)]) if rest else row


def _names(header: _Fields) -> list[str]:
    where, names = header
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        fix = "correct the header, or set --config.data.header=False if the first line is a row"
        raise UserError(where, got=f"a header with {listed(twice[:1])} twice", expected="unique column names", fix=fix)
    if len(names) == 1 and (separator := next((character for character in ";\t|," if character in names[0]), "")):
        raise UserError(
            where,
            got=f"a header with one column, {names[0]!r:.80}",
            expected="columns divided by the separator of the file, a comma in .csv and a tab in .tsv",
            fix=f"set --config.data.separator={separator!r} if it separates the columns, or replace it; "
            "set --config.data.header=False if the first line is a row",
        )
    return names


def _named(columns: Sequence[str], row: _Fields) -> tuple[Mapping[str, str], str]:
    where, fields = row
    number = len(fields)
    if number != len(columns):
        expected = f"{len(columns)}, the columns {listed(columns)}"
        fix = "correct the row, or config.data.header or config.data.separator"
        raise RowError(where, got="one field" if number == 1 else f"{number} fields", expected=expected, fix=fix)
    return dict(zip(columns, fields, strict=True)), where


class _CsvFields:
    """The rows of a CSV file. A bad row raises RowError, and the next row starts at the line after it.

    A row that is too long raises UserError, because its end is unknown.
    """

    def __init__(self, path: Path, separator: str) -> None:
        self._where = ""
        self._size = 0
        self._error: RowError | None = None  # of a line of the row
        texts = map(self._text, lines.read_lines(path, MAX_LINE_BYTES))
        self._rows = csv.reader(texts, delimiter=separator, strict=True)

    def __iter__(self) -> "_CsvFields":
        return self

    def __next__(self) -> _Fields:
        fields: list[str] = []
        while not fields:  # an empty line is a row without fields
            self._where = ""
            self._size = 0
            self._error = None
            try:
                fields = next(self._rows)
            except csv.Error as error:
                got = f"a row that is not valid CSV ({error})"
                raise RowError(self._where, got, "fields quoted as in RFC 4180, or unquoted") from None
            if self._error:
                raise self._error
        return self._where, fields

    def _text(self, line: Line) -> str:
        self._where = self._where or line.where  # a quoted field may continue on further lines
        self._size += len(line.content) + 1
        if self._size > MAX_LINE_BYTES:
            expected = "shorter rows, in which each quote is closed"
            fix = "close the quote that the row opens, or truncate its texts"
            raise UserError(self._where, got=f"a row of more than {MAX_LINE_BYTES:,} bytes", expected=expected, fix=fix)
        try:
            return lines.decode(line) + "\n"
        except RowError as error:  # raised when the row is read, whose end the line may not be
            self._error = self._error or error
            return line.content.decode("utf-8", "replace").replace("\0", " ").removesuffix("\r") + "\n"
