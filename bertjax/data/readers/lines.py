"""Files as lines, in bounded memory: finding them, unpacking them, and telling what is wrong with them."""

import collections
import contextlib
import gzip
import itertools
import json
import stat
import zlib
from collections.abc import Generator, Iterator
from glob import glob, has_magic
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from bertjax.config import choice, one_of
from bertjax.errors import UserError
from bertjax.files import digest

T = TypeVar("T")

# What is held in memory of a line. No paragraph comes near it.
MAX_LINE_BYTES = 2**20

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_JSON = "one JSON value in UTF-8 text"


class RowError(UserError):
    """A line, row or record that is wrong by itself, so that `data.on_bad_row=skip` can skip it.

    Attributes:
      where, got, expected: as in the message.
    """

    def __init__(self, where: str, got: str, expected: str, fix: str = "correct the row") -> None:
        skip = "set --config.data.on_bad_row=skip to skip such rows"
        super().__init__(where, got=got, expected=expected, fix=f"{fix}, or {skip}")
        self.where, self.got, self.expected = where, got, expected

    @property
    def reason(self) -> str:
        """The message without the fix."""
        return str(self).rpartition(". Fix: ")[0]


OnBadRow = Annotated[str, one_of("stop", "skip")]


class BadRows:
    """What to do with bad rows, and how many were left out.

    Args:
      on_bad_row: "stop" raises at the first; "skip" leaves it out and counts it. What is wrong with a whole file
        stops in both.
    """

    def __init__(self, on_bad_row: str) -> None:
        self._stop = choice(on_bad_row, ("stop", "skip"), "data.on_bad_row") == "stop"
        self._errors: collections.deque[RowError] = collections.deque(maxlen=0)  # `marked` keeps them
        self.count = 0

    def sift(self, rows: Iterator[T]) -> Iterator[T]:
        """Yields the good rows of an iterator that raises RowError in place of others and can go on, as `map` can."""
        assert not isinstance(rows, Generator), "a generator ends where it raises"
        while True:
            try:
                yield from rows
                return
            except RowError as error:
                if self._stop:
                    raise
                self.count += 1
                self._errors.append(error)

    def marked(self, rows: Iterator[T]) -> Iterator[T | RowError]:
        """Yields rows that come from `sift`, and the error of each skipped row in its place.

        Args:
          rows: read one at a time; any number of `sift` of this object may be behind them.
        """
        self._errors = collections.deque()
        for row in rows:
            yield from self._taken()
            yield row
        yield from self._taken()

    def _taken(self) -> Iterator[RowError]:
        while self._errors:
            yield self._errors.popleft()


class Line(NamedTuple):
    """A line of a file as stored."""

    where: str  # "file:line", from 1
    offset: int  # of its first byte, in the file or in what the .gz unpacks to
    content: bytes  # without its line end
    limit: int  # content is cut one byte after it

    @property
    def is_blank(self) -> bool:
        """Whether it is white space alone. That cannot be known of a longer line, which `decode` refuses."""
        return len(self.content) <= self.limit and not self.content.strip()


def read_lines(path: Path, limit: int) -> Iterator[Line]:
    """Yields the lines of a file, `.gz` or not, holding no more than `limit` bytes of any.

    Lines end in "\\n" alone. A byte order mark at the start of the file is left out.

    Raises:
      UserError: a file that cannot be read, is binary, or is damaged or misnamed gzip.
    """
    with _open(path) as stream:
        offset = len(_BOM) if stream.read(len(_BOM)) == _BOM else 0
        stream.seek(offset)
        prefix = f"{path}:"
        for number in itertools.count(1):
            content = stream.readline(limit + 1)
            if not content:
                return
            yield Line(f"{prefix}{number}", offset, content.removesuffix(b"\n"), limit)
            offset += len(content)
            while len(content) > limit and not content.endswith(b"\n"):
                content = stream.readline(limit + 1)
                offset += len(content)


def decode(line: Line) -> str:
    """Returns the text of a line, without the carriage return of a Windows line end.

    Raises:
      RowError: a line longer than its limit, not UTF-8, or with a NUL character.
    """
    if len(line.content) > line.limit:
        raise too_long(line.where, line.limit)
    try:
        text = line.content.decode("utf-8")
    except UnicodeDecodeError as error:
        got = _not_utf8(error, line.offset)
        raise RowError(line.where, got, "UTF-8 text", "convert the file to UTF-8 (iconv does)") from None
    if "\0" in text:
        raise RowError(line.where, "a NUL character", "text")
    return text.removesuffix("\r")


def decode_object(line: Line) -> dict[str, Any]:
    """Returns the object in a row of JSON lines; raises RowError if it is none."""
    content = decode(line)
    try:
        row = json.loads(content)
    except (ValueError, RecursionError) as error:
        got = f"a row that is not valid JSON ({error})"
        raise RowError(line.where, got, "one JSON object a line") from None
    if not isinstance(row, dict):
        raise RowError(line.where, f"a JSON {type(row).__name__}", "one JSON object a line")
    return row


