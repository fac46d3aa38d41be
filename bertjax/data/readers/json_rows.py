"""Reads JSON objects one at a time: the lines of JSON lines, or the elements of an array, which may span lines."""

import codecs
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bertjax.data.readers import lines
from bertjax.data.readers.kinds import suffix_of
from bertjax.data.readers.lines import Line, RowError
from bertjax.errors import UserError
from bertjax.files import JSON, RepeatedKeyError, parse_json

_CHUNK_BYTES = 2**16
_BLANKS = re.compile(r"[ \t\n\r]*")
_EXPECTED = "an array of JSON objects, or one JSON object per line"


def read_objects(path: Path, limit: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Returns an iterator over the objects of a file and their positions, such as "file:line".

    A `.jsonl` file has an object on each line that is not blank. Any other file may have an array of objects instead.

    Args:
      path: the file, `.gz` or not.
      limit: the maximum size of an object: bytes of a line, or characters of an element.
    Raises:
      UserError: if the file cannot be read, or is an array that is not valid JSON.
      RowError: if a line or element is bad; the iterator can then continue.
    """
    is_lines = suffix_of(path) == ".jsonl"
    nonblank_lines = (line for line in lines.read_lines(path, limit) if not line.is_blank)
    first = next(nonblank_lines, None)
    if first is None:
        return iter(())
    if not is_lines and first.content.lstrip().startswith(b"["):
        return map(_of_element, _elements(path, limit))
    # Again from the start: `first` is an object too.
    nonblank_lines = (line for line in lines.read_lines(path, limit) if not line.is_blank)
    return map(partial(_of_line, is_lines=is_lines), nonblank_lines)


def _of_line(line: Line, is_lines: bool) -> tuple[dict[str, Any], str]:
    expected = "one JSON object per line" if is_lines else _EXPECTED
    content = lines.decode(line)
    try:
        value = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise RowError(line.where, f"a row that is not valid JSON ({error})", expected) from None
    if not isinstance(value, dict):
        fix = "rename the file to .json if it is one array" if content.startswith("[") else "correct the row"
        raise RowError(line.where, f"a JSON {type(value).__name__}", expected, fix)
    return _checked(value, line.where)


def _of_element(element: tuple[Any, str]) -> tuple[dict[str, Any], str]:
    value, where = element
    if not isinstance(value, dict):
        raise RowError(where, f"a JSON {type(value).__name__}", _EXPECTED)
    return _checked(value, where)


def _checked(row: dict[str, Any], where: str) -> tuple[dict[str, Any], str]:
    for value in row.values():
        if isinstance(value, str):
            lines.check_text(value, where)
    return row, where


def _elements(path: Path, limit: int) -> Iterator[tuple[Any, str]]:
    """Yields the elements of an array, of any type, with their positions."""
    with lines.open_file(path) as stream:
        text = _Text(stream, path, limit)
        text.take("[")
        mark = text.take("]") if text.peek() == "]" else ","  # the first element follows "[" as others follow ","
        while mark == ",":
            yield text.value()
            mark = text.take(",]")
        if text.peek():
            raise text.error("text after the array")


class _Text:
    """Reads the text of a JSON file, and holds one value or chunk in memory."""

    def __init__(self, stream: Any, path: Path, limit: int) -> None:
        self._stream = stream
        self._path = path
        self._limit = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._place = 0
        self._line = 1
        self._offset = 0
        self._fill()
        self._text = self._text.removeprefix("\ufeff")  # byte-order mark

    def peek(self) -> str:
        """Returns the next character that is not blank; "" at the end of the file."""
        while True:
            match = _BLANKS.match(self._text, self._place)
            assert match
            self._advance(match.end())
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._fill():
                return ""

    def take(self, allowed: str) -> str:
        """Returns the next character that is not blank, and goes on behind it. Raises UserError for another one."""
        character = self.peek()
        if not character or character not in allowed:
            raise self.error(f"{character!r} instead of {' or '.join(map(repr, allowed))}" if character else "the end")
        self._advance(self._place + 1)
        return character

    def value(self) -> tuple[Any, str]:
        """Returns the next value and its position, and goes on behind it. Raises UserError if it is not valid JSON."""
        self.peek()
        while True:
            try:
                value, end = JSON.raw_decode(self._text, self._place)
                fault = ""
            except RepeatedKeyError as error:
                raise self.error(str(error)) from None
            except (ValueError, RecursionError) as error:
                fault = getattr(error, "msg", str(error))
                end = len(self._text)
            # A number may continue in the next chunk, as may any value that is not valid yet.
            if end < len(self._text) or not self._fill():
                break
            if fault and len(self._text) - self._place > self._limit:
                fault = f"more than {self._limit:,} characters, or {fault}"
                break
        if fault:
            raise self.error(fault)
        where = f"{self._path}:{self._line}"
        self._advance(end)
        return value, where

    def error(self, fault: str) -> UserError:
        """Returns the error for a fault at the present place."""
        got = f"invalid JSON ({fault})"
        fix = "correct the file, or copy it again"
        return UserError(f"{self._path}:{self._line}", got=got, expected=_EXPECTED, fix=fix)

    def _advance(self, place: int) -> None:
        self._line += self._text.count("\n", self._place, place)
        self._place = place

    def _fill(self) -> bool:
        """Drops the text before the present place, and reads on. Returns whether there was something to read.

        It at least doubles the rest, because `value` parses the rest again after each call: the total time is linear.
        """
        rest = self._text[self._place :]
        chunk = self._stream.read(max(_CHUNK_BYTES, len(rest)))
        num_pending = len(self._decoder.getstate()[0])  # bytes of a character that the last chunk ended in
        try:
            self._text = rest + self._decoder.decode(chunk, final=not chunk)
            self._place = 0
        except UnicodeDecodeError as error:
            got = lines.not_utf8(error, self._offset - num_pending)
            fix = "convert the file to UTF-8, for example with iconv"
            raise UserError(str(self._path), got=got, expected="UTF-8 text", fix=fix) from None
        self._offset += len(chunk)
        return bool(chunk)
