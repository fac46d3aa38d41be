"""Reads files of `torch.save` (weights, *.pt) without torch, and without executing code that they name.

Supports both formats: the zip archives since PyTorch 1.6, and the earlier sequences of pickles. torch/serialization.py
writes both.
"""

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Shaped, UInt8

from bertjax.errors import UserError
from bertjax.interop.formats.reading import damaged, map_bytes, num_elements, shown
from bertjax.interop.formats.restricted_pickle import MAX_PICKLE_BYTES, Function, InertClass, load, refusal
from bertjax.interop.formats.stored_zip import StoredZip

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
# Tied embeddings give a tensor several names. A larger factor only helps files that exhaust memory.
_MAX_SHARING = 8


@dataclasses.dataclass(frozen=True)
class _StorageType:
    name: str
    dtype: np.dtype[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class _Storage:
    array: Shaped[np.ndarray, " N"]


_STORAGE_TYPES = {
    f"torch.{name}Storage": _StorageType(f"torch.{name}Storage", np.dtype(dtype))
    for name, dtype in {
        "Float": np.float32,
        "Half": np.float16,
        "BFloat16": ml_dtypes.bfloat16,
        "Long": np.int64,
        "Byte": np.uint8,
    }.items()
}


def read_tensors(path: str | Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Reads a state dict: read-only tensors by name, with their types and strides.

    Raises:
      UserError: see `read`; also if the file contains anything except tensors by name.
    """
    return state_dict(read(path), Path(path), f"{path}")


def state_dict(values: object, path: Path, where: str) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Returns a part of the result of `read` if it is a state dict. Otherwise raises UserError about `where`."""
    fix = "save only model.state_dict() with torch.save"
    if not isinstance(values, dict):
        raise UserError(where, got=type(values).__name__, expected="a dict of tensors", fix=fix)
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray):
            got = type(value).__name__ if isinstance(name, str) else "a name that is a number"
            raise UserError(f"{where}: {shown(name)}", got=got, expected="a tensor with a string as its name", fix=fix)
    size = sum(value.nbytes for value in values.values())
    limit = _MAX_SHARING * path.stat().st_size
    if size > limit:
        raise damaged(where, f"tensors of {size} bytes", f"at most {limit}, {_MAX_SHARING} times the size of the file")
    return values


def read(path: str | Path, inert: Sequence[str] = (), limit: int = MAX_PICKLE_BYTES) -> Any:
    """Returns the saved object: read-only numpy arrays in nested dicts, lists and tuples of plain values.

    Storages of zip archives stay in the file's memory map.

    Args:
      path: the file.
      inert: dotted names of classes whose instances may occur, each read as a `restricted_pickle.Inert`.
      limit: the maximum number of bytes of the pickle, see `MAX_PICKLE_BYTES`.
    Raises:
      UserError: if the file is missing or damaged, names anything but these classes and tensors of float32, float16,
        bfloat16, int64 or uint8 in plain containers, or claims more memory than its size.
    """
    path = Path(path)
    content = map_bytes(path)
    classes: dict[str, object] = {name: InertClass(name) for name in inert}
    is_zip = content[:4].tobytes() == b"PK\3\4"
    return (_read_zip if is_zip else _read_legacy)(path, content, classes, limit)


def _read_zip(path: Path, content: UInt8[np.ndarray, " N"], classes: Mapping[str, object], limit: int) -> object:
    archive = StoredZip(path, content)
    roots = [name.removesuffix("/data.pkl") for name in archive.names if name.endswith("/data.pkl")]
    if len(roots) != 1 or "/" in roots[0]:
        raise damaged(path, f"{len(roots)} entries data.pkl", "one, as in archives of torch.save")
    root = roots[0]
    where = f"{path}: data.pkl"
    if f"{root}/constants.pkl" in archive.names:
        raise refusal(f"{path}", "a TorchScript program", "a file of torch.save")
    order = archive.read(f"{root}/byteorder").tobytes() if f"{root}/byteorder" in archive.names else b"little"
    if order != b"little":
        raise damaged(path, f"byte order {order!r}", "b'little'")
    storages: dict[tuple[str, str], _Storage] = {}

    def find(key: str, kind: _StorageType, size: int) -> _Storage:
        if (key, kind.name) not in storages:
            entry = archive.read(f"{root}/data/{key}")
            if entry.size != size * kind.dtype.itemsize:
                raise damaged(where, f"storage {key} of {entry.size} bytes", f"{size} elements of {kind.dtype.name}")
            storages[key, kind.name] = _Storage(entry.view(kind.dtype))
        return storages[key, kind.name]

    pickled = archive.read(f"{root}/data.pkl")
    if pickled.size > limit:
        raise damaged(where, f"{pickled.size} bytes", f"at most {limit}")
    return _Loader(where, find, classes).load(io.BytesIO(pickled.tobytes()))


def _read_legacy(path: Path, content: UInt8[np.ndarray, " N"], classes: Mapping[str, object], limit: int) -> object:
    """Reads five pickles (magic number, version, machine, object, keys of storages) and the storages that follow."""
    where = f"{path}"
    file = io.BytesIO(content[:limit].tobytes())
    storages: dict[str, _Storage] = {}
    claimed = 0

    def find(key: str, kind: _StorageType, size: int) -> _Storage:
        nonlocal claimed
        if key not in storages:
            claimed += size * kind.dtype.itemsize
            if claimed > content.size:
                raise damaged(where, f"storages of {claimed} bytes", f"at most {content.size}, the file's size")
            storages[key] = _Storage(np.zeros(size, kind.dtype))
        if storages[key].array.dtype != kind.dtype or storages[key].array.size != size:
            raise damaged(where, f"storage {shown(key)} with two types or sizes", "one type and one size")
        return storages[key]

    loader = _Loader(where, find, classes)
    for expected in (_MAGIC, _PROTOCOL):
        number = loader.load(file)
        if type(number) is not int or number != expected:
            raise damaged(where, "another kind of file", "a file of torch.save")
    machine = loader.load(file)
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise damaged(where, "numbers in big-endian or unknown byte order", "little-endian byte order")
    result = loader.load(file)
    keys = loader.load(file)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(storages):
        raise damaged(where, "a list of storages that differs from those of the tensors", "the same storages")
    _fill([storages[key].array for key in keys], content[file.tell() :], where)
    return result


def _fill(arrays: list[Shaped[np.ndarray, "_"]], content: UInt8[np.ndarray, " N"], where: str) -> None:
    """Copies each storage from `content`, in which eight bytes with its number of elements precede it."""
    for array in arrays:
        end = 8 + array.nbytes
        if content.size < end or int.from_bytes(content[:8].tobytes(), "little") != array.size:
            raise damaged(where, "a storage that is truncated or has another size", f"{array.size} elements")
        array[:] = content[8:end].view(array.dtype)
        content = content[end:]
    if content.size:
        raise damaged(where, f"{content.size} bytes after the storages", "no bytes")


class _Loader:
    """Loads pickles of tensors.

    `find` returns the storage of a key, a type and a number of elements. `classes` are the allowed inert classes by
    name. The type of every value from the pickle is checked before use, even before `==`, which returns an array for
    arrays.
    """

    def __init__(
        self, where: str, find: Callable[[str, _StorageType, int], _Storage], classes: Mapping[str, object]
    ) -> None:
        self._where = where
        self._find = find
        self._allowed = {
            "collections.OrderedDict": Function(self._ordered_dict),
            "torch._utils._rebuild_tensor": Function(self._tensor),
            "torch._utils._rebuild_tensor_v2": Function(self._tensor_v2),
            "torch._utils._rebuild_parameter": Function(self._parameter),
            **_STORAGE_TYPES,
            **classes,
        }

    def load(self, file: io.BytesIO) -> object:
        return load(file, self._where, self._allowed, self._storage)

    def _storage(self, key: object) -> _Storage:
        match key:
            # A sixth value describes views of storages, which only the oldest files have.
            case (str() as what, _StorageType() as kind, str() as name, str(), int() as size, *views):
                is_whole = len(views) < 2 and all(view is None for view in views)
                if what == "storage" and is_whole and type(size) is int and size >= 0:
                    return self._find(name, kind, size)
        raise self._refusal("persistent id", key, "('storage', type, key, location, size)")

    def _tensor(self, *arguments: object) -> Shaped[np.ndarray, "..."]:
        match arguments:
            case (_Storage(array), int() as offset, tuple() as size, tuple() as stride):
                return _view(array, offset, size, stride, self._where)
        raise self._refusal("tensor arguments", arguments, "storage, offset, size and stride")

    def _tensor_v2(self, *arguments: object) -> Shaped[np.ndarray, "..."]:
        # After these: requires_grad, hooks and, since PyTorch 2, marks such as lazy negation.
        unmarked = all(marks is None or (type(marks) is dict and not marks) for marks in arguments[6:])
        if len(arguments) not in (6, 7) or not unmarked:
            raise self._refusal("tensor arguments", arguments, "6 arguments, without marks such as negation")
        return self._tensor(*arguments[:4])

    def _parameter(self, *arguments: object) -> Shaped[np.ndarray, "..."]:
        match arguments:
            case (np.ndarray() as data, _, _):
                return data
        raise self._refusal("parameter arguments", arguments, "a tensor, requires_grad and hooks")

    def _ordered_dict(self, *arguments: object) -> dict[Any, Any]:
        if arguments:
            raise self._refusal("OrderedDict arguments", arguments, "no arguments")
        return {}

    def _refusal(self, what: str, values: object, expected: str) -> UserError:
        return refusal(self._where, f"{what} {_outline(values)}", expected)


def _view(
    array: Shaped[np.ndarray, " N"], offset: int, size: tuple[object, ...], stride: tuple[object, ...], where: str
) -> Shaped[np.ndarray, "..."]:
    """Returns a tensor as a view of its storage. Raises UserError unless it lies within the storage."""
    count = num_elements(size, where)
    steps = [step for step in stride if type(step) is int and step >= 0]
    sizes = [axis for axis in size if isinstance(axis, int)]
    if offset < 0 or not len(steps) == len(stride) == len(sizes):
        raise damaged(
            where, f"offset {offset} and strides {_outline(stride)}", f"an offset and {len(sizes)} strides of 0 or more"
        )
    if not count:
        return np.zeros(sizes, array.dtype)
    last = offset + sum((axis - 1) * step for axis, step in zip(sizes, steps, strict=True))
    # Strides of 0 would repeat values, and let a small file make large tensors.
    if last >= array.size or count > array.size:
        got = f"a tensor of {count} elements up to index {last} of its storage"
        raise damaged(where, got, f"tensors within their storage, which has {array.size} elements")
    strides = [step * array.itemsize if axis > 1 else 0 for axis, step in zip(sizes, steps, strict=True)]
    return np.lib.stride_tricks.as_strided(array[offset:], sizes, strides, writeable=False)


def _outline(value: object) -> str:
    """Describes a value that may be nested to any depth."""
    if isinstance(value, tuple):
        return "(" + ", ".join(shown(v) if type(v) in (str, int) else type(v).__name__ for v in value[:8]) + ")"
    return type(value).__name__
