"""Reads tables as rows of named values: TSV, CSV, JSON lines, Parquet, Arrow, TMX and TFDS records."""

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertjax.config import always
from bertjax.data import splits
from bertjax.data.readers import columnar, delimited, json_rows, lines, tmx
from bertjax.data.readers.kinds import COLUMNAR, JSON, TABLES, TMX, kind_of, split_name, suffix_of
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, OnBadRow, RowError
from bertjax.data.splits import SplitConfig
from bertjax.errors import UserError
from bertjax.words import composed

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_ROW_BYTES = 2**26  # the longest documents


@dataclasses.dataclass(frozen=True)
class TableConfig(SplitConfig):
    """Tables of training and validation rows; see `read_rows` for the sources.

    Attributes:
      header: whether the first row of a TSV or CSV table has the names of the columns; if not, they are "0", "1", ...
      separator: the separator of the fields of a line; "" to infer it from the file name.
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
    """

    header: bool = always(True)
    separator: str = always("")
    on_bad_row: OnBadRow = always("stop")

    def read(self, source: str, key: str, make: Callable[["Row"], T]) -> Iterator[T]:
        """Applies `make` to the rows of a source, and yields the results in order.

        Args:
          source: the source.
          key: the config key of the source, for messages.
          make: raises RowError for a bad row.
        Raises:
          UserError: if the source cannot be read, has a bad row, or has no rows.
        """
        bad_rows = BadRows(self.on_bad_row)
        count = 0
        rows = read_rows(source, key, self.header, self.separator, bad_rows)
        for row in bad_rows.sift(map(make, rows)):
            count += 1
            yield row
        if not count:
            got = f"no rows{bad_rows.skipped()}"
            fix = "check the source; config.data.on_bad_row=stop reports the first bad row"
            raise UserError(f"config key {key}={source}", got=got, expected="at least one row", fix=fix)
        _log.info("read %s: %d rows%s", source, count, bad_rows.skipped())

    def splits(self, make: Callable[["Row"], T]) -> Iterator[tuple[str, T]]:
        """Applies `make` to the training and validation rows, and yields each result with its split; see `read`.

        The validation split depends only on the numbers of rows, so that runs with different seeds are comparable.
        """
        return splits.read_splits(self, lambda source, key: self.read(source, key, make), seed=0)


class Row(NamedTuple):
    """The values of a row by the names of their columns."""

    values: Mapping[str, object]  # str in TSV and CSV
    where: str  # its position for messages, such as "file:line"
    table: str = ""  # its file or TFDS source; "" for a Python object


def read_rows(source: str, key: str, header: bool, separator: str, bad_rows: BadRows) -> Iterator[Row]:
    """Yields the rows of a table, in order.

    JSON lines (`.jsonl`), arrays of JSON objects or JSON lines (`.json`), Parquet (`.parquet`), Arrow (`.arrow`) and
    TFDS records have named values. A translation unit of a TMX file (`.tmx`) is a row whose columns are its languages;
    see `tmx.Languages`. In other files a row is a line, with fields separated by:
    - a tab (`.tsv`): no quoting; a `"` is a plain character, as in the GLUE files;
    - a comma, or in `.csv` files any one character but a space: quoted as in RFC 4180, so that a field can contain
      separators and line breaks;
    - any other string: no quoting; the last column is the rest of the line. Without a header there are two columns:
      the text before the first separator, and the rest.
    Text files are UTF-8, with or without gzip compression (`.gz`). Empty lines are skipped.

    Args:
      source: comma-separated paths and globs (see `lines.find_files`); `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`; or
        `hf:FOLDER`, a dataset written by `save_to_disk` of Hugging Face `datasets`.
      key: the config key of the source, for messages.
      header: whether the first row of each file has the names of the columns. If not, they are "0", "1", ...
      separator: the separator of all text files; "" to infer the format from the file names.
      bad_rows: how to treat bad rows, such as one with another number of fields than the header or first row.
    Raises:
      UserError: if the source cannot be read, a row is bad, or a CSV row is too long, with file and line.
    """
    if source.startswith("tfds:"):
        yield from _records(source, key, bad_rows)
        return
    paths = find_files(source, key)
    for path in paths:
        _check_kind(path, key, separator)
    for path in paths:
        yield from read_file(path, header, bad_rows, separator)


