"""Writers of TensorFlow's checkpoint format, for the tests of its readers. They can also write damaged files."""

import numpy as np

from bertjax.interop.formats import sstable
from bertjax.interop.formats.crc32c import masked_checksum


def varint(value):
    value %= 2**64
    content = b""
    while value >= 0x80:
        content, value = content + bytes([value & 0x7F | 0x80]), value >> 7
    return content + bytes([value])


def message(*fields):
    """Encodes (number, value) pairs: an int as a varint, bytes unchanged, a list as the fields of a message."""
    content = b""
    for number, value in fields:
        if isinstance(value, int):
            content += varint(number << 3) + varint(value)
        else:
            value = message(*value) if isinstance(value, list) else value
            content += varint(number << 3 | 2) + varint(len(value)) + value
    return content


def entries(items, restarts=b"\0\0\0\0\1\0\0\0"):
    """The content of a block whose keys share no prefixes."""
    return b"".join(b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in items) + restarts


def table(*blocks, compression=0):
    """A table of blocks with correct checksums."""
    content = b""

    def add(block):
        nonlocal content
        handle = varint(len(content)) + varint(len(block))
        block += bytes([compression])
        content += block + masked_checksum(np.frombuffer(block, np.uint8)).to_bytes(4, "little")
        return handle

    handles = [add(block) for block in blocks]
    metaindex, index = add(entries([])), add(entries([(b"\xff", handle) for handle in handles]))
    return content + (metaindex + index).ljust(40, b"\0") + sstable.MAGIC


def entry(array, offset=0, *more, dtype=1, shape=None, shard=0, checksum=None):
    """The BundleEntryProto of an array."""
    content = np.frombuffer(array.tobytes(), np.uint8)
    checksum = masked_checksum(content) if checksum is None else checksum
    axes = [(2, [(1, size)]) for size in (array.shape if shape is None else shape)]
    head = message((1, dtype), (2, axes), (3, shard), (4, offset), (5, content.size), *more)
    return head + varint(6 << 3 | 5) + checksum.to_bytes(4, "little")


HEADER = (b"", message((1, 1)))


def write(prefix, items, data=b""):
    """Writes a checkpoint of one data file, with the sorted items as its index."""
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(entries(sorted(items))))
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    return prefix
