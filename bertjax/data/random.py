"""Counter-based random bits: every draw is a pure function of (seed, stream, epoch, index).

NumPy does not guarantee the streams of its `Generator` across versions, and a generator for each of ten million
documents is expensive. These are therefore raw Philox 4x32-10 bits (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3"), computed for whole arrays of counters at once. The same arguments give the same bits on every
machine, in any order and in any number of processes.
"""

import enum

import numpy as np
from jaxtyping import Float64, Int64, UInt32, UInt64

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Counters are processed in blocks that fit in the cache: 3x faster than whole arrays.
_BLOCK = 16384
_FEISTEL_ROUNDS = 4  # as many as Luby and Rackoff's proof requires


class Stream(enum.IntEnum):
    """The purpose of a draw. Different streams of one seed are independent."""

    CHUNKS = 0
    TRUNCATION = 1
    SHUFFLE = 2
    MASKING = 3
    REPLACEMENT = 4
    ORDER = 5
    ROW_SPLIT = 6
    DATES = 7
    SPANS = 8
    SAMPLING = 9
    RATES = 10
    SENTENCES = 11


def philox4x32(counters: tuple[UInt64[np.ndarray, " n"], ...], key: tuple[int, int]) -> UInt32[np.ndarray, "n 4"]:
    """Returns Philox 4x32-10: four 32-bit words for each counter of four 32-bit words, held in uint64 arrays."""
    c0, c1, c2, c3 = (counter.copy() for counter in counters)
    product0 = np.empty_like(c0)
    product1 = np.empty_like(c0)
    k0, k1 = key
    for _ in range(_ROUNDS):  # in place: new arrays would cost more than the arithmetic
        np.multiply(c0, np.uint64(_MULTIPLIERS[0]), out=product0)
        np.multiply(c2, np.uint64(_MULTIPLIERS[1]), out=product1)
        np.right_shift(product1, _HALF, out=c0)
        c0 ^= c1
        c0 ^= np.uint64(k0)
        np.bitwise_and(product1, _LOW, out=c1)
        np.right_shift(product0, _HALF, out=c2)
        c2 ^= c3
        c2 ^= np.uint64(k1)
        np.bitwise_and(product0, _LOW, out=c3)
        k0 = (k0 + _WEYL[0]) & 0xFFFFFFFF
        k1 = (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def bits(
    seed: int,
    stream: Stream,
    epoch: int | Int64[np.ndarray, " n"],
    index: Int64[np.ndarray, " n"],
    words: int,
    sub_index: Int64[np.ndarray, " n"] | int = 0,
    skip: int = 0,
) -> UInt32[np.ndarray, "n {words}"]:
    """Draws `words` random 32-bit words for each index. A shorter draw is a prefix of a longer one.

    Args:
      seed: 0 <= seed < 2**32.
      stream: the purpose of the draws.
      epoch: one for all, or one for each index, 0 <= epoch < 2**32.
      index: the documents or blocks that draw, each 0 <= index < 2**32.
      words: the number of words per index.
      sub_index: a further coordinate, such as the position in the document, 0 <= sub_index < 2**32.
      skip: the number of words to skip first, a multiple of four.
    """
    blocks = -(-words // 4)
    draws = np.arange(skip // 4, skip // 4 + blocks, dtype=np.uint64)
    sub = np.broadcast_to(np.asarray(sub_index), index.shape)
    epochs = np.broadcast_to(np.asarray(epoch), index.shape)
    out = np.empty((len(index), blocks * 4), np.uint32)
    rows = max(1, _BLOCK // blocks)
    for start in range(0, len(index), rows):
        part = index[start : start + rows].astype(np.uint64)
        counters = (
            np.tile(draws, len(part)),
            np.repeat(part, blocks),
            np.repeat(sub[start : start + rows].astype(np.uint64), blocks),
            np.repeat(epochs[start : start + rows].astype(np.uint64), blocks),
        )
        out[start : start + rows] = philox4x32(counters, (seed, int(stream))).reshape(len(part), -1)
    return out[:, :words]


def uniform(words: UInt32[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    """Converts words to floats in [0, 1)."""
    return words * 2.0**-32


def below(words: UInt32[np.ndarray, "*shape"], limit: object) -> Int64[np.ndarray, "*shape"]:
    """Converts words to integers in [0, limit), by multiply and shift (bias at most limit / 2**32).

    Args:
      words: random words.
      limit: an integer or an array of integers that broadcasts with `words`, each at most 2**32.
    """
    product = words.astype(np.uint64) * np.asarray(limit).astype(np.uint64)
    return (product >> _HALF).astype(np.int64)


def permutation(seed: int, epoch: int, size: int, part: int = 0) -> Int64[np.ndarray, " size"]:
    """Returns a random order of range(size). Each `part` has its own order."""
    words = bits(seed, Stream.SHUFFLE, epoch, np.arange(size), 2, part).astype(np.uint64)
    return np.argsort((words[:, 0] << _HALF) | words[:, 1], kind="stable")


def permuted(seed: int, epoch: int, index: Int64[np.ndarray, " n"], size: int) -> Int64[np.ndarray, " n"]:
    """Returns the elements at the positions `index` of a random order of range(size), without computing all of it.

    A Feistel network permutes the smallest range of 4**k numbers that contains range(size). Its rounds are keyed by
    Philox. A result that is `size` or more goes through the network again until it is smaller (Black and Rogaway
    2002, "Ciphers with arbitrary finite domains").
    """
    half = np.int64(max(1, -(-(size - 1).bit_length() // 2)))
    values = index.astype(np.int64)
    open_ = np.arange(len(index))
    while len(open_):
        left = values[open_] >> half
        right = values[open_] & ((1 << half) - 1)
        for step in range(_FEISTEL_ROUNDS):
            words = bits(seed, Stream.ORDER, epoch, right, 1, step)[:, 0]
            left, right = right, left ^ (words.astype(np.int64) & ((1 << half) - 1))
        values[open_] = left << half | right
        open_ = open_[values[open_] >= size]
    return values


def coin_flips(
    seed: int,
    epoch: int,
    index: Int64[np.ndarray, " n"],
    sub_index: Int64[np.ndarray, " n"],
    flips: Int64[np.ndarray, "2 n"],
) -> Int64[np.ndarray, "2 n"]:
    """Returns how many of `flips` fair coins fall heads: two Binomial(flips, 1/2) draws for each index."""
    heads = np.zeros_like(flips)
    most = np.maximum(flips[0], flips[1])
    tossed = 0  # coins of each draw; the four words of an index are 64 coins for each of its two draws
    while len(some := np.flatnonzero(most > tossed)):
        words = bits(seed, Stream.TRUNCATION, epoch, index[some], 4, sub_index[some], tossed // 16)
        for draw in range(2):
            remaining = flips[draw, some] - tossed
            for word in range(2):
                coins = np.clip(remaining - 32 * word, 0, 32).astype(np.uint64)
                mask = ((np.uint64(1) << coins) - np.uint64(1)).astype(np.uint32)
                heads[draw, some] += np.bitwise_count(words[:, 2 * draw + word] & mask)
        tossed += 64
    return heads
