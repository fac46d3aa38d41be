"""Runs `launch.py` slowly, and writes a line for each row of each training batch: batch, row and sha256.

The lines go to a file in the folder that the environment variable BATCH_HASHES names.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from absl import app

from bertjax import launch
from bertjax.experiments.bert_pretraining import Data

_SECONDS = 0.2  # between batches, so that a run can be killed at some step


@contextlib.contextmanager
def hashing(folder: Path, seconds: float = 0.0) -> Iterator[None]:
    """Writes the hashes of training batches to a file in `folder`, and waits `seconds` between batches."""
    original = Data.batches

    def batches(data, split, start, rows):
        for index, batch in enumerate(original(data, split, start, rows), start):
            if split == "train":
                for place, row in enumerate(rows):
                    content = b"".join(batch[name][place].tobytes() for name in sorted(batch))
                    log.write(f"{index} {row} {hashlib.sha256(content).hexdigest()}\n")
                log.flush()
                time.sleep(seconds)
            yield batch

    with (folder / str(os.getpid())).open("w") as log, mock.patch.object(Data, "batches", batches):
        yield


def main() -> None:
    """Runs `launch.py` with hashing."""
    with hashing(Path(os.environ["BATCH_HASHES"]), _SECONDS):
        app.run(launch.main, flags_parser=launch._parse_flags)


if __name__ == "__main__":
    main()
