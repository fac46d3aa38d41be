"""Manifests of checkpoints: the digests of all files of a step, by which reading verifies them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from bertjax.errors import UserError

_FILE = "manifest.json"


def write(folder: Path, items: Sequence[str]) -> None:
    """Writes the digests of the files of a step's items."""
    (folder / _FILE).write_text(json.dumps(_digests(folder, items), indent=1))


def verify(folder: Path, items: Sequence[str]) -> None:
    """Compares the files of a step's items with its manifest. Raises UserError if they differ."""
    actual = _digests(folder, items)
    for name, digest in read(folder).items():
        if name.split("/")[0] in items and actual.get(name) != digest:
            got = f"sha256 {actual[name][:16]}..." if name in actual else "no such file"
            raise damaged(folder / name, got, f"sha256 {digest[:16]}..., as saved", folder)


def read(folder: Path) -> dict[str, str]:
    """Returns the digests of a step's files. Raises UserError if they cannot be read."""
    path = folder / _FILE
    try:
        digests = json.loads(path.read_text())
        if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
            raise ValueError(f"{digests}")
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error), "the digests of the checkpoint's files", folder) from error
    return digests


def damaged(path: Path, got: str, expected: str, folder: Path) -> UserError:
    """Returns the error of a damaged file of a step's folder."""
    fix = f"restore the file, or delete {folder} to resume from the previous checkpoint"
    return UserError(f"checkpoint file {path}", got=got, expected=expected, fix=fix)


def _digests(folder: Path, items: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of each file of the given items."""
    digests = {}
    for path in sorted(path for item in items for path in (folder / item).rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digests[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
