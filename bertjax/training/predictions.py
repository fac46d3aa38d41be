"""Files of predictions, a line each, that a process which was stopped is gone on from."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from bertjax.errors import UserError
from bertjax.training import distributed, streams


def fingerprint(config: Mapping[str, Any], checkpoint: str, source: str) -> str:
    """What predictions follow from, in short; "" where that cannot be had again.

    Args:
      config: of the run, or of what predicts without one.
      checkpoint: which of the run's; "" for the weights in `init_from`, which are told by the times of their files.
      source: the file that is predicted on; "-" for standard input.
    """
    if not Path(source).is_file():
        return ""
    with Path(source).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    weights = checkpoint or _times(Path(config["init_from"]))
    return hashlib.sha256(json.dumps([config, weights, digest], sort_keys=True).encode()).hexdigest()[:16]


def _times(weights: Path) -> list[tuple[str, int]]:
    """When the files of a folder, or with names that begin so, were written."""
    files = weights.rglob("*") if weights.is_dir() else weights.parent.glob(f"{weights.name}*")
    return sorted((str(path), path.stat().st_mtime_ns) for path in files if path.is_file())


@contextlib.contextmanager
def open_lines(name: str, is_writer: bool, made_of: str) -> Iterator[tuple[TextIO, int]]:
    """A file for lines, and how many there are already: those that a process before this one got to.

    Lines go to a file beside it, which gets its name when the block ends. If that is by an error of the user's, it is
    deleted; otherwise the next call with the same `made_of` finds it.

    Args:
      name: the file; or "-" or a device, which are written to as they are.
      is_writer: whether this process writes it; the others are told the same number.
      made_of: a `fingerprint`; without one, lines do not outlive the process.
    """
    path = Path(name)
    if not made_of or name == "-" or (path.exists() and not path.is_file()):
        with streams.open_output(name, is_writer) as file:
            yield file, 0
        return
    partial = path.with_name(f"{path.name}.{made_of}.partial")
    done = distributed.of_first_process(_keep_whole_lines(partial) if is_writer else 0)
    try:
        with streams.named_errors(name), (partial if is_writer else Path(os.devnull)).open("a", 1, "utf-8") as file:
            yield file, done
        if is_writer:
            with streams.named_errors(name):
                partial.replace(path)
    except UserError:
        if is_writer:
            partial.unlink(missing_ok=True)
        raise


def _keep_whole_lines(path: Path) -> int:
    """Cuts a file after its last whole line; returns how many there are."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return whole.count(b"\n")
