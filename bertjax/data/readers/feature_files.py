"""Reads and writes feature vectors of texts: safetensors shards, each with a file of the texts' units, one per line.

>>> files = FeatureFiles("vectors")
>>> units, features, *_ = files[0]  # the words (or word pieces) of the first text, and a vector for each: [3, 768]
>>> units
['the', 'cat', 'sees']
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertjax.errors import UserError
from bertjax.files import completed

INDEX_FILE = "index.json"
_MOST_TEXTS = 2**48  # per shard; a larger number means damage
_SHARD_BYTES = 2**27  # bytes of vectors per shard; a shard is held in memory


class TextFeatures(NamedTuple):
    """The vectors of a text."""

    units: list[str]  # one per vector: word pieces, words, or the text itself
    features: Float[np.ndarray, "n D"]
    second: int | None  # for a pair, the index of the first unit of its second text
    error: str | None = None  # the error of a bad input, which has no units
    truncated: bool = False  # whether the model did not read all of the text


class FeatureWriter:
    """Writes the vectors of texts, one text at a time. Holds one shard in memory."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        """Opens the writer.

        Args:
          folder: an empty folder.
          shard_bytes: the bytes of vectors after which a shard ends.
        """
        self._folder, self._shard_bytes = folder, shard_bytes
        self._features: list[np.ndarray] = []
        self._lines: list[str] = []
        self._bytes = 0
        self._shards: list[dict[str, Any]] = []

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds a text: its `units`, their `features` [n, D], and optionally other fields of `TextFeatures`.

        Raises:
          UserError: if a number is not finite.
        """
        features = record["features"]
        assert len(features) == len(record["units"]), (features.shape, record["units"])
        if not np.isfinite(features).all():
            raise UserError(
                f"the features of text {sum(shard['texts'] for shard in self._shards) + len(self._lines)}",
                got="numbers that are not finite",
                expected="finite numbers; float16 holds numbers up to 65504",
                fix="set --config.dtype_out=float32, or use other weights",
            )
        self._features.append(features)
        rest = {key: value for key, value in record.items() if key != "features"}
        self._lines.append(json.dumps(rest, ensure_ascii=False) + "\n")
        self._bytes += features.nbytes
        if self._bytes >= self._shard_bytes:
            self._end_shard()

    def finish(self, made_with: Mapping[str, Any]) -> None:
        """Writes the last shard and the index. The index includes `made_with`, the description of the vectors."""
        if self._lines:
            self._end_shard()
        index = {**made_with, "shards": self._shards}
        (self._folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")

    def _end_shard(self) -> None:
        name = f"{len(self._shards):05d}"
        shard = {"features": f"features-{name}.safetensors", "units": f"units-{name}.jsonl", "texts": len(self._lines)}
        offsets = np.cumsum([0, *map(len, self._features)], dtype=np.int64)
        with completed(self._folder / str(shard["features"])) as temporary:
            save_file({"features": np.concatenate(self._features), "offsets": offsets}, temporary)
        (self._folder / str(shard["units"])).write_text("".join(self._lines), encoding="utf-8", newline="\n")
        self._shards.append(shard)
        self._features, self._lines = [], []
        self._bytes = 0


@contextlib.contextmanager
def writing(folder: Path, made_with: Mapping[str, Any], shard_bytes: int = _SHARD_BYTES) -> Iterator[FeatureWriter]:
    """Yields a writer. The folder appears with all texts at the end, and only if no exception is raised.

    Args:
      folder: a folder that does not exist or is empty.
      made_with: the description of the vectors, for the index.
      shard_bytes: the bytes of vectors after which a shard ends.
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
        writer = FeatureWriter(partial, shard_bytes)
        yield writer
        writer.finish(made_with)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class FeatureFiles:
    """The vectors of a folder, by text. One shard at a time is in memory.

    Attributes:
      made_with: the description of the vectors that was passed to `writing`.
    """

    def __init__(self, folder: str | Path) -> None:
        """Opens a folder. Raises UserError if it has no readable index."""
        self._folder = Path(folder)
        self.made_with = _read_index(self._folder / INDEX_FILE)
        self._shards = self.made_with.pop("shards")
        self._starts = np.cumsum([0, *(shard["texts"] for shard in self._shards)])
        self._open: tuple[int, _Shard] | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[TextFeatures]:
        return (self[text] for text in range(len(self)))

    def __getitem__(self, text: int) -> TextFeatures:
        """Returns a text by its number, from 0 on. Raises UserError if its shard is damaged."""
        if not 0 <= text < len(self):
            raise IndexError(text)
        number = int(np.searchsorted(self._starts, text, side="right")) - 1
        if self._open is None or self._open[0] != number:
            self._open = number, _Shard(self._folder, self._shards[number])
        return self._open[1].text(text - int(self._starts[number]))


class _Shard:
    """One shard, in memory."""

    def __init__(self, folder: Path, shard: Mapping[str, Any]) -> None:
        path = folder / shard["features"]
        try:
            tensors = load_file(path)
            self._features: Float[np.ndarray, "n D"] = tensors["features"]
            self._offsets: Int64[np.ndarray, " m"] = tensors["offsets"]
            lines = (folder / shard["units"]).read_text(encoding="utf-8").split("\n")[:-1]
            self._records = [json.loads(line) for line in lines]
            counts = [len(record["units"]) for record in self._records]
            found = len(self._offsets) - 1, len(self._features), np.diff(self._offsets).tolist()
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise _damaged(path, error, "a complete shard") from error
        if found != (shard["texts"], sum(counts), counts):
            got = f"{found[0]} texts and {found[1]} vectors"
            expected = f"{shard['texts']} texts and {sum(counts)} vectors, according to the index and the units file"
            raise _damaged(path, got, expected)

    def text(self, number: int) -> TextFeatures:
        record = self._records[number]
        start, stop = self._offsets[number : number + 2]
        rest = record.get("second"), record.get("error"), record.get("truncated", False)
        return TextFeatures(record["units"], self._features[start:stop], *rest)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error, "the index of a folder that --mode=predict wrote") from error
    shards = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(shards, list) or not all(map(_is_shard, shards)):
        raise _damaged(path, "no list of shards", "a list of shards, each with features, units and texts")
    return dict(index)


def _is_shard(shard: Any) -> bool:
    keys = {"features": str, "units": str, "texts": int}
    is_complete = isinstance(shard, dict) and all(isinstance(shard.get(key), kind) for key, kind in keys.items())
    return is_complete and 0 <= shard["texts"] < _MOST_TEXTS


def _damaged(path: Path, got: object, expected: str) -> UserError:
    return UserError(str(path), got=got, expected=expected, fix="restore the folder, or extract the features again")
