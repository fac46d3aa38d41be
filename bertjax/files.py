"""Files that appear under their name when they are complete, digests, JSON lines, and the user's cache folder."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_REMEMBERED = 2**24  # bytes: digests of larger files are cached
_SETTLED = 2.0  # seconds since a file's last change from which on another change would show in its time


def cache_folder() -> Path:
    """The folder of caches that may be deleted at any time: `$XDG_CACHE_HOME/bertjax`, by default in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertjax"


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content.

    That of a large file is remembered in the user's cache folder, and used again while the file's size and time of
    modification stay the same.

    Raises:
      OSError: the file cannot be read.
    """
    status = path.stat()
    version = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
    is_large = status.st_size > _REMEMBERED
    if is_large:
        with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
            found = json.loads(_remembered(path).read_text())
            if {**version, "sha256": found["sha256"]} == found:
                return str(found["sha256"])
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if is_large and time.time() - status.st_mtime > _SETTLED:
        with contextlib.suppress(OSError, RuntimeError):
            _remembered(path).parent.mkdir(parents=True, exist_ok=True)
            with completed(_remembered(path)) as partial:
                partial.write_text(json.dumps({**version, "sha256": sha256}))
    return sha256


def _remembered(path: Path) -> Path:
    """The file that remembers the digest of another. Raises RuntimeError if the user has no home."""
    return cache_folder() / "digests" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"


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

    Lines that are no objects are ignored: a process that was killed leaves the line that it was writing half done.
    """
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
