"""Reads serialized protocol buffers field by field, without their schemas.

The encoding: https://protobuf.dev/programming-guides/encoding/
"""

import struct

from bertjax.errors import UserError
from bertjax.interop.formats.reading import damaged

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}


class Message:
    """The fields of one message, by number.

    >>> Message(b"\\x08\\x96\\x01", "example").integer(1)
    150
    """

    def __init__(self, content: bytes, where: str) -> None:
        self._where = where
        self._fields: dict[int, list[int | bytes]] = {}
        position = 0
        while position < len(content):
            tag, position = read_varint(content, position, where)
            value, position = self._read_value(content, position, tag & 7)
            self._fields.setdefault(tag >> 3, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def integer(self, number: int, default: int = 0) -> int:
        """Returns an int32, int64, fixed32 or enum; if it is absent the default, 0 in the encoding."""
        value = self._fields.get(number, [default])[-1]
        if isinstance(value, bytes):
            raise self._mistyped(number, "an integer")
        # Negative numbers are varints of 64 bits.
        return value - 2**64 if value >= 2**63 else value

    def messages(self, number: int) -> list["Message"]:
        """Returns the messages of a repeated field."""
        return [Message(content, self._where) for content in self._contents(number)]

    def message(self, number: int) -> "Message":
        """Returns the message of a field; an empty one if it is absent."""
        return Message(self.content(number), self._where)

    def content(self, number: int) -> bytes:
        """Returns the bytes of a field; none if it is absent."""
        return (self._contents(number) or [b""])[-1]

    def text(self, number: int) -> str:
        """Returns a string; "" if it is absent."""
        try:
            return self.content(number).decode("utf-8")
        except UnicodeDecodeError as error:
            raise damaged(self._where, f"field {number} with {error.reason}", "text in UTF-8") from None

    def number(self, number: int) -> float:
        """Returns a float of 32 bits; 0 if it is absent."""
        return struct.unpack("<f", struct.pack("<I", self.integer(number) % 2**32))[0]

    def _contents(self, number: int) -> list[bytes]:
        values = self._fields.get(number, [])
        contents = [value for value in values if isinstance(value, bytes)]
        if len(contents) < len(values):
            raise self._mistyped(number, "a message")
        return contents

    def _mistyped(self, number: int, expected: str) -> UserError:
        return damaged(self._where, f"field {number} of another type", f"{expected} in field {number}")

    def _read_value(self, content: bytes, position: int, wire_type: int) -> tuple[int | bytes, int]:
        """Returns the value at a position, and the position of its end."""
        if wire_type == _VARINT:
            return read_varint(content, position, self._where)
        if wire_type == _BYTES:
            size, position = read_varint(content, position, self._where)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise damaged(self._where, f"wire type {wire_type}", "wire type 0, 1, 2 or 5")
        if size > len(content) - position:
            raise damaged(
                self._where, f"a field of {size} bytes", f"at most {len(content) - position}, the remaining bytes"
            )
        value = content[position : position + size]
        end = position + size
        return (value if wire_type == _BYTES else int.from_bytes(value, "little")), end


def read_varint(content: bytes, position: int, where: str) -> tuple[int, int]:
    """Returns the number of up to 64 bits at a position, and the position of its end."""
    value = 0
    for index, byte in enumerate(content[position : position + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value % 2**64, position + index + 1
    raise damaged(where, f"a number at byte {position} that does not end", "at most 10 bytes (a varint)")
