"""Reads TensorFlow checkpoints (NAME.index, NAME.data-00000-of-00001) without TensorFlow.

The format is the tensor bundle of tensorflow/core/util/tensor_bundle, which `tf.compat.v1.train.Saver` and
`tf.train.Checkpoint` write: a sorted table of protocol buffers contains the location of each tensor in the data files.

>>> checkpoint = Checkpoint("uncased_L-12_H-768_A-12/bert_model.ckpt")
>>> checkpoint.tensors["bert/pooler/dense/bias"]
Tensor(dtype='float32', shape=(768,))
>>> checkpoint.read("bert/pooler/dense/bias")
"""

from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from jaxtyping import Shaped, UInt8

from bertjax.errors import UserError
from bertjax.interop.formats import sstable
from bertjax.interop.formats.crc32c import masked_checksum
from bertjax.interop.formats.protobuf import Message
from bertjax.interop.formats.reading import damaged, map_bytes, num_elements, shown

# Supported types and names of others, by their number in tensorflow/core/framework/types.proto.
_DTYPES = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    4: np.dtype(np.uint8),
    6: np.dtype(np.int8),
    9: np.dtype(np.int64),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype(np.float16),
}
_OTHER_DTYPES = {5: "int16", 7: "string", 8: "complex64", 10: "bool", 18: "complex128", 20: "resource", 21: "variant"}
_MAX_INDEX_BYTES = 8 * 2**20
_WHOLE = -1  # the length of a slice that covers its whole axis


class Tensor(NamedTuple):
    """The type and the shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]


class _Entry(NamedTuple):
    """BundleEntryProto: the location of a tensor, or its slices, each a (start, length) by axis."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    slices: tuple[tuple[tuple[int, int], ...], ...]


class Checkpoint:
    """A checkpoint whose index has been read and whose data files are mapped into memory.

    Attributes:
      tensors: the tensors by name; a partitioned variable is one tensor.
    """

    def __init__(self, prefix: str | Path) -> None:
        """Reads the index.

        Args:
          prefix: the path without `.index` and `.data-...`.
        Raises:
          UserError: for a missing or damaged file, TensorFlow's first format, or big-endian numbers.
        """
        self._path = Path(f"{prefix}.index")
        table = sstable.read_table(_index_bytes(Path(prefix), self._path), f"{self._path}")
        header = Message(_taken(table, b"", self._path), f"{self._path}: header")
        if header.integer(2):
            fix = "save it on a little-endian machine"
            raise UserError(f"{self._path}", got="big-endian byte order", expected="little-endian byte order", fix=fix)
        self._entries = {key: _parse(key, value, self._path) for key, value in table.items()}
        self._shards = self._map_shards(Path(prefix), header.integer(1))
        # Keys of slices start with a zero byte.
        entries = {key: entry for key, entry in self._entries.items() if not key.startswith(b"\0")}
        self.tensors = {_decoded(key, self._path): Tensor(_type_name(e.dtype), e.shape) for key, e in entries.items()}

    def read(self, name: str) -> Shaped[np.ndarray, "..."]:
        """Returns a tensor, in the file's memory map unless it was partitioned. Verifies its checksum.

        Raises:
          UserError: for an unknown tensor, an unsupported type, or damaged data.
        """
        where = f"{self._path}: {shown(name)}"
        if name not in self.tensors:
            fix = "use one of these names"
            raise UserError(where, got="no such tensor", expected="one of " + shown(", ".join(self.tensors)), fix=fix)
        entry = self._entries[name.encode()]
        if entry.dtype not in _DTYPES:
            expected = "one of " + ", ".join(dtype.name for dtype in _DTYPES.values())
            raise UserError(where, got=_type_name(entry.dtype), expected=expected, fix="leave this tensor out")
        return self._assemble(name, entry, where) if entry.slices else self._load(entry, where)

    def _map_shards(self, prefix: Path, count: int) -> dict[int, UInt8[np.ndarray, "_"]]:
        """Maps the data files that the index refers to, and checks that its entries lie within them."""
        stored = [entry for entry in self._entries.values() if not entry.slices]
        shards = {}
        for number in sorted({entry.shard for entry in stored}):
            if not 0 <= number < count:
                raise damaged(self._path, f"data file {number}", f"one of the {count} files in the header")
            shards[number] = map_bytes(Path(f"{prefix}.data-{number:05d}-of-{count:05d}"))
        for entry in stored:
            end = entry.offset + entry.size
            if min(entry.offset, entry.size) < 0 or end > shards[entry.shard].size:
                got = f"a tensor from byte {entry.offset} to {end} of data file {entry.shard}"
                raise damaged(self._path, got, f"tensors within its {shards[entry.shard].size} bytes")
        total = sum(entry.size for entry in stored)
        available = sum(shard.size for shard in shards.values())
        if total > available:
            # Otherwise a small file could use the same bytes for any number of tensors.
            raise damaged(self._path, f"{total} bytes of tensors", f"at most {available}, the size of the data files")
        return shards

    def _load(self, entry: _Entry, where: str) -> Shaped[np.ndarray, "..."]:
        dtype = _DTYPES[entry.dtype]
        content = self._shards[entry.shard][entry.offset : entry.offset + entry.size]
        expected = num_elements(entry.shape, where) * dtype.itemsize
        if entry.size != expected:
            raise damaged(where, f"{entry.size} bytes", f"{expected} for shape {entry.shape} of {dtype.name}")
        if masked_checksum(content) != entry.checksum:
            raise damaged(where, f"another checksum in data file {entry.shard}", "the checksum in the index")
        return content.view(dtype).reshape(entry.shape)

    def _assemble(self, name: str, entry: _Entry, where: str) -> Shaped[np.ndarray, "..."]:
        """Returns a partitioned variable. Checks that its slices cover each element exactly once."""
        parts = {extents: self._part(name, extents, entry, where) for extents in entry.slices}
        dtype = _DTYPES[entry.dtype]
        expected = num_elements(entry.shape, where) * dtype.itemsize
        got = sum(part.size for part in parts.values())
        if got != expected:
            raise damaged(where, f"slices of {got} bytes", f"{expected} for shape {entry.shape}")
        result = np.empty(entry.shape, dtype)
        covered = np.zeros(entry.shape, bool)
        for extents, part in parts.items():
            window = tuple(slice(a, None if n == _WHOLE else a + n) for a, n in extents)
            if part.shape != result[window].shape:
                raise damaged(where, f"a slice of shape {part.shape}", f"{result[window].shape} at {extents}")
            result[window] = self._load(part, where)
            covered[window] = True
        if not covered.all():
            raise damaged(where, "slices that overlap", "each element in one slice")
        return result

    def _part(self, name: str, extents: tuple[tuple[int, int], ...], entry: _Entry, where: str) -> _Entry:
        key = _slice_key(name, extents) if len(extents) == len(entry.shape) else b""
        part = self._entries.get(key)
        if part is None or part.slices or part.dtype != entry.dtype:
            got = f"an entry of {_type_name(part.dtype)}, shape {part.shape}" if part else "no such entry"
            raise damaged(
                f"{where}: slice {extents}", got, f"a part of a {_type_name(entry.dtype)} tensor of shape {entry.shape}"
            )
        return part


