"""Atomic creation of files and folders, locks, digests, JSON lines, and the user's cache folder."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from bertjax.errors import UserError

_CACHED_ABOVE = 2**24  # bytes: digests of larger files are cached
PARTS = "parts"  # a folder for intermediate results; see `made_once`
MANIFEST = "manifest.json"  # the last file of a folder that `made_once` makes
_MIN_AGE = 2.0  # seconds; a digest of a younger file is not cached: its time may not show another change


_JSON_TOKEN = re.compile(r'[{}]|"(?P<text>(?:[^"\\]|\\.)*)"(?P<is_key>\s*:)?')


class RepeatedKeyError(ValueError):
    """A JSON object has a key twice. The `json` module would keep the last value."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise RepeatedKeyError(f"the key {key!r} twice in an object")
    return values


JSON = json.JSONDecoder(object_pairs_hook=_unique)  # takes about a fifth longer than `json.loads`


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text, as `json.loads` does.

    Raises:
      json.JSONDecodeError: if the text is not valid JSON, or an object has a key twice.
      UnicodeDecodeError: if the text is not in UTF-8, UTF-16 or UTF-32.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return JSON.decode(text)
    except RepeatedKeyError as error:
        raise json.JSONDecodeError(str(error), text, _repeated_key(text)) from None


def _repeated_key(text: str) -> int:
    """Returns the position of the first key that its object has already."""
    objects: list[set[str]] = []  # the keys so far of the open objects
    for token in _JSON_TOKEN.finditer(text):
        if token[0] == "{":
            objects.append(set())
        elif token[0] == "}":
            objects.pop()
        elif token["is_key"]:
            key = json.loads(f'"{token["text"]}"', strict=False)
            if key in objects[-1]:
                return token.start()
            objects[-1].add(key)
    return 0


def cache_folder() -> Path:
    """The folder of caches that may be deleted at any time: `$XDG_CACHE_HOME/bertjax`, by default in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertjax"


@contextlib.contextmanager
def standard_output() -> Iterator[TextIO]:
    """Yields standard output. Output is discarded after its reader, such as `head`, has exited."""
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def with_packaged(path: str) -> str:
    """Returns the path of a config or sweep file: as given if it exists, otherwise the package's copy, if there is one.

    >>> with_packaged("configs/sweeps/no_such_sweep.py")
    'configs/sweeps/no_such_sweep.py'
    """
    packaged = Path(__file__).parent / path
    return str(packaged) if packaged.is_file() and not Path(path).exists() else path


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content.

    The digest of a large file is cached in the user's cache folder. It is reused while the file's size, modification
    time and inode are unchanged.

    Raises:
      OSError: if the file cannot be read.
    """
    status = path.stat()
    version = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
    is_large = status.st_size > _CACHED_ABOVE
    if is_large:
        with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
            record = json.loads(_cached_digest(path).read_text())
            if {**version, "sha256": record["sha256"]} == record:
                return str(record["sha256"])
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if is_large and time.time() - status.st_mtime > _MIN_AGE:
        with contextlib.suppress(OSError, RuntimeError):
            _cached_digest(path).parent.mkdir(parents=True, exist_ok=True)
            with completed(_cached_digest(path)) as partial:
                partial.write_text(json.dumps({**version, "sha256": sha256}))
    return sha256


def _cached_digest(path: Path) -> Path:
    """The cache file for the digest of `path`. Raises RuntimeError if the user has no home folder."""
    return cache_folder() / "digests" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"


class Fingerprint(str):
    """A digest of a description of data. Of the names of files, only their suffixes count.

    Attributes:
      earlier: the digest of versions in which the base names counted; what they recorded stays valid.
    """

    earlier: str

    @classmethod
    def of(cls, content: Any, *, length: int | None = None, **options: Any) -> "Fingerprint":
        """Returns the fingerprint of a JSON-serializable description.

        Args:
          content: the description. It may contain results of `lines.fingerprint`, with base name, size and SHA-256.
          length: the number of characters; None for all.
          options: those of `json.dumps`.
        """
        contents = _without_names(content), content
        now, earlier = (hashlib.sha256(json.dumps(one, **options).encode()).hexdigest()[:length] for one in contents)
        fingerprint = cls(now)
        fingerprint.earlier = earlier
        return fingerprint

    def is_of(self, recorded: str) -> bool:
        """Whether this version or an earlier one recorded the same data."""
        return recorded in (self, self.earlier)


