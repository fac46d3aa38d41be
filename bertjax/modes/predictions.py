"""Prediction files with one line per record. An interrupted prediction can resume its file."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from bertjax import distributed, files
from bertjax.contract import ConfigTree
from bertjax.modes import streams
from bertjax.runs import checkpoints

_OF_MODEL = (".json", ".model", ".txt")  # suffixes of the files that describe a run's parameters


def fingerprint(config: ConfigTree, weights: str, source: str) -> str:
    """Returns a digest of everything that predictions depend on; "" if the input cannot be read a second time.

    Args:
      config: the config of the run or of the prediction.
      weights: the digest of the run's parameters (`checkpoints.digest`); "" to digest the files in `init_from`.
      source: the input; "-" for standard input.
    """
    if not Path(source).is_file():
        return ""
    parts = [config, weights or weights_digest(Path(config["init_from"])), files.digest(Path(source))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def weights_digest(weights: Path) -> list[list[str]]:
    """Returns names and digests of the files of published weights: a folder, or files whose names begin alike.

    Of a run, only the final parameters and the files that describe them count, because it may still be training.
    """
    if checkpoints.has_checkpoint(weights):
        paths = [path for path in weights.iterdir() if path.suffix in _OF_MODEL]
        parameters = [["checkpoint", checkpoints.digest(weights, "final")]]
    else:
        paths = [*(weights.rglob("*") if weights.is_dir() else weights.parent.glob(f"{weights.name}*"))]
        parameters = []
    return parameters + sorted([str(path), files.digest(path)] for path in paths if path.is_file())


@contextlib.contextmanager
def open_lines(
    name: str, is_writer: bool, made_of: str, header: str = "", *, is_quoted: bool = False
) -> Iterator[tuple[TextIO, int]]:
    """Opens a file for lines and yields it with the number of lines that an interrupted process has already written.

    Lines are written to a partial file in the same folder, which is renamed when the block ends. After an error the
    partial file is kept, and the next call with the same `made_of` resumes it.

    Args:
      name: the file; "-" and devices are written to directly.
      is_writer: whether this process writes the file. The others get the same number.
      made_of: a `fingerprint`; "" for a file that cannot be resumed.
      header: the first line, which is written here and does not count; "" for none.
      is_quoted: whether a line break between double quotes is part of a line, as in CSV.
    Raises:
      UserError: if another process is writing the file.
    """
    path = Path(name)
    if not made_of or name == "-" or (path.exists() and not path.is_file()):
        with streams.open_output(name, is_writer) as file:
            file.write(header)
            yield file, 0
        return
    partial = path.with_name(f"{path.name}.{made_of}.partial")
    with streams.named_errors(name), files.alone(path) if is_writer else contextlib.nullcontext():
        done = distributed.of_first_process(_keep_whole_lines(partial, is_quoted) if is_writer else 0)
        with (partial if is_writer else Path(os.devnull)).open("a", 1, "utf-8") as file:
            if not done:
                file.write(header)
            yield file, max(0, done - bool(header))
        if is_writer:
            partial.replace(path)


def _keep_whole_lines(path: Path, is_quoted: bool) -> int:
    """Truncates a file after its last complete line; returns the number of lines. See `open_lines`."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    count = 0
    end = 0
    quotes = 0
    start = 0
    while stop := content.find(b"\n", start) + 1:
        quotes += content.count(b'"', start, stop)
        start = stop
        if not (is_quoted and quotes % 2):  # quotes are doubled within a field, so they are even at the end of a row
            count += 1
            end = stop
    if end < len(content):
        path.write_bytes(content[:end])
    return count