def _index_bytes(prefix: Path, index: Path) -> bytes:
    if not index.exists() and prefix.is_file() and map_bytes(prefix)[-8:].tobytes() == sstable.MAGIC:
        fix = "load it with TensorFlow and save it with write_version=tf.train.SaverDef.V2"
        got = "a checkpoint of TensorFlow's first format (V1, one file)"
        raise UserError(f"{prefix}", got=got, expected=f"the second format, with {index.name}", fix=fix)
    content = map_bytes(index)
    if content.size > _MAX_INDEX_BYTES:
        raise damaged(index, f"{content.size} bytes", f"at most {_MAX_INDEX_BYTES} for an index")
    return content.tobytes()


def _taken(table: dict[bytes, bytes], key: bytes, path: Path) -> bytes:
    if key not in table:
        raise damaged(path, "no header", "a header under the empty key")
    return table.pop(key)


def _parse(key: bytes, content: bytes, path: Path) -> _Entry:
    where = f"{path}: {shown(key.decode('utf-8', 'replace'))}"
    message = Message(content, where)
    shape = tuple(axis.integer(1) for axis in message.message(2).messages(2))
    num_elements(shape, where)
    slices = tuple(
        tuple((extent.integer(1), extent.integer(2) if 2 in extent else _WHOLE) for extent in part.messages(1))
        for part in message.messages(7)
    )
    if any(start < 0 or length < _WHOLE for extents in slices for start, length in extents):
        raise damaged(where, f"slices {slices}", "starts and lengths of 0 or more")
    dtype, shard, offset, size, checksum = (message.integer(field) for field in (1, 3, 4, 5, 6))
    return _Entry(dtype, shape, shard, offset, size, checksum, slices)


def _decoded(key: bytes, path: Path) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise damaged(path, f"name {key!r}", "names in UTF-8") from None


def _type_name(number: int) -> str:
    return _DTYPES[number].name if number in _DTYPES else _OTHER_DTYPES.get(number, f"number {number}")


def _slice_key(name: str, extents: tuple[tuple[int, int], ...]) -> bytes:
    """Returns the index key of a slice. The byte order of keys is the order of slices.

    Equals EncodeTensorNameSlice of tensorflow/core/util/saved_tensor_slice_util.cc, with OrderedCode's numbers.
    """
    escaped = name.encode().replace(b"\0", b"\0\xff") + b"\0\1"
    rank = len(extents).to_bytes(1, "big")
    return b"\0" + escaped + b"\1" + rank + b"".join(_ordered(number) for extent in extents for number in extent)


def _ordered(number: int) -> bytes:
    """Encodes a signed number with seven bits per byte. As in UTF-8, the number of leading ones is the length.

    >>> _ordered(5), _ordered(-1), _ordered(100)
    (b'\\x85', b'\\x7f', b'\\xc0d')
    """
    size = (number if number >= 0 else ~number).bit_length() // 7 + 1
    header = ((1 << size) - 1) << 7 * size
    return ((number % 2 ** (8 * size)) ^ header).to_bytes(size, "big")