def check_text(text: str, where: str) -> None:
    """Raises RowError if a string from JSON, or decoded with `surrogateescape`, is no text that UTF-8 can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        if 0x80 <= byte < 0x100:  # where `surrogateescape` puts bytes
            fix = "convert the input to UTF-8 (iconv does)"
            raise RowError(where, f"byte {byte:#04x}, not valid UTF-8", "UTF-8 text", fix) from None
        raise RowError(where, "half of a surrogate pair in the text", "whole characters") from None
    if "\0" in text:
        raise RowError(where, "a NUL character", "text")


def too_long(where: str, limit: int) -> RowError:
    """Returns the error for a line of more than `limit` bytes."""
    return RowError(where, "a longer line", f'at most {limit:,} bytes up to its "\\n"', "break the line up")


def is_json_lines(path: Path) -> bool:
    """Whether a file's name says that it has a JSON object a line."""
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def read_json(path: Path) -> Any:
    """Returns the value in a JSON file, `.gz` or not.

    Raises:
      UserError: a file that cannot be read, is no UTF-8 or no JSON, with line and column.
    """
    with _open(path) as stream:
        content = stream.read()
    start = len(_BOM) if content.startswith(_BOM) else 0
    try:
        return parse_json(content[start:].decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        fix = "convert the file to UTF-8 (iconv does)"
        raise UserError(str(path), got=_not_utf8(error, start), expected=_JSON, fix=fix) from None


def parse_json(text: str, where: str) -> Any:
    """Returns the value that a text is in JSON.

    Args:
      text: without a byte order mark.
      where: its file, for messages.
    Raises:
      UserError: no JSON, with line and column.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where, got = f"{where}:{error.lineno}", f"invalid JSON at column {error.colno} ({error.msg})"
        raise UserError(where, got=got, expected=_JSON, fix="correct the file, or copy it again") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, or as many brackets
        got = f"JSON that cannot be read ({error})"
        raise UserError(where, got=got, expected=_JSON, fix="correct the file") from None


def named(key: str) -> str:
    """Returns how a message names a config key, or a --flag."""
    return key if key.startswith("--") else f"config key {key}"


def find_files(source: str, key: str, also: str = "") -> list[Path]:
    """Returns the files of comma-separated paths and globs (`**` too); those of a glob come in sorted order.

    Args:
      source: the paths and globs.
      key: the config key or --flag that named them, for messages.
      also: what else the key can name, for messages.
    Raises:
      UserError: an empty name, a path that is no regular file, a glob that matches none, a file named twice.
    """
    parts = [part.strip() for part in source.split(",")]
    if not all(parts):
        raise UserError(
            named(key),
            got=f"{source!r}, with an empty name",
            expected=f"paths or globs separated by commas{_or(also)}",
            fix=f"name the files, for example {key if key.startswith('--') else f'--config.{key}'}=folder/*.txt",
        )
    paths = [path for part in parts for path in _matches(part, key, also)]
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UserError(
                f"{named(key)}={source}",
                got=f"{path} twice",
                expected="each file once",
                fix="remove the repetition, or the glob that also matches it",
            )
        seen.add(path.resolve())
    return paths


def fingerprint(path: Path) -> dict[str, Any]:
    """Returns the base name, size and SHA-256 of a file as stored."""
    try:
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest(path)}
    except OSError as error:
        raise unreadable(path, error) from None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Opens a text file, unpacking .gz; what goes wrong in the with block's reads is told as a UserError."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP_MAGIC
        _check_name(path, is_gzip)
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as stream:
            if b"\0" in stream.peek(1):
                raise UserError(
                    str(path),
                    got="a binary file (it has NUL bytes)",
                    expected="UTF-8 text",
                    fix="convert it to UTF-8 text, or leave it out of the config",
                )
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            str(path),
            got=f"a damaged or truncated gzip file ({error})",
            expected="a complete one",
            fix="make or copy the file again (gzip -t tests one)",
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _check_name(path: Path, is_gzip: bool) -> None:
    if is_gzip != (path.suffix == ".gz"):
        raise UserError(
            str(path),
            got="gzip data in a file not named .gz" if is_gzip else "a file named .gz that is not gzip",
            expected="the name to end in .gz if and only if the file is gzip",
            fix="rename the file, or compress it with gzip",
        )


def _matches(part: str, key: str, also: str) -> list[Path]:
    """Returns the file that `part` names, or else the files that it matches as a glob, sorted."""
    path = Path(part)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _globbed(part, key, also)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if stat.S_ISDIR(mode):
        fix = f"name its files, for example {path / '*.txt'} or {path / '**' / '*.txt'}"
        raise UserError(f"{named(key)}={part}", got="a folder", expected="files", fix=fix)
    if not stat.S_ISREG(mode):
        got, fix = "something that is not a regular file", "copy its content to a file"
        raise UserError(f"{named(key)}={part}", got=got, expected="files", fix=fix)
    return [path]


def _globbed(part: str, key: str, also: str) -> list[Path]:
    # Path.glob would match hidden files, and takes ** differently in different Python versions.
    names = sorted(glob(part, recursive=True)) if has_magic(part) else []  # noqa: PTH207
    files = [name for name in names if not Path(name).is_dir()]
    if not files:
        raise UserError(
            f"{named(key)}={part}",
            got="a pattern that matches no file" if has_magic(part) else "a path that does not exist",
            expected=f"files seen from {Path.cwd()}{_or(also)}",
            fix="correct the path",
        )
    return [path for file in files for path in _matches(file, key, also)]


def _or(also: str) -> str:
    return f", or {also}" if also else ""


def _not_utf8(error: UnicodeDecodeError, offset: int) -> str:
    return f"byte {error.object[error.start]:#04x} at byte offset {offset + error.start}, not valid UTF-8"


def unreadable(path: Path, error: Exception) -> UserError:
    """Returns the error for a file that the operating system refuses to read."""
    reason = getattr(error, "strerror", None) or str(error)
    fix = "correct the path, or the file's permissions"
    return UserError(str(path), got=f"an unreadable file ({reason})", expected="a readable one", fix=fix)
