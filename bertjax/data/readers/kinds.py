"""Decides by its name how a source is read.

Each reader states the kinds that it reads. Other structured files are errors, because their markup would be read as
lines of text.
"""

import re
from collections.abc import Collection
from pathlib import Path

from bertjax.data.readers import lines
from bertjax.errors import UserError

COLUMNAR = (".parquet", ".arrow")
JSON = (".jsonl", ".json")
TMX = ".tmx"
TABLES = (".tsv", ".csv", *JSON, *COLUMNAR, TMX)
_TFDS_SOURCE = re.compile(r"tfds:(?P<name>[^:]+(:\d+\.[\d*]+\.[\d*]+)?)(:(?P<split>.+))?")
# Suffixes of files that are not lines of text. Other names say nothing about the content.
_STRUCTURED = {
    *(*TABLES, ".ndjson", ".xml", ".sgm", ".sgml", ".xlf", ".xliff", ".tei", ".html", ".htm"),
    *(".docx", ".doc", ".odt", ".rtf", ".pdf", ".epub", ".xlsx", ".xls", ".ods"),
    *(".pt", ".npz", ".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst"),
}


def suffix_of(path: Path) -> str:
    """Returns the suffix of a file's name in lower case, without `.gz`.

    >>> suffix_of(Path("train.TSV.gz"))
    '.tsv'
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix


def find_files(source: str, key: str, reads: Collection[str], plain: str, also: str = "") -> list[Path]:
    """Returns the files of a source, all of a kind that the reader reads; see `lines.find_files` and `kind_of`."""
    paths = lines.find_files(source, key, also)
    for path in paths:
        kind_of(path, key, reads, plain)
    return paths


def kind_of(path: Path, key: str, reads: Collection[str], plain: str) -> str:
    """Returns the suffix of a file if it is in `reads`, or "" for a file of lines.

    Args:
      path: the file.
      key: the config key or --flag that names it, for messages.
      reads: the suffixes that the reader knows.
      plain: what the reader expects in other files, for messages.
    Raises:
      UserError: if the file has another structure, such as JSON, XML or PDF.
    """
    suffix = suffix_of(path)
    if suffix in reads:
        return suffix
    if suffix in _STRUCTURED:
        expected = plain + (f", or a file named {', '.join(reads)}" if reads else "")
        fix = f"convert it, or rename it to .txt if it has {plain}"
        raise UserError(f"{lines.named(key)}={path}", got=f"a {suffix} file", expected=expected, fix=fix)
    return ""


def split_name(source: str, key: str) -> tuple[str, str]:
    """Returns the dataset and the split of `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`; `key` is used in messages."""
    match = _TFDS_SOURCE.fullmatch(source)
    if match is None:
        fix = "name the dataset, for example tfds:lm1b:train"
        raise UserError(lines.named(key), got=repr(source), expected="tfds:NAME[/CONFIG][:VERSION][:SPLIT]", fix=fix)
    return match["name"], match["split"] or "train"