def read_input(
    path: str, key: str, columns: Sequence[str], header: bool, separator: str, bad_rows: BadRows, *, tabs: bool = False
) -> Iterator[Row] | None:
    """Returns the rows of an input file for prediction, or None if it has lines of text instead of a table.

    Files with one of the suffixes `kinds.TABLES` are tables. Text files may be gzipped (`.gz`).

    Args:
      path: the file.
      key: the config key of the columns, for messages.
      columns: the columns to read; "" for a column that the config does not set.
      header: whether the first row of TSV and CSV files has the names of the columns.
      separator: the separator of CSV files; "" for a comma.
      bad_rows: how to treat bad rows.
      tabs: whether a line has texts with tabs between them. A `.tsv` file then has such lines, unless its first line
        has the names of the columns.
    Raises:
      UserError: if `read_rows` raises it, the table lacks one of the columns, or the file is of another kind.
    """
    file = Path(path)
    kind = kind_of(file, "--input", TABLES, "lines of text")
    is_table = bool(kind)
    if kind == ".tsv" and tabs:
        is_table = header and all(columns) and file.is_file() and set(columns) <= set(delimited.first_fields(file))
    if not is_table:
        return None
    rows = read_file(file, header, bad_rows, separator if kind == ".csv" else "")
    return rows if kind in (*JSON, TMX) and all(columns) else with_columns(rows, key, columns)


def read_file(
    path: Path, header: bool, bad_rows: BadRows, separator: str = "", limit: int = MAX_LINE_BYTES
) -> Iterator[Row]:
    """Yields the rows of a file with one of the suffixes `kinds.TABLES`; see `read_rows`.

    Args:
      path: the file.
      header, separator, bad_rows: see `read_rows`.
      limit: the maximum size of a JSON object or translation unit; see `json_rows.read_objects`, `tmx.read_units`.
    """
    row = partial(Row, table=str(path))
    if columnar.is_columnar(path):
        return bad_rows.sift(itertools.starmap(row, columnar.read_rows(path)))
    if suffix_of(path) in JSON:
        return bad_rows.sift(itertools.starmap(row, json_rows.read_objects(path, limit)))
    if suffix_of(path) == TMX:
        return bad_rows.sift(itertools.starmap(row, tmx.read_units(path, limit)))
    return itertools.starmap(row, delimited.read_rows(path, header, separator, bad_rows))


def with_columns(rows: Iterator[Row], key: str, columns: Sequence[str]) -> Iterator[Row]:
    """Yields the rows. Raises UserError if one lacks a column, because the whole file lacks it."""
    for row in rows:
        for column in columns:
            if not {column, column.partition(".")[0]} & row.values.keys():
                got = _missing(row.table, column, row.values)
                fix = f"set {_flags(key)} to the columns of the text; rename a file of plain lines to .txt"
                raise UserError(row.table, got=got, expected=f"the column of config.{key}", fix=fix)
        yield row


def value_of(row: Row, column: str, key: str) -> Any:
    """Returns the value of the column that config key `key` names.

    Column "a.b" is key "b" of the object in column "a", unless the row has a column with that whole name.

    Raises:
      RowError: if the row lacks the column.
      UserError: if no row of its table has the column.
    """
    value: Any = row.values
    for name in [column] if column in row.values else column.split("."):
        if not isinstance(value, Mapping):
            raise RowError(row.where, f"{type(value).__name__} for column {column!r}", f"an object with key {name!r}")
        if name not in value:
            raise _no_column(row, column, key) or RowError(
                row.where,
                f"a row without column {name!r}; its columns: {delimited.listed(value)}",
                f"the column of config.{key}",
                f"correct the row or {_flags(key)}",
            )
        value = value[name]
    return value


def with_nested(row: Row, columns: Iterable[str]) -> Row:
    """Returns the row with the values of nested columns, such as "a.b", under their whole names, where it has them."""
    values = dict(row.values)
    for column in columns:
        with contextlib.suppress(RowError):
            values[column] = value_of(row._replace(table=""), column, "")
    return row._replace(values=values)


def text_of(row: Row, column: str, key: str) -> str:
    """Returns the text of the column that config key `key` names. Raises RowError unless it has text."""
    value = value_of(row, column, key)
    if not isinstance(value, str):
        raise RowError(row.where, f"{type(value).__name__} in column {column!r}", "text")
    if not value.strip():
        raise RowError(row.where, f"an empty text in column {column!r}", "text", "add the text or delete the row")
    return value


def label_of(row: Row, column: str, key: str) -> str:
    """Returns the label in the column that config key `key` names. Raises RowError if it is empty."""
    value = value_of(row, column, key)
    if value is None or not str(value).strip():
        raise RowError(row.where, f"an empty label in column {column!r}", "a class")
    return composed(str(value).strip())


def _no_column(row: Row, column: str, key: str) -> UserError | None:
    """Returns the error for a column that no row of a table has; None if rows have it, or for a Python object."""
    kind = suffix_of(Path(row.table))
    columns: Collection[str] = row.values.keys()
    if kind in (*JSON, TMX):  # whose rows may have different columns
        columns = _columns(row.table, Path(row.table).stat().st_mtime_ns, column)
    if not row.table or column in columns:
        return None
    fix = f"correct {_flags(key)}"
    if _seems_headless(row.table, columns):
        fix += ", or write a first line with the names, or set --config.data.header=False if --keys lists this key"
    got = _missing(row.table, column, columns)
    return UserError(row.table, got=got, expected=f"the column of config.{key}", fix=fix)


