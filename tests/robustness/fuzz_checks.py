"""Independent readers of files, which check the results of fuzzing."""

import json
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.data.readers.lines import MAX_LINE_BYTES

_BOM = b"\xef\xbb\xbf"
_LONGEST = 2**20
_TOLERANCE = 2e-3  # of numbers, because the padding of a row depends on its batch


class Part(NamedTuple):
    """A row of a file, or another part that gives one result.

    Attributes:
      key: what determines the result.
      least, most: the minimum and maximum number of results.
    """

    key: Hashable
    least: int
    most: int


Split = Callable[[Mapping[str, bytes]], list[Part] | None]  # None if the rows are unknown


def same(a: Any, b: Any) -> bool:
    """Returns whether two results are equal, up to the last digits of numbers."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def fault(parts: Sequence[Part], known: Mapping[Hashable, Any], results: Sequence[Any]) -> str:
    """Returns what is wrong with the results, which must follow the order of the parts; "" if nothing is wrong.

    Args:
      parts: the parts of the input.
      known: the correct result of some parts, by their keys.
      results: the results of all parts.
    """
    reached = {0}  # possible numbers of results of the parts so far
    for number, part in enumerate(parts):
        now = set()
        least = part.most if part.key in known else part.least
        for count in reached:
            for given in range(least, part.most + 1):
                found = results[count : count + given]
                if len(found) == given and all(part.key not in known or same(known[part.key], one) for one in found):
                    now.add(count + given)
        if not now:
            at = max(reached)
            got = f"{results[at]!r:.200}" if at < len(results) else f"the end after {len(results)} results"
            expected = f"{known[part.key]!r:.200}" if part.key in known else f"{part.least} to {part.most} results"
            return f"part {number} of {len(parts)}: got {got}; expected {expected}"
        reached = now
    return "" if len(results) in reached else f"{len(results)} results, expected at most {max(reached)}"


def _lines(content: bytes) -> list[bytes]:
    """Returns the lines of a file, without line ends."""
    found = content.removeprefix(_BOM).split(b"\n")
    return [line.removesuffix(b"\r") for line in (found if found[-1] else found[:-1])]


def _is_cut(content: bytes) -> bool:
    """Returns whether a line exceeds the length limit, which makes even a blank line a bad row."""
    return max(map(len, content.split(b"\n"))) > _LONGEST


def only(files: Mapping[str, bytes]) -> bytes:
    """Returns the content of the only file."""
    (content,) = files.values()
    return content


def lines(files: Mapping[str, bytes]) -> list[Part]:
    """Splits files in which each line gives a result, including empty lines."""
    return [Part(line, 1, 1) for line in _lines(only(files))]


def rows(files: Mapping[str, bytes]) -> list[Part]:
    """Splits JSON lines. Blank lines give no result, unless they exceed the length limit and are bad rows."""
    found = [line for line in _lines(only(files)) if line.strip() or len(line) > MAX_LINE_BYTES]
    return [Part(line, 1 if line.strip() else 0, 1) for line in found]


def texts(files: Mapping[str, bytes]) -> list[Part]:
    """Splits JSON lines that may have no text, in which case they give no document."""
    return [part._replace(least=0) for part in rows(files)]


def table(files: Mapping[str, bytes]) -> list[Part]:
    """Splits tables with a header and without quoting. Empty lines give no result."""
    header, *found = [line for line in _lines(only(files)) if line.strip(b"\r")] or [b""]
    return [Part((header, line), 1, 1) for line in found]


def named_table(files: Mapping[str, bytes]) -> list[Part] | None:
    """Splits like `table`. Without the header, the file has one text per line, and tabs make lines bad: None."""
    header = next(iter(_lines(only(files))), b"")
    return table(files) if b"sentence" in header.split(b"\t") else None


def csv(files: Mapping[str, bytes]) -> list[Part] | None:
    """Splits tables with a header and the quoting of RFC 4180."""
    try:
        text = only(files).removeprefix(_BOM).decode()
    except UnicodeDecodeError:
        return None
    found: list[str] = []
    while text:
        end = _csv_row_end(text)
        if end is None:
            return None
        found.append(text[:end].removesuffix("\r"))
        text = text[end + 1 :]
    header, *rest = [row for row in found if row] or [""]
    return [Part((header, row), 1, 1) for row in rest]


def _csv_row_end(text: str) -> int | None:
    """Returns the end of the first row; None if the row is invalid, or readers parse it differently."""
    at, starts_field = 0, True
    while at < len(text) and text[at] != "\n":
        if text[at] == '"':
            at = _closing_quote(text, at) if starts_field else len(text)
            if text[at + 1 : at + 2] not in (",", "\n", "") and text[at + 1 : at + 3] != "\r\n":
                return None
            if at >= len(text):
                return None
            starts_field = False
        elif text[at] == "\0" or (text[at] == "\r" and text[at + 1 : at + 2] != "\n"):
            return None
        else:
            starts_field = text[at] == ","
        at += 1
    return at


def _closing_quote(text: str, start: int) -> int:
    at = start + 1
    while at < len(text):
        if text[at] == '"':
            if text[at + 1 : at + 2] != '"':
                return at
            at += 1
        at += 1
    return at


def groups(files: Mapping[str, bytes]) -> list[Part] | None:
    """Splits sentences in columns: groups of lines between blank lines. Groups of only comments give no result."""
    if _is_cut(only(files)):
        return None
    found: list[list[bytes]] = [[]]
    for line in _lines(only(files)):
        if line.strip() and not line.startswith(b"-DOCSTART-"):
            found[-1].append(line)
        else:
            found.append([])
    return [Part(tuple(group), int(not all(map(_may_be_no_word, group))), 1) for group in found if group]


def _may_be_no_word(line: bytes) -> bool:
    return re.match(rb"#|\d+[-.]\d", line) is not None


def documents(files: Mapping[str, bytes]) -> list[Part] | None:
    """Splits texts at blank lines."""
    if _is_cut(only(files)):
        return None
    try:
        text = [line.decode().strip() for line in _lines(only(files))]
    except UnicodeDecodeError:
        return None
    found: list[list[str]] = [[]]
    for line in text:
        if line:
            found[-1].append(line)
        else:
            found.append([])
    return [Part(tuple(group), 1, 1) for group in found if group]


def pairs(files: Mapping[str, bytes]) -> list[Part]:
    """Splits two files aligned by line. Files of different lengths give no results."""
    one, other = map(_lines, files.values())
    if len(one) != len(other):
        return [Part("files of different lengths", 1, 0)]
    return [Part(sides, 1, 1) for sides in zip(one, other, strict=True)]


def elements(files: Mapping[str, bytes]) -> list[Part] | None:
    """Splits a JSON file with a list."""
    value = _parsed(only(files))
    return [Part(json.dumps(one), 1, 1) for one in value] if isinstance(value, list) else None


def questions(files: Mapping[str, bytes]) -> list[Part] | None:
    """Splits a SQuAD file; None if its structure is damaged, so that questions cannot be counted."""
    try:
        return [
            Part(json.dumps([paragraph["context"], row]), 1, 1)
            for article in _list(_parsed(only(files)), "data")
            for paragraph in _list(article, "paragraphs")
            for row in _list(paragraph, "qas")
        ]
    except (KeyError, TypeError):
        return None


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value[name], list):
        raise TypeError(name)
    found: list[Any] = value[name]
    return found


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content.removeprefix(_BOM).decode())
    except (ValueError, RecursionError):
        return None


def each_file(files: Mapping[str, bytes]) -> list[Part]:
    """Splits files that give one result each."""
    return [Part((name, files[name]), 1, 1) for name in sorted(files)]


def unknown(files: Mapping[str, bytes]) -> None:
    """Returns None for files that have no independent reader: any success is right."""
