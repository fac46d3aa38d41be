"""The plan of an epoch: the rows of text in each step's batch.

An epoch visits the documents in a random order, in blocks of about a million sentences. The instances of a block are
computed from sentence lengths alone, optionally packed, and shuffled. A thread plans the next block in advance. Rows
and order are pure functions of (seed, epoch), so every process has the same plan. Only the numbers of rows of blocks
are written, so that a run that starts at any step plans only the block that contains it.
"""

import bisect
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from bertjax.data import random
from bertjax.data.pretraining.masking import MaskingConfig
from bertjax.data.pretraining.sentence_pairs import PairsConfig, Sentences, lengths_of, make_instances
from bertjax.data.rows.layout import positions_in_groups
from bertjax.data.rows.packing import Packing, pack
from bertjax.errors import UserError

# Part of the file name of every plan. Raise it when the same settings would give different rows.
_FORMAT = 2
# The size of a block: one per sentence and `_PER_DOCUMENT` per document, in proportion to their costs. A block is
# planned in a fraction of a second and lasts for hundreds of steps.
_BLOCK = 1 << 20
_PER_DOCUMENT = 4
_CACHED_BLOCKS = 4  # the most recently used blocks


class PlannedRows(NamedTuple):
    """Rows of instances.

    Attributes:
      instances: the instances, row after row (dtype `sentence_pairs.INSTANCE`).
      first: the index of each row's first instance, and the number of instances at the end.
    """

    instances: np.ndarray
    first: Int64[np.ndarray, " m"]

    def __len__(self) -> int:
        return len(self.first) - 1

    def take(self, rows: Int64[np.ndarray, " n"]) -> "PlannedRows":
        """Returns rows by number, in the given order. A number beyond the last row is an empty row."""
        ends = np.append(self.first, self.first[-1])
        rows = np.minimum(rows, len(self.first) - 1)
        sizes = ends[rows + 1] - ends[rows]
        chosen = np.repeat(ends[rows], sizes) + positions_in_groups(sizes)
        return PlannedRows(self.instances[chosen], np.concatenate([[0], np.cumsum(sizes)]))

    @classmethod
    def joined(cls, parts: Sequence["PlannedRows"]) -> "PlannedRows":
        """Returns the rows of all parts."""
        sizes = np.concatenate([np.diff(part.first) for part in parts])
        return cls(np.concatenate([part.instances for part in parts]), np.concatenate([[0], np.cumsum(sizes)]))


