"""Finds files and reads them as lines in bounded memory, unpacks gzip, and reports errors."""

import collections
import contextlib
import gzip
import itertools
import json
import re
import stat
import zlib
from collections.abc import Generator, Iterator, Mapping
from glob import glob, has_magic
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar

from bertjax import files
from bertjax.config import choice, one_of
from bertjax.errors import UserError

T = TypeVar("T")

# The part of a line that is held in memory. Paragraphs are much shorter.
MAX_LINE_BYTES = 2**20

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")  # not blanks, line ends, form feed and escape
_JSON = "one JSON value in UTF-8 text"


class RowError(UserError):
    """A bad line, row or record, which `data.on_bad_row=skip` can skip.

    Attributes:
      where, got, expected: the parts of the message.
      columns: the values of a table's row by column, if it could be read.
    """

    columns: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, where: str, got: str, expected: str, fix: str = "correct the row") -> None:
        skip = "set --config.data.on_bad_row=skip to skip such rows"
        super().__init__(where, got=got, expected=expected, fix=f"{fix}, or {skip}")
        self.where = where
        self.got = got
        self.expected = expected

    @property
    def reason(self) -> str:
        """The message without the fix."""
        return str(self).rpartition(". Fix: ")[0]


@contextlib.contextmanager
def of_row(columns: Mapping[str, Any]) -> Iterator[None]:
    """Adds the values of a table's row, by column, to a RowError of the block."""
    try:
        yield
    except RowError as error:
        error.columns = columns
        raise


OnBadRow = Annotated[str, one_of("stop", "skip")]


class BadRows:
    """The treatment of bad rows, and the number of skipped ones.

    Attributes:
      on_bad_row: "stop" raises the first error; "skip" skips and counts bad rows. Errors of a whole file are always
        raised.
    """

    def __init__(self, on_bad_row: str) -> None:
        self.on_bad_row = choice(on_bad_row, ("stop", "skip"), "data.on_bad_row")
        self._errors: collections.deque[RowError] = collections.deque(maxlen=0)  # `marked` replaces it to keep errors
        self.count = 0

    def skipped(self, what: str = "bad rows") -> str:
        """Returns the number of skipped rows for a log line, such as ", 2 bad rows skipped"; "" if there are none."""
        return f", {self.count} {what} skipped" if self.count else ""

    def sift(self, rows: Iterator[T]) -> Iterator[T]:
        """Yields the good rows of an iterator that can continue after it raises RowError, as `map` can."""
        assert not isinstance(rows, Generator), "a generator ends when it raises"
        while True:
            try:
                yield from rows
                return
            except RowError as error:
                if self.on_bad_row == "stop":
                    raise
                self.count += 1
                self._errors.append(error)

    def marked(self, rows: Iterator[T]) -> Iterator[T | RowError]:
        """Yields the rows of `sift`, and in place of each skipped row its error.

        Args:
          rows: an iterator over the results of any number of `sift` calls of this object, read one at a time.
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
    """A line of a file, as stored."""

    where: str  # "file:line", counted from 1
    offset: int  # of the first byte, in the file or in the unpacked .gz
    content: bytes  # without the line end
    limit: int  # content is truncated one byte after it

    @property
    def is_blank(self) -> bool:
        """Whether the line is only white space. False for lines over the limit, which `decode` rejects."""
        return len(self.content) <= self.limit and not self.content.strip()


def read_lines(path: Path, limit: int) -> Iterator[Line]:
    """Yields the lines of a file, `.gz` or not. Holds at most `limit` bytes of a line in memory.

    Only "\\n" ends a line. A byte order mark at the start of the file is removed.

    Raises:
      UserError: if a file cannot be read, is binary, or is a damaged or misnamed gzip file.
    """
    with open_file(path) as stream:
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
      RowError: if the line exceeds its limit, is not UTF-8, or has a NUL character.
    """
    if len(line.content) > line.limit:
        raise too_long(line.where, line.limit)
    try:
        text = line.content.decode("utf-8")
    except UnicodeDecodeError as error:
        got = not_utf8(error, line.offset)
        raise RowError(line.where, got, "UTF-8 text", "convert the file to UTF-8, for example with iconv") from None
    if "\0" in text:
        raise RowError(line.where, "a NUL character", "text")
    return text.removesuffix("\r")


