"""Covers texts that are longer than a row by overlapping windows of whole words or sentences."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Part(NamedTuple):
    """A window of a text that fits into a row."""

    covers: range  # the units in the window
    owns: range  # the units whose predictions come from this window; no other window owns them


def cover(sizes: Sequence[int], limit: int, overlap: int) -> list[Part]:
    """Covers a text by windows of whole units (words, sentences), each with as many units as fit.

    A unit has context on both sides. It is owned by the window in which its smaller side has the most pieces; the
    first such window if there are several. Windows that own no unit are omitted.

    Args:
      sizes: the number of pieces of each unit, 1 or more. A unit of more than `limit` pieces counts as `limit`.
      limit: the maximum number of pieces of a window.
      overlap: the maximum number of pieces that neighboring windows share. They share more if a window would otherwise
        have unused room.
    """
    before = np.concatenate([[0], np.cumsum(np.clip(sizes, 1, limit), dtype=np.int64)])
    starts = [0]
    ends = [_reach(before, 0, limit)]
    while ends[-1] < len(sizes):
        # The window starts at the first unit that may be shared. It must contain the next unit.
        end = ends[-1]
        shared = min(overlap, limit - int(before[end + 1] - before[end]))
        stop = _reach(before, int(np.searchsorted(before, before[end] - shared)), limit)
        starts.append(int(np.searchsorted(before, before[stop] - limit)))
        ends.append(stop)
    counts = np.bincount(_owners(before, starts, ends), minlength=len(starts))
    windows = zip(starts, ends, np.cumsum(counts).tolist(), counts.tolist(), strict=True)
    return [Part(range(start, end), range(stop - count, stop)) for start, end, stop, count in windows if count]


def _reach(before: Int[np.ndarray, " m"], start: int, limit: int) -> int:
    """Returns the end of the longest window that begins with unit `start`: the index after its last unit."""
    return int(np.searchsorted(before, before[start] + limit, side="right")) - 1


def _owners(before: Int[np.ndarray, " m"], starts: list[int], ends: list[int]) -> Int[np.ndarray, " units"]:
    """Returns the window that owns each unit, in nondecreasing order."""
    owners = np.zeros(len(before) - 1, np.int64)
    most = np.full(len(owners), -1)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        context = np.minimum(before[start:end] - before[start], before[end] - before[start + 1 : end + 1])
        better = context > most[start:end]
        most[start:end][better] = context[better]
        owners[start:end][better] = number
    return owners
