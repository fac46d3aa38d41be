"""Preparation by Beam: each worker writes the parts of one share of the source, with the code of local preparation.

Workers write files to a folder that all of them can access. No data pass through Beam, so nothing is held in memory
or lost, and an interrupted preparation resumes after the last finished part of each share.
"""

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
from bertjax.files import completed, locked

Documents = Callable[[TextSource], Iterator[list[str]]]

_DONE = "done.json"


def make_parts(
    source: TextSource, documents: Documents, work: Callable[..., None], folder: Path, config: BeamConfig, workers: int
) -> tuple[list[Path], dict[str, int]]:
    """Writes the parts of a source. Returns their paths in the source's order, and the counts of the source.

    Args:
      source: the source, whose shares are distributed.
      documents: returns the documents of a share; importable, like `work`.
      work: writes documents as parts; called as `work(documents, workers=..., parts=...)`.
      folder: the folder of the shares' folders.
      config: the Beam runner.
      workers: see `beam.for_each`.
    Raises:
      UserError: the error of the first share that has one.
    """
    items = list(enumerate(source.shares()))
    function = functools.partial(_make_share, documents=documents, work=work, folder=folder)
    beam.for_each(config, workers, function, items)
    outcomes = [_outcome(folder, number) for number, _ in items]
    paths = [path for number, _ in items for path in _parts(folder, number).paths]
    counts = {name: sum(outcome[name] for outcome in outcomes) for name in outcomes[0]}
    return paths, counts


def _make_share(item: tuple[int, TextSource], documents: Documents, work: Callable[..., None], folder: Path) -> None:
    """Writes the parts of one share. Runs in a worker."""
    number, source = item
    parts = _parts(folder, number)
    with locked(folder / f"{number:06d}.lock"):  # a cluster may run a slow task twice at the same time
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
    """Returns the counts of a share's source. Raises UserError if the share failed or was never processed."""
    path = folder / f"{number:06d}" / _DONE
    if not path.exists():
        fix = "use a data.prepared_dir and source files that all workers can access"
        raise UserError(f"share {number} of the text", got="no result from Beam's workers", expected=f"{path}", fix=fix)
    outcome = json.loads(path.read_text())
    if "error" in outcome:
        raise restored(outcome["error"])
    return dict(outcome)