def _without_names(content: Any) -> Any:
    """Returns a description in which files have the suffix of their name without ".gz" in place of the name."""
    if isinstance(content, Mapping):
        parts = {key: _without_names(value) for key, value in content.items()}
        if content.keys() == {"name", "bytes", "sha256"}:
            parts["name"] = Path(content["name"].lower().removesuffix(".gz")).suffix
        return parts
    return [_without_names(value) for value in content] if isinstance(content, (list, tuple)) else content


@contextlib.contextmanager
def completed(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to. It is renamed to `path` on success and deleted on failure.

    The file gets the permissions of a new file, whatever the library that writes it sets: safetensors sets 0600.
    """
    temporary = path.with_name(f".{path.name}.partial")
    temporary.unlink(missing_ok=True)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_files(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Writes files by name to a folder, which is created if necessary. Each appears when it is complete.

    Args:
      folder: the folder.
      contents: bytes, or text to write in UTF-8.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with completed(folder / name) as path:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def locked(path: Path, refusal: UserError | None = None, *, is_temporary: bool = False) -> Iterator[None]:
    """Holds the lock of a file, which it creates. Does nothing if the file system has no locks.

    Args:
      path: the file.
      refusal: the error to raise if another process holds the lock; None to wait for that process.
      is_temporary: whether to delete the file in the end.
    """
    with contextlib.ExitStack() as held:
        while True:
            file = held.enter_context(path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal else 0))
            except BlockingIOError as error:
                assert refusal
                raise refusal from error
            except OSError:
                break
            # The process that had the lock may have deleted its file between the two calls.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                break
        try:
            yield
        finally:
            if is_temporary:
                path.unlink(missing_ok=True)


def alone(path: Path) -> contextlib.AbstractContextManager[None]:
    """Holds the lock `PATH.lock` while an output is written; see `locked`.

    Raises:
      UserError: if another process holds the lock.
    """
    refusal = UserError(
        f"--output={path}",
        got="an output that another process is writing",
        expected="one process per output",
        fix="wait for the other process, or choose another --output",
    )
    return locked(path.with_name(path.name + ".lock"), refusal, is_temporary=True)


def made_once(folder: Path, write: Callable[[Path], Mapping[str, Any]]) -> None:
    """Makes a folder that appears under its name only when it is complete. A second process waits for the first.

    Args:
      folder: the folder.
      write: writes the content to a temporary folder, FOLDER.partial, which keeps the files of an interrupted process.
        Its subfolder `PARTS` is deleted at the end. Returns the manifest, which is written last, with the size of each
        file.
    Raises:
      UserError: if `write` raises it. FOLDER.partial is then deleted.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_suffix(".partial")
    with locked(folder.with_suffix(".lock")):
        if (folder / MANIFEST).exists():
            return
        partial.mkdir(exist_ok=True)
        try:
            if not (partial / MANIFEST).exists():
                _write_manifest(partial, write(partial))
        except UserError:
            shutil.rmtree(partial)
            raise
        shutil.rmtree(partial / PARTS, ignore_errors=True)
        partial.rename(folder)


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    sizes = {str(path): (folder / path).stat().st_size for path in paths if path.parts[0] != PARTS}
    with completed(folder / MANIFEST) as path:
        path.write_text(json.dumps({**manifest, "files": sizes}, indent=1) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a folder that `made_once` made.

    Raises:
      UserError: if the folder has lost a file or a part of one. Folders of earlier versions are not checked.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except ValueError:
        raise _damaged(folder, MANIFEST, "not JSON") from None
    for name, size in manifest.get("files", {}).items():
        num_bytes = (folder / name).stat().st_size if (folder / name).exists() else 0
        if num_bytes != size:
            raise _damaged(folder, name, f"{num_bytes:,} of {size:,} bytes")
    return manifest


def _damaged(folder: Path, name: str, got: str) -> UserError:
    got = f"a damaged file of prepared data ({got})"
    fix = f"delete {folder}, so that it is prepared again"
    return UserError(str(folder / name), got=got, expected="the whole file", fix=fix)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects of a file with one object per line; none if the file does not exist.

    Other lines are ignored: a killed process may leave an incomplete line.
    """
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
