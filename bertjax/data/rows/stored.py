"""Rows as flat arrays: in memory, or written block by block to files and memory-mapped."""

import errno
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Int

Row = Mapping[str, np.ndarray]  # one-dimensional arrays and scalars
_DTYPES = "dtypes.json"
_NAMES = "names.json"
_LENGTHS = ".lengths"
_NO_NAMES: Mapping[str, Any] = {}


class Ragged(NamedTuple):
    """Arrays of different lengths, concatenated.

    Attributes:
      values: the elements of all arrays.
      lengths: the length of each array.
    """

    values: np.ndarray
    lengths: Int[np.ndarray, " rows"]


Fields = Mapping[str, Ragged | np.ndarray]  # the fields of all rows by name; a plain array has one entry per row


class Numbering(dict[str, int]):
    """Numbers names from 1 on, in the order of their first lookup. 0 stands for no name.

    >>> numbering = Numbering()
    >>> [numbering[name] for name in ("b", "a", "b")], list(numbering)
    ([1, 2, 1], ['b', 'a'])
    """

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self) + 1
        return number


def fields_of(rows: Iterable[Row]) -> dict[str, Ragged | np.ndarray]:
    """Returns the fields of at least one row. All rows have the same fields."""
    columns: dict[str, list[np.ndarray]] = {}
    for row in rows:
        for name, array in row.items():
            columns.setdefault(name, []).append(array)
    return {name: ragged(arrays) if arrays[0].ndim else np.stack(arrays) for name, arrays in columns.items()}


def ragged(arrays: list[np.ndarray]) -> Ragged:
    """Returns at least one array as `Ragged`."""
    return Ragged(np.concatenate(arrays), np.fromiter(map(len, arrays), np.int32, len(arrays)))


def flat(fields: Fields) -> dict[str, np.ndarray]:
    """Returns the fields as plain arrays. A `Ragged` becomes two arrays, "NAME" and "NAME.lengths"."""
    arrays: dict[str, np.ndarray] = {}
    for name, field in fields.items():
        if isinstance(field, Ragged):
            arrays |= {name: field.values, name + _LENGTHS: field.lengths.astype(np.int32)}
        else:
            arrays[name] = field
    return arrays


def grouped(arrays: Mapping[str, np.ndarray]) -> dict[str, Ragged | np.ndarray]:
    """Returns the fields from the arrays that `flat` returned."""
    names = [name for name in arrays if not name.endswith(_LENGTHS)]
    return {
        name: Ragged(arrays[name], arrays[name + _LENGTHS]) if name + _LENGTHS in arrays else arrays[name]
        for name in names
    }


class Writer:
    """Writes the fields of rows to a folder, for `load`.

    Names, such as those of classes, are numbered from 1 on in the order of appearance; `load_names` returns them.
    """

    def __init__(self, folder: Path) -> None:
        """Initializes the writer.

        Args:
          folder: a folder that does not exist yet.
        """
        folder.mkdir()
        self._folder = folder
        self._dtypes = dict[str, str]()
        self._files = dict[str, BinaryIO]()
        self._sizes = Counter[str]()
        self._numberings = defaultdict[str, Numbering](Numbering)

    def add(self, fields: Fields, names: Mapping[str, Sequence[str]] = _NO_NAMES) -> None:
        """Appends rows. All calls pass the same fields with the same dtypes.

        Args:
          fields: the fields.
          names: for each int32 field that stands for names, the names. Number n stands for name n - 1, and 0 for none.
        """
        numbered = {name: self._numbered(name, fields[name], of_field) for name, of_field in names.items()}
        for name, array in flat({**fields, **numbered}).items():
            assert self._dtypes.setdefault(name, array.dtype.str) == array.dtype.str, f"another dtype of {name!r}"
            if name not in self._files:
                self._files[name] = (self._folder / name).open("xb")
            self._sizes[name] += self._files[name].write(array.tobytes())

    def _numbered(self, name: str, field: Ragged | np.ndarray, names: Sequence[str]) -> Ragged | np.ndarray:
        """Returns a field with its names renumbered as in the files."""
        numbers = np.array([0, *map(self._numberings[name].__getitem__, names)], np.int32)
        return field._replace(values=numbers[field.values]) if isinstance(field, Ragged) else numbers[field]

    def finish(self) -> None:
        """Completes the folder. Raises OSError if another process has deleted or replaced the files."""
        for name, file in self._files.items():
            file.close()
            if (self._folder / name).stat().st_size != self._sizes[name]:
                raise OSError(errno.EIO, "another process wrote to it", str(self._folder / name))
        (self._folder / _DTYPES).write_text(json.dumps(self._dtypes) + "\n")
        if self._numberings:
            names = {name: list(numbering) for name, numbering in self._numberings.items()}
            (self._folder / _NAMES).write_text(json.dumps(names) + "\n")


def load(folder: Path) -> dict[str, Ragged | np.ndarray]:
    """Returns the fields that a `Writer` wrote, memory-mapped."""
    dtypes = json.loads((folder / _DTYPES).read_text())
    return grouped({name: _mapped(folder / name, dtype) for name, dtype in dtypes.items()})


def load_names(folder: Path) -> dict[str, list[str]]:
    """Returns the names that a `Writer` numbered, by field: number n stands for name n - 1, and 0 for no name."""
    path = folder / _NAMES
    return json.loads(path.read_text()) if path.exists() else {}


def split(fields: Fields, count: int) -> list[dict[str, np.ndarray]]:
    """Returns each of `count` rows: its part of every field."""
    columns = {name: _parts(field) if isinstance(field, Ragged) else field for name, field in fields.items()}
    return [{name: column[number] for name, column in columns.items()} for number in range(count)]


def _parts(field: Ragged) -> list[np.ndarray]:
    ends = np.cumsum(field.lengths).tolist()
    return [field.values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _mapped(path: Path, dtype: str) -> np.ndarray:
    """Maps a file as a plain array, because indexing `np.memmap` is slow. An empty file cannot be mapped."""
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.zeros(0, dtype)
