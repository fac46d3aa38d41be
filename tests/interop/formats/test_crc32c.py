import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.interop.formats import crc32c


def bitwise(content, state=0xFFFFFFFF):
    """The definition of CRC-32C, bit by bit."""
    for byte in content:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_known_checksums(content, expected):
    assert crc32c.checksum(np.frombuffer(content, np.uint8)) == expected


@pytest.mark.parametrize("size", [5684, 5685, 5686, 10007, 10008, 10009, 11370, 11371, 40000])
def test_folding_keeps_the_checksum(size):
    content = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32c.checksum(content) == bitwise(content.tolist())


@given(st.binary(max_size=100), st.integers(1, 30))
def test_chunks_keep_the_checksum(content, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crc32c, "_CHUNK", chunk)
        assert crc32c.checksum(np.frombuffer(content, np.uint8)) == bitwise(content)


def test_consecutive_chunks_are_folded():
    content = np.random.default_rng(0).integers(0, 256, 30000, dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crc32c, "_CHUNK", 9000)
        assert crc32c.checksum(content) == bitwise(content.tolist())


def test_the_mask_equals_leveldb():
    # Masking rotates by 15 bits and adds a constant.
    assert crc32c.masked_checksum(np.zeros(0, np.uint8)) == 0xA282EAD8
    assert crc32c.masked_checksum(np.frombuffer(b"123456789", np.uint8)) == 0xC78AB0E5
