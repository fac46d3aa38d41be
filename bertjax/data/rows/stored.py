"""Rows as flat arrays: in memory, or written block by block to files and memory-mapped."""

import errno
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Int

Row = Mapping[str, np.ndarray]  # one-dimensional arrays and scalars
_DTYPES, _LENGTHS = "dtypes.json", ".lengths"


class Ragged(NamedTuple):
    """Arrays of different lengths, one after another.

    Attributes:
      values: the elements of all arrays.
      lengths: the length of each array.
    """

    values: np.ndarray
    lengths: Int[np.ndarray, " rows"]


Fields = Mapping[str, Ragged | np.ndarray]  # by name, for all rows; an array has one scalar per row


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
    """Returns the fields as plain arrays; those of a `Ragged` are "NAME" and "NAME.lengths"."""
    arrays: dict[str, np.ndarray] = {}
    for name, field in fields.items():
        if isinstance(field, Ragged):
            arrays |= {name: field.values, name + _LENGTHS: field.lengths.astype(np.int32)}
        else:
            arrays[name] = field
    return arrays


def grouped(arrays: Mapping[str, np.ndarray]) -> dict[str, Ragged | np.ndarray]:
    """Returns the fields that `flat` got."""
    names = [name for name in arrays if not name.endswith(_LENGTHS)]
    return {
        name: Ragged(arrays[name], arrays[name + _LENGTHS]) if name + _LENGTHS in arrays else arrays[name]
        for name in names
    }


class Writer:
    """Writes the fields of rows to a folder, for `load`."""

    def __init__(self, folder: Path) -> None:
        """Initializes the writer.

        Args:
          folder: a folder that does not exist yet.
        """
        folder.mkdir()
        self._folder, self._dtypes = folder, dict[str, str]()
        self._files, self._sizes = dict[str, BinaryIO](), Counter[str]()

    def add(self, fields: Fields) -> None:
        """Appends rows. All calls pass the same fields with the same dtypes."""
        for name, array in flat(fields).items():
            assert self._dtypes.setdefault(name, array.dtype.str) == array.dtype.str, f"another dtype of {name!r}"
            if name not in self._files:
                self._files[name] = (self._folder / name).open("xb")
            self._sizes[name] += self._files[name].write(array.tobytes())

    def finish(self) -> None:
        """Completes the folder. Raises OSError if another process has deleted or replaced its files."""
        for name, file in self._files.items():
            file.close()
            if (self._folder / name).stat().st_size != self._sizes[name]:
                raise OSError(errno.EIO, "written by another process too", str(self._folder / name))
        (self._folder / _DTYPES).write_text(json.dumps(self._dtypes) + "\n")


def load(folder: Path) -> dict[str, Ragged | np.ndarray]:
    """Returns the fields that a `Writer` wrote, memory-mapped."""
    dtypes = json.loads((folder / _DTYPES).read_text())
    return grouped({name: _mapped(folder / name, dtype) for name, dtype in dtypes.items()})


def _mapped(path: Path, dtype: str) -> np.ndarray:
    """A file as a plain array, because indexing is slow on `np.memmap`. An empty file cannot be mapped."""
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.zeros(0, dtype)
