"""Vectors of texts in a .npy file that is written as a stream. An interrupted process can resume it.

FILE.partial has the vectors until the last one is written. FILE.json describes what they were made with, and FILE.texts
has a digest of each text; they are kept. `numpy.load(FILE, mmap_mode="r")` opens the vectors.
"""

import contextlib
import hashlib
import io
import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from bertjax.errors import UserError
from bertjax.files import alone, completed

_log = logging.getLogger(__name__)

DTYPES = ("float32", "float16", "int8")
_DIGEST_BYTES = 8  # of a text
_MOST_INT8 = 127


def to_dtype(vector: Float32[np.ndarray, " D"] | None, size: int, dtype: str, number: int) -> np.ndarray:
    """Returns the stored form of a vector.

    An int8 vector is 127 v / max |v|, rounded, of the float32 vector v. It has the direction of v, with an error of at
    most max |v| / 254 per element, but not its length. It depends on no other vector.

    Args:
      vector: the vector; None for a bad text, whose vector is NaN, or zeros in int8.
      size: D.
      dtype: one of `DTYPES`.
      number: the number of the text, for messages.
    Raises:
      UserError: for a number that is not finite.
    """
    if vector is None:
        return np.full(size, 0 if dtype == "int8" else np.nan, dtype)
    with np.errstate(over="ignore"):  # reported below
        stored = vector.astype("float16" if dtype == "float16" else "float32", copy=False)
    if not np.isfinite(stored).all():
        expected = "finite numbers; float16 holds numbers up to 65504"
        fix = 'set dtype="float32", or use other weights'
        raise UserError(f"the vector of text {number}", got="numbers that are not finite", expected=expected, fix=fix)
    if dtype != "int8":
        return stored
    largest = np.abs(stored).max()
    return np.rint(stored * (_MOST_INT8 / largest if largest else 0)).astype(np.int8)


def npy_header(count: int, size: int, dtype: str) -> bytes:
    """Returns the header of a .npy file of vectors [count, size]. Its length does not depend on `count`."""
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (count, size)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


class VectorFile:
    """A .npy file of vectors. Each added vector is written at once.

    Attributes:
      done: the number of texts whose vectors earlier processes have written.
    """

    def __init__(self, path: Path, made_with: Mapping[str, Any], size: int, dtype: str) -> None:
        """Opens a file; see `writing`."""
        partial, record, texts = (path.with_name(path.name + end) for end in (".partial", ".json", ".texts"))
        self._path = path
        self._size = size
        self._dtype = np.dtype(dtype)
        self._is_complete = path.exists()
        self._rows = path if self._is_complete else partial
        made_with = json.loads(json.dumps({**made_with, "dtype": dtype}))
        if self._rows.exists():
            self._check_record(record, made_with)
        else:
            with completed(record) as temporary:
                temporary.write_text(json.dumps(made_with, indent=1) + "\n")
            texts.write_bytes(b"")
            self._rows.write_bytes(self._header(0))
        # A killed process may leave a part of a vector, or a digest without a vector.
        digests = texts.read_bytes() if texts.exists() else b""
        start = len(self._header(0))
        row = self._dtype.itemsize * size
        counts = max(0, self._rows.stat().st_size - start) // row, len(digests) // _DIGEST_BYTES
        self.done = min(counts)
        self._digests = digests[: self.done * _DIGEST_BYTES]
        self._waiting = deque[bytes]()
        if self._is_complete:
            if len({*counts}) > 1:
                raise self._refusal(f"{counts[0]} vectors", f"{counts[1]}, as in {texts}")
            return
        if self.done:
            _log.info("resuming after text %d", self.done)
        self._files = texts.open("ab"), self._rows.open("ab")
        for file, length in zip(self._files, (len(self._digests), start + self.done * row), strict=True):
            file.truncate(length)

    def _header(self, count: int) -> bytes:
        return npy_header(count, self._size, self._dtype.name)

    def _check_record(self, record: Path, made_with: Mapping[str, Any]) -> None:
        try:
            description = dict(json.loads(record.read_text()))
        except (OSError, ValueError, TypeError):
            raise self._refusal("a file without a description", f"{record}") from None
        if names := [name for name in {**made_with, **description} if made_with.get(name) != description.get(name)]:
            both = (description, made_with)
            got, expected = (", ".join(f"{name}={values.get(name)!r}" for name in names) for values in both)
            raise self._refusal(f"vectors with {got}", expected)

    def _refusal(self, got: str, expected: str) -> UserError:
        fix = f"choose another --output, or delete {self._rows} to encode all texts again"
        return UserError(f"--output={self._path}", got=got, expected=expected, fix=fix)

    def unread(self, texts: Iterable[Any]) -> Iterator[Any]:
        """Yields the texts after the first `done`.

        Raises:
          UserError: if those, or all texts of a complete file, are not the ones that earlier processes encoded.
        """
        count = 0
        for count, text in enumerate(texts, start=1):
            digest = hashlib.blake2b(repr(text).encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
            if count > self.done and not self._is_complete:
                self._waiting.append(digest)
                yield text
            elif digest != self._digests[(count - 1) * _DIGEST_BYTES : count * _DIGEST_BYTES]:
                got = f"the vectors of other texts: text {count} is another one or a further one"
                raise self._refusal(got, "the same texts in the same order")
        if count < self.done:
            raise self._refusal(f"the vectors of {self.done} texts, but only {count} texts", "the same texts")

    def add(self, vector: np.ndarray) -> None:
        """Adds the vector of the next text that `unread` has yielded."""
        for file, content in zip(self._files, (self._waiting.popleft(), vector.tobytes()), strict=True):
            file.write(content)
            file.flush()

    def close(self) -> None:
        """Closes the file, which can be resumed."""
        for file in () if self._is_complete else self._files:
            file.close()

    def finish(self) -> None:
        """Gives the file its number of vectors and its name."""
        if self._is_complete:
            return
        assert not self._waiting, f"{len(self._waiting)} texts have no vector"
        self.close()
        with self._rows.open("r+b") as file:
            content = self._rows.stat().st_size - len(self._header(0))
            file.write(self._header(content // (self._dtype.itemsize * self._size)))
        self._rows.replace(self._path)


@contextlib.contextmanager
def writing(path: Path, made_with: Mapping[str, Any], size: int, dtype: str) -> Iterator[VectorFile]:
    """Yields a file for vectors. It gets its name when the block ends without an exception, and can be resumed before.

    Args:
      path: the file. A complete file is not changed; its texts are compared.
      made_with: a JSON-serializable description of the model and the options that the vectors depend on.
      size: the size of a vector.
      dtype: one of `DTYPES`.
    Raises:
      UserError: if the file has other vectors, or if another process is writing it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path):
        with contextlib.closing(VectorFile(path, made_with, size, dtype)) as file:
            yield file
        file.finish()
