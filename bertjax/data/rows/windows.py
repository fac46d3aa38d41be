"""Texts that are longer than a row, covered by overlapping windows of whole words or sentences."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Part(NamedTuple):
    """A part of a text that fits a row."""

    covers: range  # units
    owns: range  # those that something is predicted of here; no other part owns them


def cover(sizes: Sequence[int], limit: int, overlap: int) -> list[Part]:
    """Covers a text by windows of whole units (words, sentences), with as many in each as fit.

    Each unit is owned by the window that shows the most pieces on the unit's poorer side, and by the first of
    several such. Windows that would own nothing are left out.

    Args:
      sizes: pieces of each unit, 1 or more; a unit of more than `limit` counts as `limit`.
      limit: pieces of a window at most.
      overlap: pieces that neighboring windows share at most, beyond what would otherwise be left unused.
    """
    before = np.concatenate([[0], np.cumsum(np.clip(sizes, 1, limit), dtype=np.int64)])
    starts, ends = [0], [_reach(before, 0, limit)]
    while ends[-1] < len(sizes):
        # From the first unit that may be shared on, as far as fits; the next unit must be among them.
        end = ends[-1]
        shared = min(overlap, limit - int(before[end + 1] - before[end]))
        stop = _reach(before, int(np.searchsorted(before, before[end] - shared)), limit)
        starts.append(int(np.searchsorted(before, before[stop] - limit)))
        ends.append(stop)
    counts = np.bincount(_owners(before, starts, ends), minlength=len(starts))
    found = zip(starts, ends, np.cumsum(counts).tolist(), counts.tolist(), strict=True)
    return [Part(range(start, end), range(stop - count, stop)) for start, end, stop, count in found if count]


def _reach(before: Int[np.ndarray, " m"], start: int, limit: int) -> int:
    """The unit after the last one that fits into a window that begins with unit `start`."""
    return int(np.searchsorted(before, before[start] + limit, side="right")) - 1


def _owners(before: Int[np.ndarray, " m"], starts: list[int], ends: list[int]) -> Int[np.ndarray, " units"]:
    """The window that owns each unit; they never decrease."""
    owners = np.zeros(len(before) - 1, np.int64)
    most = np.full(len(owners), -1)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        context = np.minimum(before[start:end] - before[start], before[end] - before[start + 1 : end + 1])
        better = context > most[start:end]
        most[start:end][better] = context[better]
        owners[start:end][better] = number
    return owners
