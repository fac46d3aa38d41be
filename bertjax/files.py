"""Files that appear under their name when they are whole, and lines of JSON of which the last may not be."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def completed(path: Path) -> Iterator[Path]:
    """Gives a temporary path to write to, which becomes `path` if nothing fails, and is deleted otherwise."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file with one a line; none if there is no such file.

    A process that was killed leaves the line that it was writing half done; such a line is passed over.
    """
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