class EpochPlan:
    """The rows of every epoch of one split, computed on demand."""

    def __init__(
        self,
        sentences: Sentences,
        pairs: PairsConfig,
        masking: MaskingConfig,
        packing: Packing | None,
        *,
        num_special: int,
        seed: int,
        folder: Path,
    ) -> None:
        """Initializes the plan.

        Args:
          sentences: the sentences of the split.
          pairs: the division of text into instances.
          masking: determines which epochs repeat the draws of earlier ones.
          packing: the capacity of a packed row; None for one instance per row.
          num_special: the number of special tokens of an instance.
          seed: the seed of all draws.
          folder: the folder of the file with the numbers of rows.
        """
        self._sentences = sentences
        self._pairs = pairs
        self._masking = masking
        self._packing = packing
        self._num_special = num_special
        self._seed = seed
        cost = len(sentences.lengths) + _PER_DOCUMENT * sentences.num_documents
        self._num_blocks = max(1, min(cost // _BLOCK, sentences.num_documents))
        settings = repr((_FORMAT, _BLOCK, pairs, masking.mode, masking.dupe_factor, packing, num_special, seed))
        if sentences.documents is not None:
            settings += hashlib.sha256(sentences.documents).hexdigest()
        self._counts = _Counts(folder / f"{hashlib.sha256(settings.encode()).hexdigest()[:16]}.json")
        self._planner = ThreadPoolExecutor(1, "plan")
        self._blocks: dict[tuple[int, int], Future[PlannedRows]] = {}
        self._first_steps: dict[int, list[int]] = {}  # by batch size: the first step of each epoch reached so far
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._locating = threading.Lock()

    def locate(self, step: int, batch_size: int) -> tuple[int, int]:
        """Returns the epoch of a step, and the step's first row in it. Rows after the last full batch are not used.

        Raises:
          UserError: if an epoch has fewer rows than a batch.
        """
        with self._locating:
            return self._locate(step, batch_size)

    def _locate(self, step: int, batch_size: int) -> tuple[int, int]:
        firsts = self._first_steps.setdefault(batch_size, [0])
        epoch = bisect.bisect_right(firsts, step) - 1
        step -= firsts[epoch]
        while (count := self.count(epoch, (step + 1) * batch_size)) < (step + 1) * batch_size:
            if count < batch_size:
                raise UserError(
                    "config key batch_size",
                    got=f"{batch_size} rows per step, but {count} rows per epoch",
                    expected="at least one full batch in each epoch",
                    fix="use more text, or lower batch_size",
                )
            firsts.append(firsts[epoch] + count // batch_size)
            step = step - count // batch_size
            epoch += 1
        return epoch, step * batch_size

    def count(self, epoch: int, enough: int | None = None) -> int:
        """Returns the number of rows of an epoch. With `enough`, may stop counting once that many are found."""
        total = sum(self._counts[epoch])
        number = len(self._counts[epoch])
        while number < self._num_blocks and (enough is None or total < enough):
            total += self._count(epoch, number)
            number += 1
        return total

    def rows(self, epoch: int, start: int, stop: int) -> PlannedRows:
        """Returns the rows [start, stop) of an epoch, or those that exist."""
        parts = []
        for number in range(self._num_blocks):
            if start >= stop:
                break
            count = self._count(epoch, number)
            if start < count:
                parts.append(self._block(epoch, number).take(np.arange(start, min(stop, count))))
            start = max(start - count, 0)
            stop = stop - count
        return PlannedRows.joined(parts)

    def rows_at(self, numbers: Int64[np.ndarray, " n"]) -> tuple[PlannedRows, Int64[np.ndarray, " n"]]:
        """Returns rows by number, and their epochs. Numbers go on over epochs, and no row is left out.

        Args:
          numbers: increasing numbers; those of an update are near each other.
        """
        parts = []
        epochs = np.zeros_like(numbers)
        start = 0
        while start < len(numbers):
            first = int(numbers[start])
            epoch, row = self.locate(first, 1)
            end = self.count(epoch, row + int(numbers[-1]) - first + 1) - row + first
            stop = int(np.searchsorted(numbers, end))
            of_epoch = self.rows(epoch, row, row + int(numbers[stop - 1]) - first + 1)
            parts.append(of_epoch.take(numbers[start:stop] - first))
            epochs[start:stop] = epoch
            start = stop
        return PlannedRows.joined(parts), epochs

    @property
    def instances_per_epoch(self) -> int:
        """The number of instances in the first epoch, estimated from its first block."""
        return len(self.first_instances) * self._num_blocks

    @property
    def first_instances(self) -> np.ndarray:
        """The instances of the first block of the first epoch (dtype `sentence_pairs.INSTANCE`)."""
        return self._block(0, 0).instances

    def _count(self, epoch: int, number: int) -> int:
        """Returns the number of rows of a block. All earlier blocks of the epoch must have been counted."""
        with self._counting:
            if number == len(self._counts[epoch]):
                self._counts.add(epoch, number, len(self._block(epoch, number)))
            return self._counts[epoch][number]

    def _block(self, epoch: int, number: int) -> PlannedRows:
        """Returns a block, and starts planning the next one."""
        after = (epoch, number + 1) if number + 1 < self._num_blocks else (epoch + 1, 0)
        with self._lock:
            block = self._future(epoch, number)
            self._future(*after)
            while len(self._blocks) > _CACHED_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
        return block.result()

    def _future(self, epoch: int, number: int) -> "Future[PlannedRows]":
        """Returns the future of a block and marks it as most recently used."""
        key = epoch, number
        block = self._blocks.pop(key) if key in self._blocks else self._planner.submit(self._make, epoch, number)
        self._blocks[key] = block
        return block

    def _make(self, epoch: int, number: int) -> PlannedRows:
        size = self._sentences.num_documents
        positions = np.arange(number * size // self._num_blocks, (number + 1) * size // self._num_blocks)
        documents = np.sort(self._sentences.numbers(random.permuted(self._seed, epoch, positions, size)))
        instances = make_instances(
            self._sentences, documents, self._pairs, self._num_special, self._seed, self._masking.epoch_of_draws(epoch)
        )
        row = np.arange(len(instances))
        if self._packing:
            lengths = lengths_of(instances, self._num_special)
            row = pack(lengths, self._packing, self._seed, epoch, 2 * number + 1)
        sizes = np.bincount(row)
        rows = PlannedRows(instances[np.argsort(row, kind="stable")], np.concatenate([[0], np.cumsum(sizes)]))
        return rows.take(random.permutation(self._seed, epoch, len(rows), 2 * number))


class _Counts:
    """The number of rows of each counted block of each epoch, stored in a small file.

    Every process may write its counts: all processes count the same, and the file is replaced atomically. If the file
    is lost or cannot be written, blocks are counted again. It is written when more than a sixteenth of the counts is
    new, so that the cost of writing per epoch does not grow with the number of epochs.
    """

    def __init__(self, path: Path) -> None:
        """Reads the counts in the file, if it exists."""
        self._path = path
        self._counts = self._read()
        self._num_counts = sum(map(len, self._counts.values()))
        self._num_new = 0

    def __getitem__(self, epoch: int) -> list[int]:
        return self._counts.get(epoch, [])

    def add(self, epoch: int, number: int, count: int) -> None:
        """Adds the count of block `number` of an epoch. All blocks before it must have been counted."""
        self._counts[epoch] = [*self[epoch][:number], count]
        self._num_counts += 1
        self._num_new += 1
        if 16 * self._num_new > self._num_counts:
            self._num_new = 0
            self._write()

    def _write(self) -> None:
        counts = self._counts
        written = self._read()
        keys = sorted(counts.keys() | written.keys())
        self._counts = {key: max(counts.get(key, []), written.get(key, []), key=len) for key in keys}
        if self._counts != written:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                writer = f"{os.uname().nodename}-{os.getpid()}-{threading.get_ident()}"
                partial = self._path.with_name(f".{self._path.stem}.{writer}")
                partial.write_text(json.dumps(self._counts))
                partial.rename(self._path)

    def _read(self) -> dict[int, list[int]]:
        with contextlib.suppress(OSError, ValueError):
            return {int(epoch): counts for epoch, counts in json.loads(self._path.read_text()).items()}
        return {}
