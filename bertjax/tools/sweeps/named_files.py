"""Checks that the files and datasets named in a config exist, before a sweep starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.data.codecs.summarization import article_formats
from bertjax.data.readers import tables
from bertjax.data.readers.kinds import split_name
from bertjax.errors import UserError

_SOURCES = tuple(f"{split}{side}" for split in ("", "valid_", "test_") for side in ("source", "target"))
_VOCABULARIES = ("vocab_file", "target_vocab_file")
_BUILT_IN = ("", "documentation", "dates")
_LATER = "{workdir}"  # the sweep's folder: an earlier run writes the file


def check_named_files(data: Mapping[str, Any]) -> None:
    """Checks that sources and vocabularies exist, without reading them.

    Args:
      data: the subtree `data` of a config.
    Raises:
      UserError: if a file, a vocabulary or a TFDS dataset does not exist, or a glob matches no file.
    """
    sources = {key: data.get(key) or "" for key in _SOURCES}
    for name, source, _, *options in data.get("mixture") or ():
        sources[f"mixture of {name}"] = source
        sources[f"mixture of {name}, valid_source"] = dict(*options).get("valid_source", "")
    for key, source in sources.items():
        if source.startswith("tfds:"):
            # Imported here, because the import is slow and only TFDS needs it.
            from bertjax.data.readers.records import RowRecords

            RowRecords(*split_name(source, f"data.{key}"), f"data.{key}")
        elif source not in _BUILT_IN and _LATER not in source:
            is_of_articles = "article_field" in data  # articles can be in folders
            find = article_formats.find_files if is_of_articles else tables.find_files
            is_of_pairs = "target" in data  # each side lists its files, which may repeat
            for name in source.split(",") if is_of_pairs else [source]:
                find(name.strip(), f"data.{key}")
    for key in _VOCABULARIES:
        path = data.get(key) or ""
        if not (path == "" or _LATER in path or Path(path).exists() or Path(f"{path}.index").exists()):
            raise UserError(
                f"config key data.{key}",
                got=f"{path}, which does not exist",
                expected="a vocab.txt, or a tokenizer.json, or a folder with a vocabulary",
                fix="correct the path",
            )