def check_text(text: str, where: str) -> None:
    """Raises RowError if a string from JSON, or decoded with `surrogateescape`, cannot be encoded as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        if 0x80 <= byte < 0x100:  # the surrogates of `surrogateescape`
            fix = "convert the input to UTF-8, for example with iconv"
            raise RowError(where, f"byte {byte:#04x}, not valid UTF-8", "UTF-8 text", fix) from None
        raise RowError(where, "half of a surrogate pair in the text", "whole characters") from None
    if "\0" in text:
        raise RowError(where, "a NUL character", "text")


def too_long(where: str, limit: int) -> RowError:
    """Returns the error for a line of more than `limit` bytes."""
    return RowError(where, "a line that is too long", f'at most {limit:,} bytes before its "\\n"', "divide the line")


def read_json(path: Path) -> Any:
    """Returns the value in a JSON file, `.gz` or not.

    Raises:
      UserError: if a file cannot be read, or is not UTF-8 or not JSON, with line and column.
    """
    with open_file(path) as stream:
        content = stream.read()
    start = len(_BOM) if content.startswith(_BOM) else 0
    try:
        return parse_json(content[start:].decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        fix = "convert the file to UTF-8, for example with iconv"
        raise UserError(str(path), got=not_utf8(error, start), expected=_JSON, fix=fix) from None


def parse_json(text: str, where: str) -> Any:
    """Returns the value of a JSON text.

    Args:
      text: the text, without a byte order mark.
      where: its file, for messages.
    Raises:
      UserError: if the text is not JSON, with line and column.
    """
    try:
        return files.parse_json(text)
    except json.JSONDecodeError as error:
        where = f"{where}:{error.lineno}"
        got = f"invalid JSON at column {error.colno} ({error.msg})"
        raise UserError(where, got=got, expected=_JSON, fix="correct the file, or copy it again") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, or deep nesting
        got = f"JSON that cannot be read ({error})"
        raise UserError(where, got=got, expected=_JSON, fix="correct the file") from None


def named(key: str) -> str:
    """Returns the name of a config key or --flag in messages."""
    return key if key.startswith("--") else f"config key {key}"


def find_files(source: str, key: str, also: str = "") -> list[Path]:
    """Returns the files of comma-separated paths and globs (`**` too). The files of a glob are sorted.

    Args:
      source: the paths and globs.
      key: the config key or --flag of the source, for messages.
      also: other values that the key accepts, for messages.
    Raises:
      UserError: if a name is empty, a path is not a regular file, a glob matches no file, or a file is named twice.
    """
    parts = [part.strip() for part in source.split(",")]
    if not all(parts):
        expected = f"paths or globs separated by commas{_or(also)}"
        fix = f"name the files, for example {key if key.startswith('--') else f'--config.{key}'}=folder/*.txt"
        raise UserError(named(key), got=f"{source!r}, with an empty name", expected=expected, fix=fix)
    paths = [path for part in parts for path in _matches(part, key, also)]
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            fix = "remove the repetition, or the glob that also matches it"
            raise UserError(f"{named(key)}={source}", got=f"{path} twice", expected="each file once", fix=fix)
        seen.add(path.resolve())
    return paths


def fingerprint(path: Path) -> dict[str, Any]:
    """Returns the base name, size and SHA-256 of a file as stored."""
    try:
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": files.digest(path)}
    except OSError as error:
        raise unreadable(path, error) from None


@contextlib.contextmanager
def open_file(path: Path, *, is_utf8: bool = True) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Opens a text file and unpacks .gz. Errors of reads in the with block are converted to UserError.

    Args:
      path: the file.
      is_utf8: whether a binary file, such as one in UTF-16, raises UserError.
    """
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP_MAGIC
        _check_name(path, is_gzip)
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as stream:
            if is_utf8 and _is_binary(stream.peek(1)):
                fix = "convert it to UTF-8 text, or remove it from the config"
                raise UserError(str(path), got="a binary file (it has NUL bytes)", expected="UTF-8 text", fix=fix)
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        got = f"a damaged or truncated gzip file ({error})"
        fix = "make or copy the file again; gzip -t tests it"
        raise UserError(str(path), got=got, expected="a complete gzip file", fix=fix) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _is_binary(start: bytes) -> bool:
    """Returns whether the start of a file has NUL and other control characters, or many NULs, as UTF-16 has.

    A few NULs in text are errors of their lines.
    """
    return b"\0" in start and (start.count(b"\0") * 10 > len(start) or bool(_CONTROL.search(start)))


def _check_name(path: Path, is_gzip: bool) -> None:
    if is_gzip != (path.suffix == ".gz"):
        got = "gzip data in a file not named .gz" if is_gzip else "a file named .gz that is not gzip"
        fix = "rename the file, or compress it with gzip"
        raise UserError(str(path), got=got, expected="a name that ends in .gz if and only if the file is gzip", fix=fix)


def _matches(part: str, key: str, also: str) -> list[Path]:
    """Returns the file with the path `part`, or else the files that match it as a glob, sorted."""
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
        got = "something that is not a regular file"
        fix = "copy its content to a file"
        raise UserError(f"{named(key)}={part}", got=got, expected="files", fix=fix)
    return [path]


def _globbed(part: str, key: str, also: str) -> list[Path]:
    # Path.glob would match hidden files, and Python versions differ in their handling of **.
    names = sorted(glob(part, recursive=True)) if has_magic(part) else []  # noqa: PTH207
    matches = [name for name in names if not Path(name).is_dir()]
    if not matches:
        got = "a pattern that matches no file" if has_magic(part) else "a path that does not exist"
        fix = "correct the path"
        raise UserError(f"{named(key)}={part}", got=got, expected=f"files relative to {Path.cwd()}{_or(also)}", fix=fix)
    return [path for file in matches for path in _matches(file, key, also)]


def _or(also: str) -> str:
    return f", or {also}" if also else ""


def not_utf8(error: UnicodeDecodeError, offset: int) -> str:
    """Returns the description of a byte that is not UTF-8, in bytes from `offset` of their file on."""
    return f"byte {error.object[error.start]:#04x} at byte offset {offset + error.start}, not valid UTF-8"


def unreadable(path: Path, error: Exception) -> UserError:
    """Returns the error for a file that the operating system refuses to read."""
    reason = getattr(error, "strerror", None) or str(error)
    fix = "correct the path, or the file's permissions"
    return UserError(str(path), got=f"an unreadable file ({reason})", expected="a readable file", fix=fix)
