"""Reads and writes folders of vectors of the units of texts: word pieces, words, or whole texts.

vectors.npy has a row for each unit. units.jsonl has a line for each text, with its units. offsets.npy has the first row
and the first byte of the line of each text, and the end of both files. index.json describes what the vectors were made
with. Folders of earlier versions, safetensors in shards, are read too.

>>> files = FeatureFiles("vectors")
>>> units, features, *_ = files[0]  # the words (or word pieces) of the first text, and a vector for each: [3, 768]
>>> units
['the', 'cat', 'sees']
"""

import abc
import array
import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bertjax.data.readers.vector_files import npy_header
from bertjax.errors import UserError

INDEX_FILE = "index.json"
_VECTORS_FILE = "vectors.npy"
_OFFSETS_FILE = "offsets.npy"
_UNITS_FILE = "units.jsonl"
_MOST_TEXTS = 2**48  # per shard; a larger number means damage
# What reading a damaged file raises.
_ERRORS = (SafetensorError, OSError, EOFError, ValueError, KeyError, TypeError, IndexError, RecursionError)


class TextFeatures(NamedTuple):
    """The vectors of a text."""

    units: list[str]  # one per vector: word pieces, words, or the text itself
    features: Float[np.ndarray, "n D"]
    second: int | None  # for a pair, the index of the first unit of its second text
    error: str | None = None  # the error of a bad input, which has no units
    truncated: bool = False  # whether the model did not read all of the text

    @classmethod
    def of(cls, record: Mapping[str, Any], features: Float[np.ndarray, "n D"]) -> "TextFeatures":
        """Returns a text from its line of units. Raises ValueError if it has not one unit for each vector."""
        units = record["units"]
        if len(units) != len(features):
            raise ValueError(f"{len(units)} units and {len(features)} vectors")
        return cls(units, features, record.get("second"), record.get("error"), record.get("truncated", False))


