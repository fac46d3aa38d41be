import pytest

from bertjax.errors import UserError
from bertjax.interop.formats.protobuf import Message, read_varint
from tests.interop.bundles import message, varint


def test_a_message_field_by_field():
    parts = [[(1, 3)], [(1, 4), (2, b"bytes")]]
    content = message((1, 150), (2, -1), (3, parts[0]), (3, parts[1]), (4, 1), (4, 2))
    content += b"\x2d\x01\x02\x03\xff" + b"\x31" + bytes(range(8))  # field 5 in 32 bits, field 6 in 64
    read = Message(content, "here")
    assert [read.integer(number) for number in (1, 2, 4, 5, 6, 7)] == [150, -1, 2, 0xFF030201, 0x0706050403020100, 0]
    assert [part.integer(1) for part in read.messages(3)] == [3, 4]
    assert read.message(3).integer(1) == 4
    assert read.message(8).integer(1) == 0
    assert (3 in read, 8 in read) == (True, False)


@pytest.mark.parametrize("value", [0, 127, 128, 2**32, 2**64 - 1])
def test_varints(value):
    assert read_varint(b"?" + varint(value) + b"?", 1, "here") == (value, 1 + len(varint(value)))


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"\x08", "a number at byte 1 that does not end"),
        (b"\x08" + b"\xff" * 11, "a number at byte 1 that does not end"),
        (b"\x12\x05abc", "a field of 5 bytes; expected at most 3"),
        (b"\x12" + varint(2**64 - 1), "a field of 18446744073709551615 bytes; expected at most 0"),
        (b"\x0d\x00", "a field of 4 bytes; expected at most 1"),
        (b"\x0b", "wire type 3; expected wire type 0, 1, 2 or 5"),
    ],
)
def test_damaged_messages(content, got):
    with pytest.raises(UserError, match=f"^here: got {got}"):
        Message(content, "here")


def test_fields_of_another_type():
    read = Message(message((1, 5), (2, b"")), "here")
    with pytest.raises(UserError, match="field 1 of another type; expected a message in field 1"):
        read.messages(1)
    with pytest.raises(UserError, match="field 2 of another type; expected an integer in field 2"):
        read.integer(2)
