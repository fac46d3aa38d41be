"""Decides by its name how a file is read.

Each reader states the kinds that it reads. Other structured files are errors, because their markup would be read as
lines of text.
"""

from collections.abc import Collection
from pathlib import Path

from bertjax.data.readers.lines import named
from bertjax.errors import UserError

COLUMNAR = (".parquet", ".arrow")
TABLES = (".tsv", ".csv", ".jsonl", *COLUMNAR)
# Suffixes of files that are not lines of text. Other names say nothing about the content.
_STRUCTURED = {
    *(*TABLES, ".json", ".ndjson", ".xml", ".tmx", ".sgm", ".sgml", ".xlf", ".xliff", ".tei", ".html", ".htm"),
    *(".docx", ".doc", ".odt", ".rtf", ".pdf", ".epub", ".xlsx", ".xls", ".ods"),
    *(".pt", ".npz", ".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst"),
}


def suffix_of(path: Path) -> str:
    """Returns the suffix of a file's name in lower case, without `.gz`.

    >>> suffix_of(Path("train.TSV.gz"))
    '.tsv'
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix


def kind_of(path: Path, key: str, reads: Collection[str], lines: str) -> str:
    """Returns the suffix of a file if it is in `reads`, or "" for a file of lines.

    Args:
      path: the file.
      key: the config key or --flag that names it, for messages.
      reads: the suffixes that the reader knows.
      lines: what the reader expects in other files, for messages.
    Raises:
      UserError: if the file has another structure, such as JSON, XML or PDF.
    """
    suffix = suffix_of(path)
    if suffix in reads:
        return suffix
    if suffix in _STRUCTURED:
        raise UserError(
            f"{named(key)}={path}",
            got=f"a {suffix} file",
            expected=", ".join(filter(None, [*reads, lines])),
            fix=f"convert it to one of these, or rename it to .txt if it has {lines}",
        )
    return ""
