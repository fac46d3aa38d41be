"""Prediction records as rows of CSV and TSV files, and the columns of the input that records copy (`--columns`)."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.contract import BadInput, Example, PredictionTask, Record
from bertjax.data.readers import tables
from bertjax.data.readers.kinds import suffix_of
from bertjax.data.readers.lines import RowError, check_text
from bertjax.errors import UserError
from bertjax.modes import streams

FORMS = ("csv", "tsv")
_ALWAYS = ("truncated", "split", "error")  # names in the records of any task; see `Example.limited` and `BadInput`
_SAME_FOR_ALL_ROWS = (".csv", ".tsv", ".parquet", ".arrow")  # files whose rows have the same columns
_ESCAPED = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


class Writer:
    """Makes rows of a CSV or TSV file from records.

    Texts are written unchanged, null as an empty field, and other values as JSON. CSV quotes fields as in RFC 4180.
    In TSV, texts have a backslash escape for each tab, line break and backslash.

    Attributes:
      header: the first line.
    """

    def __init__(self, form: str, task: PredictionTask, copied: Sequence[str]) -> None:
        """Initializes with "csv" or "tsv", the task of the records, and the columns that they copy from the input."""
        self._form = form
        self._columns = (*copied, *task.record_fields(), *_ALWAYS)
        self.header = self._line(self._columns)

    def __call__(self, record: Record) -> str:
        """Returns the row of a record. Raises UserError if it has a name without a column."""
        values: dict[str, Any] = {}
        for name, value in record.items():
            is_flat = name in self._columns or not isinstance(value, Mapping)
            values |= {name: value} if is_flat else {f"{name}.{key}": part for key, part in value.items()}
        if unknown := values.keys() - {*self._columns}:
            got = f"a record with {', '.join(sorted(unknown))}"
            expected = f"the columns {', '.join(self._columns)}"
            raise UserError(f"--format={self._form}", got=got, expected=expected, fix="set --format=jsonl")
        return self._line([values.get(column) for column in self._columns])

    def _line(self, values: Sequence[Any]) -> str:
        if self._form == "tsv":
            texts = (value.translate(_ESCAPED) if isinstance(value, str) else _text(value) for value in values)
            return "\t".join(texts) + "\n"
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(map(_text, values))
        return line.getvalue()


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return streams.json_text(value)


def parse_columns(text: str, source: str) -> tuple[str, ...]:
    """Returns the columns in `--columns`. Raises UserError for an empty name, a name twice, and standard input."""
    columns = tuple(map(str.strip, text.split(","))) if text else ()
    if not all(columns) or len({*columns}) < len(columns):
        fix = "correct it, for example --columns=id,date"
        raise UserError("--columns", got=repr(text), expected="names of different columns", fix=fix)
    if columns and source == "-":
        raise _without_columns(columns, "standard input")
    return columns


def check_columns(columns: Sequence[str], task: PredictionTask, *, is_record: bool) -> None:
    """Raises UserError if the output does not write whole records, or if these have a name of a column already."""
    if not is_record:
        got = "an output without columns"
        expected = "JSON lines, CSV or TSV"
        raise UserError("--columns", got=got, expected=expected, fix="set --format to jsonl, csv or tsv, or omit it")
    fields = (*task.record_fields(), *_ALWAYS)
    taken = {*fields, *(field.partition(".")[0] for field in fields)}
    if both := [column for column in columns if column in taken]:
        got = f"{both[0]!r}, a name that records have already"
        expected = f"other names than {', '.join(fields)}"
        raise UserError("--columns", got=got, expected=expected, fix="omit this column, or rename it in the table")


def with_columns(
    examples: Iterable[Example], columns: Sequence[str], source: str, on_bad_row: str
) -> Iterator[Example]:
    """Yields the examples with only these columns of their rows.

    In JSON, a row that lacks a column is bad. In other tables, it is an error of the whole file.

    Args:
      examples: the examples, with all columns.
      columns: the columns; "a.b" for key "b" of the values in column "a".
      source: the input, for messages.
      on_bad_row: what to do with bad rows; see `BadRows`.
    Raises:
      UserError: for a bad row that is not skipped, an input without columns, or a table without one of them.
    """
    for number, example in enumerate(examples, start=1):
        is_bad = isinstance(example.source, BadInput)
        if columns and not example.columns and not is_bad:
            raise _without_columns(columns, f"{source}, which is no table")
        row = tables.Row(example.columns, f"row {number} of {source}")
        values = {}
        try:
            values = {column: _value_of(row, column) for column in columns if row.values}
        except RowError as error:
            lacks = any(not {column, column.partition(".")[0]} & row.values.keys() for column in columns)
            if lacks and suffix_of(Path(source)) in _SAME_FOR_ALL_ROWS:
                raise UserError(error.where, got=error.got, expected=error.expected, fix="correct --columns") from None
            if on_bad_row == "stop":
                raise
            example = example if is_bad else Example([], BadInput(error.reason))
        yield example._replace(columns=values)


def _value_of(row: tables.Row, column: str) -> Any:
    """Returns a value in a form that JSON has, such as a text for a date. Raises RowError if there is none."""
    try:
        value = tables.value_of(row, column, "")
    except RowError as error:
        raise RowError(row.where, error.got, "the columns in --columns", "correct the row or --columns") from None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_text)
    except (ValueError, TypeError) as error:
        raise RowError(row.where, f"{error} in column {column!r}", "a value that JSON has") from None
    check_text(text, row.where)
    return json.loads(text)


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _without_columns(columns: Sequence[str], got: str) -> UserError:
    expected = "a table, whose rows have columns"
    fix = "omit it, or name a table in --input; lines have no columns"
    return UserError(f"--columns={','.join(columns)}", got=got, expected=expected, fix=fix)
