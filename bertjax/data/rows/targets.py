"""Fields with a value for each training row that another model computes, once."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data.rows.buckets import Indices, Padded
from bertjax.files import completed
from bertjax.progress import track

_log = logging.getLogger(__name__)
_SHARD = 2**13  # rows
Targets = Mapping[str, np.ndarray]  # by field, with a row of axis 0 for each training row


class WithTargets(NamedTuple):
    """Rows with further fields.

    Attributes:
      rows: the rows.
      targets: the fields.
    """

    rows: Padded
    targets: Targets

    @property
    def lengths(self) -> Indices:
        """The length of each row."""
        return self.rows.lengths

    def padded(self, indices: Indices, length: int) -> dict[str, np.ndarray]:
        """Returns rows by index; see `Padded.padded`."""
        return {**self.rows.padded(indices, length), **at(self.targets, indices)}


def at(targets: Targets, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the fields of rows by index; zeros for the index -1."""
    fields = {name: values[indices] for name, values in targets.items()}
    for values in fields.values():
        values[indices < 0] = 0
    return fields


def of_rows(
    rows: Padded,
    lengths: Sequence[int],
    batch_size: int,
    program: Callable[[Mapping[str, np.ndarray]], Targets],
    folder: Path,
) -> Targets:
    """Returns the outputs of a program for all rows, which it computes in shards unless the folder has them.

    A batch has the shape of a training batch, so that the outputs have the bits that the program would give there.

    Args:
      rows: the rows.
      lengths: those of the buckets, ascending.
      batch_size: the rows of a batch.
      program: computes fields of a batch of rows of one length.
      folder: where the shards are; its name stands for everything that determines them.
    """
    bucket = np.searchsorted(lengths, rows.lengths)
    order = np.argsort(bucket, kind="stable")
    groups = [order[bucket[order] == number] for number in range(len(lengths))]
    batches = [
        (length, group[start : start + batch_size])
        for length, group in zip(lengths, groups, strict=True)
        for start in range(0, len(group), batch_size)
    ]
    step = max(1, _SHARD // batch_size)
    shards = [batches[start : start + step] for start in range(0, len(batches), step)]
    paths = [folder / f"{number:05}.npz" for number in range(len(shards))]
    missing = [number for number, path in enumerate(paths) if not path.exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        _log.info("the teacher reads %d of %d parts of %s rows", len(missing), len(paths), f"{len(order):,}")
    for number in track(missing, "computing", "part"):
        outputs = [_outputs(rows, length, indices, batch_size, program) for length, indices in shards[number]]
        fields = {name: np.concatenate([output[name] for output in outputs]) for name in outputs[0]}
        with completed(paths[number]) as partial, partial.open("wb") as file:
            np.savez(file, **fields)  # type: ignore[arg-type]
    parts = [dict(np.load(path)) for path in paths]
    targets = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ranks = np.argsort(order)
    return {name: values[ranks] for name, values in targets.items()}


def _outputs(
    rows: Padded, length: int, indices: Indices, batch_size: int, program: Callable[[Mapping[str, np.ndarray]], Targets]
) -> dict[str, np.ndarray]:
    """The outputs of rows in one batch, which empty rows fill up."""
    filled = np.concatenate([indices, np.full(batch_size - len(indices), -1)])
    fields = program(rows.padded(filled, length))
    return {name: np.asarray(values)[: len(indices)] for name, values in fields.items()}
