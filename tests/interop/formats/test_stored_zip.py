import struct
import warnings
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.interop.formats.reading import map_bytes
from bertjax.interop.formats.stored_zip import StoredZip
from tests.interop.formats.damage import damaged, errors_name


def write(path, entries, compression=zipfile.ZIP_STORED):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as archive:
        warnings.simplefilter("ignore")  # about repeated names
        for name, content in entries:
            archive.writestr(name, content)
    return path


def opened(path):
    return StoredZip(path, map_bytes(path))


def test_entries(tmp_path):
    archive = opened(write(tmp_path / "a.zip", [("a/b", b"12345"), ("empty", b"")]))
    assert archive.names == ("a/b", "empty")
    assert archive.read("a/b").tobytes() == b"12345"
    assert archive.read("empty").size == 0


def test_an_absent_entry(tmp_path):
    archive = opened(write(tmp_path / "a.zip", [("a", b"1")]))
    with pytest.raises(UserError, match=r"a.zip: \.\./b: got no such entry; expected an entry of the archive"):
        archive.read("../b")


def test_compressed_entries_are_refused(tmp_path):
    path = write(tmp_path / "a.zip", [("bomb", bytes(10**6))], zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="got a compressed or encrypted entry bomb; expected uncompressed entries"):
        opened(path)


def test_names_that_repeat_are_refused(tmp_path):
    with pytest.raises(UserError, match="got two entries with the same name; expected different names"):
        opened(write(tmp_path / "a.zip", [("a", b"1"), ("a", b"2")]))


def test_entries_that_overlap_are_refused(tmp_path):
    path = write(tmp_path / "a.zip", [("a", bytes(1000)), ("b", b"")])
    content = bytearray(path.read_bytes())
    first = content.index(b"PK\1\2")
    second = content.index(b"PK\1\2", first + 1)
    content[second + 20 : second + 28] = struct.pack("<II", 1000, 1000)
    content[second + 42 : second + 46] = bytes(4)
    path.write_bytes(content)
    with pytest.raises(UserError, match="got entries of 2000 bytes that overlap; expected at most"):
        opened(path)


def test_a_flipped_bit_is_found(tmp_path):
    path = write(tmp_path / "a.zip", [("a", b"12345")])
    content = bytearray(path.read_bytes())
    content[content.index(b"12345")] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="a: got bytes with another checksum; expected the checksum in the archive's"):
        opened(path).read("a")


@settings(max_examples=200)
@given(st.data())
def test_damaged_archives_are_user_errors_or_harmless(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("damaged") / "a.zip", [("a", b"12345"), ("b", b"678")])
    path.write_bytes(damaged(data, path.read_bytes()))
    with errors_name(path):
        archive = opened(path)
        assert {archive.read(name).tobytes() for name in archive.names} <= {b"12345", b"678"}