def _seems_headless(table: str, columns: Collection[str]) -> bool:
    """Returns whether the first line of a text file is probably a row, because a name of a column is long."""
    return suffix_of(Path(table)) not in (*JSON, *COLUMNAR, TMX) and any(map(delimited.is_long, columns))


def _missing(table: str, column: str, columns: Collection[str]) -> str:
    what = "its first line, which seems to be no header" if _seems_headless(table, columns) else "its columns"
    return f"no column {column!r}; {what}: {delimited.listed(columns)}"


@functools.lru_cache
def _columns(path: str, version: int, column: str) -> Collection[str]:
    """Returns the columns of all rows of a file, or of those up to the first row that has `column`.

    A file of one row, such as an article, is treated as if it had the column: other files may have it.

    Args:
      path: the file.
      version: the time of its last change.
      column: the column, which may be that of a nested value.
    """
    columns: dict[str, None] = {}
    num_rows = 0
    for row in read_file(Path(path), True, BadRows("skip"), limit=_MAX_ROW_BYTES):
        num_rows += 1
        columns |= dict.fromkeys(row.values)
        with contextlib.suppress(RowError):
            value_of(row._replace(table=""), column, "")
            return {*columns, column}
    return columns if num_rows > 1 else {*columns, column}


def _flags(key: str) -> str:
    """Returns the flags of a config key, or of several as in "data.{source_column,target_column}"."""
    prefix, _, names = key.partition("{")
    return " or ".join(f"--config.{prefix}{name}" for name in names.rstrip("}").split(","))


def find_files(source: str, key: str, also: str = "tfds:NAME[:SPLIT]") -> list[Path]:
    """Returns the files of a source other than `tfds:`. Raises UserError if one does not exist.

    Args:
      source: the source; see `read_rows`.
      key: the config key of the source, for messages.
      also: other values that the key accepts, for messages.
    """
    if source.startswith(columnar.DATASET):
        return columnar.find_files(source, key)
    return lines.find_files(source, key, also=f"{also} or hf:FOLDER")


def class_names(source: str, key: str, column: str) -> tuple[str, ...]:
    """Returns the class names of a column, in the order of its source; empty if the source does not name them.

    Raises:
      UserError: if the source cannot be read, or only some of its Parquet or Arrow files name the classes.
    """
    if not source.startswith("tfds:"):
        paths = [path for path in find_files(source, key) if columnar.is_columnar(path)]
        names = {path: tuple(columnar.class_names(path).get(column, ())) for path in paths}
        with_names = [path for path in paths if names[path]]
        if with_names and (unnamed := next((path for path in paths if not names[path]), None)):
            got = f"names for the classes of {column!r} in {with_names[0]}, but none in {unnamed}"
            fix = "write the files with the same metadata"
            raise UserError(f"config key {key}={source}", got=got, expected="names in all files or in none", fix=fix)
        return names[with_names[0]] if with_names else ()
    from bertjax.data.readers.records import RowRecords

    return RowRecords(*split_name(source, key), key).class_names(column)


def fingerprint(source: str, key: str) -> list[Any]:
    """Returns a JSON-serializable description of the content of a source, independent of paths and file times."""
    if not source.startswith("tfds:"):
        return [lines.fingerprint(path) for path in find_files(source, key)]
    from bertjax.data.readers.records import RowRecords

    return [RowRecords(*split_name(source, key), key).fingerprint()]


def key_of(config: SplitConfig) -> dict[str, Any]:
    """Returns a JSON-serializable description of the rows of a config, independent of paths and file times."""
    names = {key: name for key in ("source", "valid_source") if (name := getattr(config, key))}
    return {**dataclasses.asdict(config), **{key: fingerprint(name, f"data.{key}") for key, name in names.items()}}


def _check_kind(path: Path, key: str, separator: str) -> None:
    """Raises UserError if the name of a file does not determine how it is read, and there is no separator."""
    if not kind_of(path, key, TABLES, "lines of fields") and not separator:
        raise UserError(
            f"config key {key}={path}",
            got="a file whose name does not determine the separator of its fields",
            expected="a name that ends in .tsv, .csv, .jsonl, .json or .tmx (with or without .gz), in .parquet or "
            ".arrow, or a separator",
            fix="set --config.data.separator to the separator of the fields, or rename the file",
        )


def _records(source: str, key: str, bad_rows: BadRows) -> Iterator[Row]:
    name, split = split_name(source, key)
    # Imported here because the import is slow.
    from bertjax.data.readers.records import RowRecords

    records = RowRecords(name, split, key)
    return bad_rows.sift(map(partial(_record, source=source), itertools.count(), records))


def _record(index: int, values: Mapping[str, object], source: str) -> Row:
    where = f"{source} record {index}"
    return Row({name: _decoded(value, where) for name, value in values.items()}, where, source)


def _decoded(value: object, where: str) -> object:
    if isinstance(value, list):
        return [_decoded(element, where) for element in value]
    return lines.decode(Line(where, 0, value, MAX_LINE_BYTES)) if isinstance(value, bytes) else value
