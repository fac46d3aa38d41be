"""Result files of long work over documents. An interrupted process resumes after the last finished file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bertjax.files import completed


class Parts:
    """The result files of a folder, in document order.

    A file's name is the number of documents that are done once the file exists. A file appears only when it is
    complete. After a kill at any moment, the next process therefore finds complete results of the first documents.

    Attributes:
      paths: the files, in order.
    """

    def __init__(self, folder: Path, suffix: str) -> None:
        """Opens the folder.

        Args:
          folder: the folder; created if it does not exist.
          suffix: the suffix of the file names.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._suffix = suffix
        self.paths = sorted(folder.glob(f"[0-9]*{suffix}"))

    @property
    def num_documents(self) -> int:
        """The number of documents that are done; they are the first documents."""
        return int(self.paths[-1].stem) if self.paths else 0

    @contextlib.contextmanager
    def add(self, num_documents: int) -> Iterator[Path]:
        """Yields a path to write the results of the next `num_documents` documents to, and adds it on success."""
        path = self._folder / f"{self.num_documents + num_documents:015d}{self._suffix}"
        with completed(path) as temporary:
            yield temporary
        self.paths.append(path)
