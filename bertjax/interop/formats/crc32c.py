"""CRC-32C (Castagnoli; RFC 3720, appendix B.4) with numpy, and its masked form of LevelDB and TensorFlow."""

import numpy as np
from jaxtyping import UInt8

_POLYNOMIAL = 0x82F63B78  # in reflected form, for the table-driven algorithm
_MASK_DELTA = 0xA282EAD8

# x^5685 + x^1362 + x^426 + 1 is a multiple of the generator (found by search). So is its 8 * 2^k-th power, whose
# exponents count steps of 2^k bytes. Therefore the checksum does not change if a byte is moved 4323, 5259 and 5685
# steps towards the end, and added (xor) at all three positions.
_SHIFTS = (5685 - 1362, 5685 - 426, 5685)
_SCALES = tuple(2**k for k in range(9, -1, -1))
_CHUNK = 4 * 2**20


def _table() -> tuple[int, ...]:
    values = list(range(256))
    for _ in range(8):
        values = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in values]
    return tuple(values)


_TABLE = _table()


def checksum(content: UInt8[np.ndarray, " N"]) -> int:
    """Returns the CRC-32C of some bytes.

    >>> hex(checksum(np.frombuffer(b"123456789", np.uint8)))
    '0xe3069283'
    """
    state = 0xFFFFFFFF
    for start in range(0, content.size, _CHUNK):
        state = _advance(state, content[start : start + _CHUNK])
    return state ^ 0xFFFFFFFF


def masked_checksum(content: UInt8[np.ndarray, " N"]) -> int:
    """Returns the CRC-32C of some bytes in the masked form of LevelDB and TensorFlow files."""
    crc = checksum(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _advance(state: int, chunk: UInt8[np.ndarray, " N"]) -> int:
    """Returns the CRC register after a chunk."""
    if chunk.size > _SHIFTS[-1]:
        chunk = chunk.copy()
        chunk[:4] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)
        state = 0
        chunk = _folded(chunk)
    for byte in chunk.tolist():
        state = _TABLE[(state ^ byte) & 0xFF] ^ state >> 8
    return state


def _folded(chunk: UInt8[np.ndarray, " N"]) -> UInt8[np.ndarray, " M"]:
    """Returns up to 5,685 bytes with the same remainder as the whole chunk. Overwrites the chunk."""
    for scale in _SCALES:
        while (excess := chunk.size - scale * _SHIFTS[-1]) > 0:
            head = chunk[: min(excess, scale * _SHIFTS[0])]
            for shift in _SHIFTS:
                chunk[scale * shift :][: head.size] ^= head
            chunk = chunk[head.size :]
    return chunk
