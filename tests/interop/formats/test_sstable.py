import pytest

from bertjax.errors import UserError
from bertjax.interop.formats import sstable
from tests.interop.bundles import entries, table, varint


def read(content):
    return sstable.read_table(content, "here")


def test_blocks_and_shared_prefixes():
    # "car", then "cat" and "cats", which share 2 and 3 bytes with the previous key.
    shared = b"\0\3\1car1" + b"\2\1\1t2" + b"\3\1\0s" + b"\0\0\0\0\1\0\0\0"
    found = read(table(entries([(b"", b"header")]), entries([]), shared))
    assert list(found.items()) == [(b"", b"header"), (b"car", b"1"), (b"cat", b"2"), (b"cats", b"")]


def test_many_restart_points():
    assert read(table(entries([(b"a", b"1")], restarts=b"\0\0\0\0" * 3 + b"\3\0\0\0"))) == {b"a": b"1"}


@pytest.mark.parametrize(
    ("block", "got"),
    [
        (b"\1\1\1a1" + b"\0\0\0\0\1\0\0\0", "an entry that reaches beyond its block"),
        (b"\0\7\1a1" + b"\0\0\0\0\1\0\0\0", "an entry that reaches beyond its block"),
        (b"\0\1" + varint(2**63) + b"a" + b"\0\0\0\0\1\0\0\0", "an entry that reaches beyond its block"),
        (b"\0\0\xff" + b"\0\0\0\0\1\0\0\0", "a number at byte 2 that does not end"),
        (entries([(b"a", b"1")], restarts=b"\xff\xff\xff\x7f"), "a block of 9 bytes"),
        (b"", "a block of 0 bytes"),
        (entries([(b"b", b"1"), (b"a", b"2")]), "key b'a' after b'b'"),
        (entries([(b"a", b"1"), (b"a", b"2")]), "key b'a' after b'a'"),
    ],
)
def test_damaged_blocks(block, got):
    with pytest.raises(UserError, match=f"^here: got {got}"):
        read(table(block))


@pytest.mark.parametrize(("compression", "name"), [(1, "snappy"), (2, "zstd"), (9, "unknown type 9")])
def test_compression_is_refused_by_name(compression, name):
    with pytest.raises(UserError, match=f"got a block compressed with {name}; expected no compression. Fix: save it"):
        read(table(entries([]), compression=compression))


def test_checksums_are_verified():
    content = bytearray(table(entries([(b"name", b"value")])))
    content[5] ^= 1
    with pytest.raises(UserError, match=r"checksum stored after it. Fix: download or export the file again"):
        read(bytes(content))


@pytest.mark.parametrize("content", [b"", sstable.MAGIC, b"\0" * 100, table(entries([]))[:-1]])
def test_other_files(content):
    with pytest.raises(UserError, match="without the end of a table; expected magic 57fb808b247547db"):
        read(content)


def test_a_handle_outside_the_file():
    footer = (varint(0) + varint(0) + varint(2**63) + varint(2**63)).ljust(40, b"\0") + sstable.MAGIC
    with pytest.raises(UserError, match="a block up to byte 18446744073709551621; expected at most 48"):
        read(footer)


def test_shared_prefixes_cannot_exhaust_memory(monkeypatch):
    monkeypatch.setattr(sstable, "_MAX_KEY_BYTES", 10_000)
    bomb = b"\0" + varint(200) + b"\0" + b"a" * 200
    bomb += b"".join(varint(200 + n) + b"\1\0b" for n in range(100)) + b"\0\0\0\0\1\0\0\0"
    with pytest.raises(UserError, match=r"keys of more than .* bytes; expected at most 10000"):
        read(table(bomb))


def test_a_block_cannot_be_used_twice():
    content = table(entries([(b"a", b"1")]))
    block = content[: len(entries([(b"a", b"1")]))]
    handle = varint(0) + varint(len(block))
    index = entries([(b"a", handle), (b"b", handle)])
    at = len(content)
    content += table(index)[: len(index) + 5]
    footer = (varint(0) + varint(0) + varint(at) + varint(len(index))).ljust(40, b"\0") + sstable.MAGIC
    with pytest.raises(UserError, match="key b'a' after b'a'"):
        read(content + footer)
