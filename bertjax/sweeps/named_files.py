"""The files and datasets that a config names, looked for before anything starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.data.readers import tables
from bertjax.data.readers.sources import split_name
from bertjax.data.summarization import article_formats
from bertjax.errors import UserError

_SOURCES = tuple(f"{split}{side}" for split in ("", "valid_", "test_") for side in ("source", "target"))
_VOCABULARIES = ("vocab_file", "target_vocab_file")
_BUILT_IN = ("", "documentation", "dates")
_LATER = "{workdir}"  # a sweep's folder, in which an earlier run writes the file


def check_named_files(data: Mapping[str, Any]) -> None:
    """Checks that sources and vocabularies are there, without reading them.

    Args:
      data: the subtree of that name of any task's config.
    Raises:
      UserError: a file, a glob's files, a vocabulary or a TFDS dataset that does not exist.
    """
    for key in _SOURCES:
        source = data.get(key) or ""
        if source.startswith("tfds:"):
            # Imported here, so that only those who read TFDS wait for it.
            from bertjax.data.readers.records import RowRecords

            RowRecords(*split_name(source, f"data.{key}"), f"data.{key}")
        elif source not in _BUILT_IN and _LATER not in source:
            is_of_articles = "article_field" in data  # which may be in folders
            find = article_formats.find_files if is_of_articles else tables.find_files
            is_of_pairs = "target" in data  # whose files are found one by one, and may come twice
            for name in source.split(",") if is_of_pairs else [source]:
                find(name.strip(), f"data.{key}")
    for key in _VOCABULARIES:
        path = data.get(key) or ""
        if not (path == "" or _LATER in path or Path(path).exists() or Path(f"{path}.index").exists()):
            raise UserError(
                f"config key data.{key}",
                got=f"{path}, which does not exist",
                expected="a vocab.txt, or a folder with a vocabulary",
                fix="correct the path",
            )
