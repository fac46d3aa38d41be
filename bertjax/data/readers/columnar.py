"""Rows of Parquet and Arrow files, a batch of them in memory at a time.

An Arrow file may have either of Arrow's two formats; datasets of Hugging Face write the streaming one. Numbers of
classes that a file has names for, in the metadata of these datasets, are read as the names.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.data.readers import lines
from bertjax.data.readers.lines import RowError
from bertjax.errors import UserError

SUFFIXES = (".parquet", ".arrow")
DATASET = "hf:"  # what a source begins with that is the folder of a dataset, as `save_to_disk` writes it
_STATE_FILE = "state.json"
_BATCH_ROWS = 1024


class Rows:
    """The rows of a file: yields the values of each by the names of their columns, and where it stands.

    Raises RowError in the place of a row with text that is not text, and goes on behind it.
    """

    def __init__(self, path: Path) -> None:
        """Args: a file with one of `SUFFIXES`. Raises UserError if it cannot be read."""
        self._path, self._number = path, 0
        self._batches = _batches(path)
        self._names = class_names(path)
        self._waiting: Iterator[Any] = iter(())

    def __iter__(self) -> "Rows":
        return self

    def __next__(self) -> tuple[Mapping[str, object], str]:
        row = next(self._waiting, None)
        while row is None:
            self._waiting = _rows(next(self._batches))
            row = next(self._waiting, None)
        self._number += 1
        where = f"{self._path}: row {self._number}"
        if isinstance(row, UnicodeDecodeError):
            raise RowError(where, f"bytes that are not UTF-8 ({row})", "text")
        for name, value in row.items():
            if isinstance(value, str):
                lines.check_text(value, where)
            elif name in self._names and type(value) is int and 0 <= value < len(self._names[name]):
                row[name] = self._names[name][value]
        return row, where


def _rows(batch: Any) -> Iterator[Any]:
    """Yields the values of each row; an error in place of one with text that is none."""
    try:
        yield from batch.to_pylist()  # many times as fast as row by row
    except UnicodeDecodeError:
        for number in range(batch.num_rows):
            try:
                yield from batch.slice(number, 1).to_pylist()
            except UnicodeDecodeError as error:
                yield error


def class_names(path: Path) -> dict[str, list[str]]:
    """Returns the names of classes by column, in the order of their numbers; none where a file has none.

    Raises:
      UserError: a file that cannot be read.
    """
    metadata = _schema(path).metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        return {name: list(map(str, kind["names"])) for name, kind in features.items() if "names" in kind}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}  # metadata of others


def find_files(source: str, key: str) -> list[Path]:
    """Returns the files of a dataset's folder, in its order.

    Args:
      source: `hf:FOLDER`.
      key: the config key that named it, for messages.
    Raises:
      UserError: a folder that is no dataset, such as one of several splits.
    """
    folder = Path(source.removeprefix(DATASET))
    try:
        state = json.loads((folder / _STATE_FILE).read_text("utf-8"))
        paths = [folder / each["filename"] for each in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        splits = sorted(path.parent.name for path in folder.glob(f"*/{_STATE_FILE}"))
        raise UserError(
            f"config key {key}={source}",
            got=f"a folder of the splits {', '.join(splits)}" if splits else f"no readable {_STATE_FILE} ({error})",
            expected="the folder of a dataset that save_to_disk of Hugging Face's datasets wrote",
            fix="name the folder of a split in it" if splits else "correct the path",
        ) from error
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        got = f"no {missing[0].name}" if missing else "a dataset of no files"
        fix = "copy the folder again"
        raise UserError(f"config key {key}={source}", got=got, expected="the files in its state.json", fix=fix)
    return paths


def _schema(path: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            return parquet.read_schema(path)
        with pyarrow.memory_map(str(path)) as file:
            return _open(file).schema
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            with parquet.ParquetFile(path) as table:
                yield from table.iter_batches(_BATCH_ROWS)
            return
        with pyarrow.memory_map(str(path)) as file:
            reader = _open(file)
            if isinstance(reader, pyarrow.RecordBatchFileReader):
                yield from map(reader.get_batch, range(reader.num_record_batches))
            else:
                yield from reader
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _open(file: Any) -> Any:
    import pyarrow

    try:
        return pyarrow.ipc.open_file(file)
    except pyarrow.ArrowInvalid:
        file.seek(0)
        return pyarrow.ipc.open_stream(file)


def _damaged(path: Path, error: Exception) -> UserError:
    kind = "Parquet" if path.suffix == ".parquet" else "Arrow"
    fix = "make or copy the file again"
    return UserError(str(path), got=f"what is no complete {kind} file ({error})", expected="one", fix=fix)
