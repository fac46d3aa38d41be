"""The epoch plan: for every step, which rows of text its batch holds.

An epoch's rows are cut from sentence lengths alone (`sentence_pairs.make_rows`), shuffled, written once and
memory-mapped. Rows and order are pure functions of (seed, epoch), so every process has the same plan, and a
training run that starts at any step needs nothing but that step.
"""

import hashlib
import os
import threading
from pathlib import Path

import numpy as np

from bertjax.data import random
from bertjax.data.masking import MaskingConfig
from bertjax.data.sentence_pairs import ROW, PairsConfig, Sentences, make_rows
from bertjax.errors import UserError

# A row of the plan: its text, and its number in the epoch that drew it, which keys its masking.
PLANNED_ROW = np.dtype([*((name, ROW.fields[name][0]) for name in ROW.names), ("number", np.int32)])  # type: ignore[index,union-attr]

# Part of the name of every plan: raise it when the same settings would give other rows.
_FORMAT = 1


class Plan:
    """The rows of every epoch of one split, made when first asked for."""

    def __init__(
        self, sentences: Sentences, pairs: PairsConfig, masking: MaskingConfig, *, seed: int, folder: Path
    ) -> None:
        """Args: the split's sentences; how rows are cut and repeated; the seed; where epochs are written."""
        self._sentences, self._pairs, self._masking, self._seed = sentences, pairs, masking, seed
        settings = repr((_FORMAT, pairs, masking.mode, masking.dupe_factor, seed, PLANNED_ROW.descr))
        self._folder = folder / hashlib.sha256(settings.encode()).hexdigest()[:16]
        self._epochs: dict[int, np.ndarray] = {}

    def rows(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in the order of their use (dtype `PLANNED_ROW`)."""
        if epoch not in self._epochs:
            self._epochs[epoch] = self._open(epoch)
        return self._epochs[epoch]

    def locate(self, step: int, batch_size: int) -> tuple[int, int]:
        """The epoch of a step, and the step's place in that epoch; rows beyond the last full batch are left.

        Raises:
          UserError: an epoch has fewer rows than a batch.
        """
        epoch = 0
        while step >= (steps := len(self.rows(epoch)) // batch_size):
            if not steps:
                raise UserError(
                    "config key batch_size",
                    got=f"{batch_size} rows a step, but {len(self.rows(epoch))} rows in an epoch",
                    expected="at least one full batch in each epoch",
                    fix="give more text, or lower batch_size",
                )
            step, epoch = step - steps, epoch + 1
        return epoch, step

    def _open(self, epoch: int) -> np.ndarray:
        path = self._folder / f"{epoch:05d}.npy"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            # Every thread of every process may write the same bytes; the rename leaves a whole file whoever is last.
            writer = f"{os.uname().nodename}-{os.getpid()}-{threading.get_ident()}"
            partial = self._folder / f".{epoch:05d}.{writer}.npy"
            np.save(partial, self._make(epoch))
            partial.rename(path)
        return np.load(path, mmap_mode="r")

    def _make(self, epoch: int) -> np.ndarray:
        rows = make_rows(self._sentences, self._pairs, self._seed, self._masking.epoch_of_draws(epoch))
        planned = np.empty(len(rows), PLANNED_ROW)
        for name in ROW.names or ():
            planned[name] = rows[name]
        planned["number"] = np.arange(len(rows))
        return planned[random.permutation(self._seed, epoch, len(rows))]
