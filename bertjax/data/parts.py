"""Finished parts of long work over documents, kept in files: who is interrupted goes on after the last of them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bertjax.files import completed


class Parts:
    """The files of a folder, each the outcome of the documents after those of the file before.

    A file's name says how many documents are done with it, and it appears when it is whole. So whatever moment a
    process is killed at, the next one finds whole parts of the first documents, and nothing else counts.

    Attributes:
      paths: the files, in order.
    """

    def __init__(self, folder: Path, suffix: str) -> None:
        """Args: a folder, made if need be; how its files' names end."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._suffix = folder, suffix
        self.paths = sorted(folder.glob(f"[0-9]*{suffix}"))

    @property
    def num_documents(self) -> int:
        """How many documents, from the first, are done."""
        return int(self.paths[-1].stem) if self.paths else 0

    @contextlib.contextmanager
    def adding(self, num_documents: int) -> Iterator[Path]:
        """Gives a path to write the outcome of so many more documents to; it is a part once that has been done."""
        path = self._folder / f"{self.num_documents + num_documents:015d}{self._suffix}"
        with completed(path) as temporary:
            yield temporary
        self.paths.append(path)
