"""Preparation by Beam: a source in shares, each of which a worker makes into parts, as one machine makes all of it.

What is made goes to files in a folder that all workers see, never through Beam: so nothing is held in memory, nothing
can be lost on the way, and an interrupted preparation goes on after the last finished part of each share.
"""

import fcntl
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertjax.data import beam
from bertjax.data.beam import BeamConfig
from bertjax.data.parts import Parts
from bertjax.data.readers.sources import TextSource
from bertjax.errors import UserError, restored
from bertjax.files import completed

Documents = Callable[[TextSource], Iterator[list[str]]]

_DONE = "done.json"


def make_parts(
    source: TextSource,
    documents: Documents,
    work: Callable[..., None],
    folder: Path,
    config: BeamConfig,
    workers: int,
) -> tuple[list[Path], dict[str, int]]:
    """The finished parts of a source, in its order, and what the source counted.

    Args:
      source: whose shares are worked on.
      documents: what of a share is taken; importable, as is `work`.
      work: writes documents as parts, for `documents, workers=..., parts=...`.
      folder: for a folder each share.
      config: where.
      workers: see `beam.for_each`.
    Raises:
      UserError: what was wrong with the first share with which anything was.
    """
    items = list(enumerate(source.shares()))
    function = functools.partial(_make_share, documents=documents, work=work, folder=folder)
    beam.for_each(config, workers, function, items)
    outcomes = [_outcome(folder, number) for number, _ in items]
    paths = [path for number, _ in items for path in _parts(folder, number).paths]
    counts = {name: sum(outcome[name] for outcome in outcomes) for name in outcomes[0]}
    return paths, counts


def _make_share(item: tuple[int, TextSource], documents: Documents, work: Callable[..., None], folder: Path) -> None:
    """A worker's task."""
    number, source = item
    parts = _parts(folder, number)
    with (folder / f"{number:06d}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a cluster may do a slow task twice at once
        done = folder / f"{number:06d}" / _DONE
        if done.exists():
            return
        outcome: dict[str, Any]
        try:
            work(documents(source), workers=1, parts=parts)
            outcome = source.counts
        except UserError as error:
            outcome = {"error": str(error)}
        with completed(done) as path:
            path.write_text(json.dumps(outcome))


def _parts(folder: Path, number: int) -> Parts:
    return Parts(folder / f"{number:06d}", ".part")


def _outcome(folder: Path, number: int) -> dict[str, int]:
    """What a share's source counted. Raises UserError if that was wrong, or the share was never done."""
    path = folder / f"{number:06d}" / _DONE
    if not path.exists():
        raise UserError(
            f"share {number} of the text",
            got="nothing from Beam's workers",
            expected=f"{path}",
            fix="prepare in a folder that all workers see (config.data.prepared_dir), from files that all of them see",
        )
    outcome = json.loads(path.read_text())
    if "error" in outcome:
        raise restored(outcome["error"])
    return dict(outcome)
