"""Files that appear under their name when they are complete, digests, JSON lines, and the user's cache folder."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertjax.errors import UserError

_REMEMBERED = 2**24  # bytes: digests of larger files are cached
PARTS = "parts"  # a folder for intermediate results; see `made_once`
_SETTLED = 2.0  # seconds since a file's last change from which on another change would show in its time


def cache_folder() -> Path:
    """The folder of caches that may be deleted at any time: `$XDG_CACHE_HOME/bertjax`, by default in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertjax"


def with_packaged(path: str) -> str:
    """Returns the path of a config or sweep file: as given if it exists, otherwise the package's copy, if there is one.

    >>> with_packaged("configs/sweeps/no_such_sweep.py")
    'configs/sweeps/no_such_sweep.py'
    """
    own = Path(__file__).parent / path
    return str(own) if own.is_file() and not Path(path).exists() else path


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


def made_once(folder: Path, last: str, write: Callable[[Path], None]) -> None:
    """Makes a folder that appears under its name when it is complete. A second process waits for the first.

    Args:
      folder: the folder.
      last: the file in it that is written last.
      write: writes the content to another folder, FOLDER.partial, which holds what an interrupted process left. `PARTS`
        in it is deleted at the end.
    Raises:
      UserError: as `write`; FOLDER.partial is then deleted.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_suffix(".partial")
    with folder.with_suffix(".lock").open("w") as lock:
        with contextlib.suppress(OSError):  # file systems without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / last).exists():
            return
        partial.mkdir(exist_ok=True)
        try:
            if not (partial / last).exists():
                write(partial)
        except UserError:
            shutil.rmtree(partial)
            raise
        shutil.rmtree(partial / PARTS, ignore_errors=True)
        partial.rename(folder)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file with one a line; none if there is no such file.

    Lines that are no objects are ignored: a process that was killed leaves the line that it was writing half done.
    """
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
