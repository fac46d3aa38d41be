"""Files that appear under their name when they are whole, and not before."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def completed(path: Path) -> Iterator[Path]:
    """Gives a temporary path to write to, which becomes `path` if nothing fails, and is deleted otherwise."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