class FeatureWriter:
    """Writes the vectors of texts, one text at a time, as streams."""

    def __init__(self, folder: Path, size: int, dtype: str) -> None:
        """Opens an empty folder for vectors of `size` numbers."""
        self._folder = folder
        self._size = size
        self._dtype = np.dtype(dtype)
        self._vectors = (folder / _VECTORS_FILE).open("wb")
        self._vectors.write(npy_header(0, size, dtype))
        self._units = (folder / _UNITS_FILE).open("wb")
        self._offsets = array.array("q", [0, 0])

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds a text: its `units`, their `features` [n, D], and optionally other fields of
        `TextFeatures`.

        Raises:
          UserError: if a number is not finite.
        """
        features = record["features"]
        assert features.shape == (len(record["units"]), self._size), (features.shape, record["units"])
        assert features.dtype == self._dtype, (features.dtype, self._dtype)
        if not np.isfinite(features).all():
            raise UserError(
                f"the features of text {len(self._offsets) // 2 - 1}",
                got="numbers that are not finite",
                expected="finite numbers; float16 holds numbers up to 65504",
                fix="set --config.dtype_out=float32, or use other weights",
            )
        line = json.dumps({key: value for key, value in record.items() if key != "features"}, ensure_ascii=False)
        self._vectors.write(features.tobytes())
        self._units.write(f"{line}\n".encode())
        self._offsets.extend([self._offsets[-2] + len(features), self._units.tell()])

    def close(self) -> None:
        """Closes the files."""
        self._vectors.close()
        self._units.close()

    def finish(self, made_with: Mapping[str, Any]) -> None:
        """Writes the number of vectors, the offsets, and the index with `made_with`, the description of the vectors."""
        self._vectors.seek(0)
        self._vectors.write(npy_header(self._offsets[-2], self._size, self._dtype.name))
        self.close()
        np.save(self._folder / _OFFSETS_FILE, np.array(self._offsets, np.int64).reshape(-1, 2))
        (self._folder / INDEX_FILE).write_text(json.dumps(made_with, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def writing(folder: Path, made_with: Mapping[str, Any], size: int, dtype: str) -> Iterator[FeatureWriter]:
    """Yields a writer. The folder appears with all texts at the end, and only if no exception is raised.

    Args:
      folder: a folder that does not exist or is empty.
      made_with: the JSON-serializable description of the vectors, for the index.
      size: the size D of a vector.
      dtype: "float32" or "float16".
    Raises:
      UserError: if the folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        got = "a folder that is not empty" if folder.is_dir() else "a file"
        fix = "choose another folder, or delete this one"
        raise UserError(f"--output={folder}", got=got, expected="a new or empty folder", fix=fix)
    partial = folder.absolute().with_name(folder.absolute().name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # a killed process may have left it
    partial.mkdir(parents=True)
    try:
        with contextlib.closing(FeatureWriter(partial, size, dtype)) as writer:
            yield writer
            writer.finish(made_with)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class FeatureFiles:
    """The vectors of a folder, by text. They are read from disk when they are used.

    Attributes:
      made_with: the description of the vectors that was passed to `writing`.
    """

    def __init__(self, folder: str | Path) -> None:
        """Opens a folder. Raises UserError if it is damaged."""
        folder = Path(folder)
        self.made_with = _read_index(folder / INDEX_FILE)
        shards = self.made_with.pop("shards", None)
        self._texts = _Streams(folder) if shards is None else _Shards(folder, shards)

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[TextFeatures]:
        return (self[text] for text in range(len(self)))

    def __getitem__(self, text: int) -> TextFeatures:
        """Returns a text by its number, from 0 on. Raises UserError if its part of the files is damaged."""
        if not 0 <= text < len(self):
            raise IndexError(text)
        return self._texts.text(text)


class _Texts(abc.ABC):
    """The texts of a folder in one of its formats."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def text(self, number: int) -> TextFeatures:
        """Returns a text by its number."""


class _Streams(_Texts):
    """A folder of streams, as `FeatureWriter` writes it."""

    def __init__(self, folder: Path) -> None:
        self._units = folder / _UNITS_FILE
        vectors = folder / _VECTORS_FILE
        try:
            self._features = np.load(vectors, mmap_mode="r")
            self._offsets = np.load(folder / _OFFSETS_FILE)
            ends = len(self._features), self._units.stat().st_size
            expected = tuple(self._offsets[-1].tolist())
        except _ERRORS as error:
            raise _damaged(vectors, error, "a complete folder") from error
        if ends != expected:
            got = f"{ends[0]} vectors and {ends[1]} bytes of units"
            raise _damaged(vectors, got, f"{expected[0]} vectors and {expected[1]} bytes, according to {_OFFSETS_FILE}")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def text(self, number: int) -> TextFeatures:
        (first, begin), (last, end) = self._offsets[number : number + 2].tolist()
        try:
            with self._units.open("rb") as file:
                file.seek(begin)
                record = json.loads(file.read(end - begin))
            return TextFeatures.of(record, np.array(self._features[first:last]))
        except _ERRORS as error:
            raise _damaged(self._units, error, f"the units of text {number}") from error


class _Shards(_Texts):
    """A folder of earlier versions: shards of safetensors, one of which is in memory at a time."""

    def __init__(self, folder: Path, shards: Any) -> None:
        if not isinstance(shards, list) or not all(map(_is_shard, shards)):
            expected = "a list of shards, each with features, units and texts"
            raise _damaged(folder / INDEX_FILE, "no list of shards", expected)
        self._folder = folder
        self._shards = shards
        self._starts = np.cumsum([0, *(shard["texts"] for shard in shards)])
        self._open: tuple[int, list[TextFeatures]] | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def text(self, number: int) -> TextFeatures:
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        if self._open is None or self._open[0] != shard:
            self._open = shard, _read_shard(self._folder, self._shards[shard])
        return self._open[1][number - int(self._starts[shard])]


def _read_shard(folder: Path, shard: Mapping[str, Any]) -> list[TextFeatures]:
    path = folder / shard["features"]
    try:
        tensors = load_file(path)
        lines = (folder / shard["units"]).read_text(encoding="utf-8").split("\n")[:-1]
        features = np.split(tensors["features"], tensors["offsets"][1:-1])
        texts = [TextFeatures.of(json.loads(line), part) for line, part in zip(lines, features, strict=True)]
    except _ERRORS as error:
        raise _damaged(path, error, "a complete shard") from error
    if len(texts) != shard["texts"]:
        raise _damaged(path, f"{len(texts)} texts", f"{shard['texts']} texts, according to {INDEX_FILE}")
    return texts


def _read_index(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _damaged(path, error, "the index of a folder that --mode=predict wrote") from error


def _is_shard(shard: Any) -> bool:
    keys = {"features": str, "units": str, "texts": int}
    is_complete = isinstance(shard, dict) and all(isinstance(shard.get(key), kind) for key, kind in keys.items())
    return is_complete and 0 <= shard["texts"] < _MOST_TEXTS


def _damaged(path: Path, got: object, expected: str) -> UserError:
    return UserError(str(path), got=got, expected=expected, fix="restore the folder, or extract the features again")
