"""Reads LevelDB's sorted tables, the format of the index of TensorFlow checkpoints.

The format: https://github.com/google/leveldb/blob/main/doc/table_format.md
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.interop.formats.crc32c import masked_checksum
from bertjax.interop.formats.protobuf import read_varint
from bertjax.interop.formats.reading import damaged

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # after each block: its compression and its checksum
_COMPRESSIONS = {1: "snappy", 2: "zstd"}
# A key shares a prefix with the previous key, so three bytes in the file can produce a long key.
_MAX_KEY_BYTES = 64 * 2**20


class _Handle(NamedTuple):
    offset: int
    size: int


def read_table(content: bytes, where: str) -> dict[bytes, bytes]:
    """Returns the entries of a table, in the order of their keys.

    Raises:
      UserError: if the table is damaged or compressed.
    """
    if len(content) < _FOOTER_BYTES or not content.endswith(MAGIC):
        raise damaged(where, f"{len(content)} bytes without the end of a table", f"magic {MAGIC.hex()} at the end")
    footer = content[-_FOOTER_BYTES:]
    _, position = _read_handle(footer, 0, where)  # the metaindex, which is empty
    index, _ = _read_handle(footer, position, where)
    entries: dict[bytes, bytes] = {}
    last = None
    total = 0
    for _, value in _entries(_block(content, index, where), where):
        handle, _ = _read_handle(value, 0, where)
        for key, entry in _entries(_block(content, handle, where), where):
            total += len(key)
            if last is not None and key <= last:
                raise damaged(where, f"key {key!r} after {last!r}", "keys in ascending order")
            if total > _MAX_KEY_BYTES:
                raise damaged(where, f"keys of more than {total} bytes", f"at most {_MAX_KEY_BYTES}")
            entries[key] = entry
            last = key
    return entries


def _read_handle(content: bytes, position: int, where: str) -> tuple[_Handle, int]:
    offset, position = read_varint(content, position, where)
    size, position = read_varint(content, position, where)
    return _Handle(offset, size), position


def _block(content: bytes, handle: _Handle, where: str) -> bytes:
    """Returns the entries of a block without its restart points. Verifies its checksum."""
    end = handle.offset + handle.size
    if end + _TRAILER_BYTES > len(content):
        raise damaged(where, f"a block up to byte {end + _TRAILER_BYTES}", f"at most {len(content)}, the file's size")
    stored = int.from_bytes(content[end + 1 : end + _TRAILER_BYTES], "little")
    if masked_checksum(np.frombuffer(content[handle.offset : end + 1], np.uint8)) != stored:
        raise damaged(where, f"a block at byte {handle.offset} with another checksum", "the checksum stored after it")
    if content[end]:
        name = _COMPRESSIONS.get(content[end], f"unknown type {content[end]}")
        fix = "save it again with TensorFlow, which writes uncompressed blocks"
        raise UserError(where, got=f"a block compressed with {name}", expected="no compression", fix=fix)
    block = content[handle.offset : end]
    size = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    if size < 0:
        raise damaged(where, f"a block of {len(block)} bytes", "a block that includes its restart points")
    return block[:size]


def _entries(block: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    key = b""
    position = 0
    while position < len(block):
        shared, position = read_varint(block, position, where)
        unshared, position = read_varint(block, position, where)
        size, position = read_varint(block, position, where)
        end = position + unshared + size
        if shared > len(key) or end > len(block):
            raise damaged(where, "an entry that reaches beyond its block", "entries within their block")
        key = key[:shared] + block[position : position + unshared]
        yield key, block[position + unshared : end]
        position = end
