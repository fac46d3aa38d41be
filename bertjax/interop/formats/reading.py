"""Shared code of the readers of binary files: errors of damaged files, and files as arrays of bytes."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from bertjax.errors import UserError

_MAX_ELEMENTS = 2**48
_MAX_RANK = 32


def shown(value: object) -> str:
    """Returns the text of a value from a file in a form that is safe in messages: short, one line, ASCII only.

    >>> shown("os\n system")
    'os\\n system'
    """
    return str(value)[:200].encode("unicode_escape").decode("ascii")


def damaged(where: str | Path, got: object, expected: str) -> UserError:
    """Returns the error for a file that violates its format; `where` names the file and the position in it."""
    return UserError(str(where), got=shown(got), expected=expected, fix="download or export the file again")


def map_bytes(path: Path) -> UInt8[np.ndarray, " N"]:
    """Maps a file into memory, read-only. Raises UserError if it cannot be opened."""
    try:
        size = path.stat().st_size
        return np.asarray(np.memmap(path, np.uint8, "r")) if size else np.zeros(0, np.uint8)
    except OSError as error:
        fix = "check the path and its permissions"
        raise UserError(f"{path}", got=error.strerror, expected="a readable file", fix=fix) from None


def num_elements(shape: Sequence[object], where: str | Path) -> int:
    """Returns the number of elements of a tensor. Raises UserError for a shape that numpy does not support."""
    sizes = [size for size in shape if type(size) is int and size >= 0]
    if len(sizes) < len(shape) or len(sizes) > _MAX_RANK or math.prod(max(size, 1) for size in sizes) > _MAX_ELEMENTS:
        raise damaged(where, f"shape {tuple(shape)}", f"at most {_MAX_RANK} dimensions and {_MAX_ELEMENTS} elements")
    return math.prod(sizes)
