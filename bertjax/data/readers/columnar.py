"""Reads rows of Parquet and Arrow files, one batch in memory at a time.

An Arrow file may have the file format or the streaming format (IPC); Hugging Face `datasets` writes the latter. Class
numbers, also in lists, are read as class names if the `datasets` metadata of the file names the classes of the column.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertjax.data.readers import lines
from bertjax.data.readers.kinds import COLUMNAR, suffix_of
from bertjax.data.readers.lines import RowError
from bertjax.errors import UserError

DATASET = "hf:"  # prefix of a source that is a folder written by `save_to_disk`
_STATE_FILE = "state.json"
_BATCH_ROWS = 1024
_CONTINUES = b"\xff" * 4  # the first bytes of each message of a stream


def read_rows(path: Path) -> Iterator[tuple[Mapping[str, object], str]]:
    """Yields the values of each row of a file by column name, and the row's position for messages.

    A value that Python cannot represent, such as a time with nanoseconds, is None. So is class -1, the label of
    unlabeled rows. Raises RowError in place of a row with invalid UTF-8 or a class number without a name; the iterator
    then continues with the next row.

    Args:
      path: a file with one of the suffixes `kinds.COLUMNAR`.
    Raises:
      UserError: if the file cannot be read.
    """
    return map(partial(_checked, path, class_names(path)), itertools.count(1), _rows(path))


def _checked(path: Path, names: Mapping[str, Sequence[str]], number: int, row: Any) -> tuple[Mapping[str, object], str]:
    where = f"{path}: row {number}"
    if isinstance(row, Exception):
        raise RowError(where, f"bytes that are not UTF-8 ({row})", "text")
    for name, value in row.items():
        if isinstance(value, str):
            lines.check_text(value, where)
        elif name in names:
            row[name] = _named(value, names[name], name, where)
    return row, where


def _named(value: Any, names: Sequence[str], column: str, where: str) -> Any:
    """Returns a value with names in place of the numbers of classes."""
    if isinstance(value, list):
        return [_named(element, names, column, where) for element in value]
    return _class_name(value, names, column, where) if type(value) is int else value


def _class_name(number: int, names: Sequence[str], column: str, where: str) -> str | None:
    """Returns the name of a class, or None for -1."""
    if not -1 <= number < len(names):
        got = f"class {number} in column {column!r}"
        expected = f"0 to {len(names) - 1}, the classes that have names"
        raise RowError(where, got, expected)
    return None if number == -1 else names[number]


def class_names(path: Path) -> dict[str, list[str]]:
    """Returns the class names by column, in the order of the class numbers; empty if the file lists none.

    Raises:
      UserError: if the file cannot be read.
    """
    metadata = _schema(path).metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"].items()
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return {}  # metadata that `datasets` did not write
    kinds = {column: _of_items(kind) for column, kind in features}
    labels = {column: kind.get("names") for column, kind in kinds.items() if kind.get("_type") == "ClassLabel"}
    return {column: names for column, names in labels.items() if isinstance(names, list) and _are_texts(names)}


def _of_items(kind: Any) -> Mapping[str, Any]:
    """Returns the feature of a column, or of the items of a column of lists."""
    kind = kind.get("feature", kind) if isinstance(kind, dict) else {}
    return kind if isinstance(kind, dict) else {}


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def is_columnar(path: Path) -> bool:
    """Returns whether a file is Parquet or Arrow, by its suffix. Raises UserError if it is also gzipped."""
    is_columnar = suffix_of(path) in COLUMNAR
    if is_columnar and path.suffix == ".gz":
        got = "a gzipped Parquet or Arrow file"
        expected = "an uncompressed one; these formats compress their content"
        raise UserError(str(path), got=got, expected=expected, fix="unpack it with gunzip")
    return is_columnar


def find_files(source: str, key: str) -> list[Path]:
    """Returns the data files of a dataset folder, in the order of its state.json.

    Args:
      source: `hf:FOLDER`.
      key: the config key of the source, for messages.
    Raises:
      UserError: if the folder is not a dataset, for example because it holds several splits.
    """
    folder = Path(source.removeprefix(DATASET))
    try:
        state = json.loads((folder / _STATE_FILE).read_text("utf-8"))
        paths = [folder / file["filename"] for file in state["_data_files"]]
        has_indices = bool(state.get("_indices_data_files"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        splits = sorted(path.parent.name for path in folder.glob(f"*/{_STATE_FILE}"))
        raise UserError(
            f"config key {key}={source}",
            got=f"a folder with the splits {', '.join(splits)}" if splits else f"no readable {_STATE_FILE} ({error})",
            expected="a dataset folder written by save_to_disk of Hugging Face's datasets",
            fix="name the folder of one split" if splits else "correct the path",
        ) from error
    if has_indices:
        got = "a dataset that selects rows by indices"
        fix = "call flatten_indices() and save the dataset again"
        raise UserError(f"config key {key}={source}", got=got, expected="a dataset without indices", fix=fix)
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        got = f"no {missing[0].name}" if missing else "a dataset without files"
        fix = "copy the folder again"
        raise UserError(f"config key {key}={source}", got=got, expected="the files in its state.json", fix=fix)
    return paths


def _schema(path: Path) -> Any:
    from pyarrow import OSFile, parquet

    with _reading(path):
        if suffix_of(path) == ".parquet":
            schema = parquet.read_schema(path)
        else:
            with OSFile(str(path)) as file:
                schema = _open(file).schema
        twice = [name for number, name in enumerate(schema.names) if name in schema.names[:number]]
    if twice:
        got = f"two columns {twice[0]!r}"
        fix = "rename one of them"
        raise UserError(str(path), got=got, expected="unique column names", fix=fix)
    return schema


def _rows(path: Path) -> Iterator[Any]:
    """Yields the values of each row, or the error of a row with text that is not UTF-8."""
    with _reading(path):
        for batch in _batches(path):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                part = batch.slice(start, _BATCH_ROWS)
                try:
                    part.validate(full=True)  # damage that is not detected here can crash the process
                    values = part.to_pylist()  # much faster than row by row
                except (ValueError, OverflowError):
                    values = [_row(part.slice(number, 1)) for number in range(part.num_rows)]
                yield from values


def _row(batch: Any) -> Any:
    """Returns the values of a batch of one row, or the error if text is not UTF-8. Raises ArrowInvalid for damage."""
    try:
        batch.validate(full=True)
    except ValueError as error:
        if "UTF8" not in str(error):
            raise
        return error
    return {name: _value(column[0]) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):  # for example a time that is finer or later than Python's
        return None


def _batches(path: Path) -> Iterator[Any]:
    from pyarrow import OSFile, RecordBatchFileReader, parquet

    if suffix_of(path) == ".parquet":
        with parquet.ParquetFile(path) as table:
            yield from table.iter_batches(_BATCH_ROWS)
        return
    with OSFile(str(path)) as file:
        reader = _open(file)
        if isinstance(reader, RecordBatchFileReader):
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from reader
            _check_end(file)


def _open(file: Any) -> Any:
    import pyarrow

    try:
        return pyarrow.ipc.open_file(file)
    except pyarrow.ArrowInvalid:
        file.seek(0)
        return pyarrow.ipc.open_stream(file)


def _check_end(file: Any) -> None:
    """Raises OSError if a stream lacks its end mark because its writer was stopped between batches.

    Streams of Arrow versions before 0.15 have no marks and are not checked.
    """
    file.seek(0)
    begins_with_mark = file.read(4) == _CONTINUES
    file.seek(file.size() - 8)
    if begins_with_mark and file.read() != _CONTINUES + bytes(4):
        raise OSError("its end mark is missing")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Converts errors of pyarrow to UserError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise lines.unreadable(path, OSError(error.errno, os.strerror(error.errno))) from error
        kind = "Parquet" if suffix_of(path) == ".parquet" else "Arrow"
        got = f"a damaged or incomplete {kind} file ({error})"
        fix = "make or copy the file again"
        raise UserError(str(path), got=got, expected="a complete file", fix=fix) from error
