import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import random
from bertjax.data.random import Stream

WORD = st.integers(0, 2**32 - 1)
ONES = 0xFFFFFFFF


# Test vectors of Random123 (kat_vectors, "philox4x32 10").
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_equals_the_published_vectors(counter, key, expected):
    words = random.philox4x32(tuple(np.full(3, c, np.uint64) for c in counter), key)
    assert words.dtype == np.uint32
    np.testing.assert_array_equal(words, [expected] * 3)


@given(WORD, st.sampled_from(Stream), WORD, st.lists(WORD, max_size=4), st.integers(1, 11), WORD)
def test_bits_are_philox_of_their_coordinates(seed, stream, epoch, index, words, sub_index):
    actual = random.bits(seed, stream, epoch, np.array(index, np.int64), words, sub_index)
    assert actual.shape == (len(index), words)
    for row, i in zip(actual, index, strict=True):
        for number, word in enumerate(row):
            counter = tuple(np.array([c], np.uint64) for c in (number // 4, i, sub_index, epoch))
            assert word == random.philox4x32(counter, (seed, int(stream)))[0, number % 4]


@pytest.mark.parametrize("block", [1, 3, 7, 64])
@pytest.mark.parametrize("words", [1, 4, 5, 30])
def test_bits_do_not_depend_on_block_size_or_order(block, words, monkeypatch):
    index = np.arange(100, 150)
    whole = random.bits(1, Stream.CHUNKS, 2, index, words, sub_index=3)
    order = np.array([49, 0, 7, 7, 23])
    monkeypatch.setattr(random, "_BLOCK", block)
    np.testing.assert_array_equal(random.bits(1, Stream.CHUNKS, 2, index, words, sub_index=3), whole)
    np.testing.assert_array_equal(random.bits(1, Stream.CHUNKS, 2, index[order], words, sub_index=3), whole[order])


def test_uniform_is_in_the_unit_interval(check_mean):
    np.testing.assert_array_equal(random.uniform(np.array([0, 1 << 31, ONES], np.uint32)), [0, 0.5, 1 - 2**-32])
    values = random.uniform(random.bits(2, Stream.CHUNKS, 0, np.arange(100_000), 1)[:, 0])
    check_mean("uniform", values, 0.5, 1 / 12)
    check_mean("square of uniform", values**2, 1 / 3, 4 / 45)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 1 << 31, ONES]) | WORD, st.integers(1, 2**32)), min_size=1))
def test_below_is_below_its_limit(pairs):
    words, limits = (np.array(column) for column in zip(*pairs, strict=True))
    drawn = random.below(words.astype(np.uint32), limits)
    assert drawn.tolist() == [word * limit >> 32 for word, limit in pairs]
    assert ((drawn >= 0) & (drawn < limits)).all()
    assert random.below(np.array([0, ONES], np.uint32), pairs[0][1]).tolist() == [0, pairs[0][1] - 1]


def test_orders_are_equally_likely(check_uniform):
    fours = random.permutation(0, 0, 400_000).reshape(-1, 4).argsort(axis=1) @ (64, 16, 4, 1)
    orders, counts = np.unique(fours, return_counts=True)
    assert len(orders) == 24
    check_uniform("orders of four neighbors", counts)


@settings(max_examples=40)
@given(WORD, WORD, st.integers(1, 300), st.data())
def test_single_positions_of_a_permutation_equal_the_whole(seed, epoch, size, data):
    every = random.permuted(seed, epoch, np.arange(size), size)
    assert sorted(every.tolist()) == list(range(size))
    some = np.array(data.draw(st.lists(st.integers(0, size - 1))), np.int64)
    assert random.permuted(seed, epoch, some, size).tolist() == every[some].tolist()


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 100_000])
def test_permuted_places_are_uniform_and_independent(size, check_uniform, check_mean):
    places = [random.permuted(seed, epoch, np.arange(size), size) for seed, epoch in ((0, 0), (1, 0), (0, 1))]
    check_uniform("first tenth", np.bincount(places[0][: size // 10] * 20 // size, minlength=20))
    for i, j in itertools.combinations(range(3), 2):
        centered = (places[i] / size - 0.5) * (places[j] / size - 0.5)
        check_mean(f"permutations {i} and {j}", centered, 0, 1 / 144)
    neighbors = (places[0][1:] / size - 0.5) * (places[0][:-1] / size - 0.5)
    check_mean("neighbors", neighbors, 0, 1 / 144)


@given(WORD, st.integers(1, 20), st.integers(0, 5))
def test_a_shorter_draw_is_a_prefix_of_a_longer_one(seed, words, skipped):
    index, sub_index = np.arange(5), np.arange(5) * 7
    more = random.bits(seed, Stream.MASKING, 3, index, 4 * skipped + words, sub_index)
    np.testing.assert_array_equal(random.bits(seed, Stream.MASKING, 3, index, words, sub_index), more[:, :words])
    rest = random.bits(seed, Stream.MASKING, 3, index, words, sub_index, 4 * skipped)
    np.testing.assert_array_equal(rest, more[:, 4 * skipped :])
    alone = random.bits(seed, Stream.MASKING, 3, index[4:], words, 28)
    np.testing.assert_array_equal(alone, more[4:, :words])


@given(WORD, WORD, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=6))
def test_coin_flips_count_the_first_bits(seed, epoch, pairs):
    index, flips = np.arange(len(pairs)) * 3, np.array(pairs).T
    sub_index = index + 1
    heads = random.coin_flips(seed, epoch, index, sub_index, flips)
    words = random.bits(seed, Stream.TRUNCATION, epoch, index, 16, sub_index).reshape(-1, 4, 2, 2)
    for draw in range(2):
        for count, row, number in zip(heads[draw], words[:, :, draw].reshape(-1, 8), flips[draw], strict=True):
            coins = [word >> bit & 1 for word in row.tolist() for bit in range(32)]
            assert count == sum(coins[:number])
    # An index alone gives the same result as among others.
    alone = [
        random.coin_flips(seed, epoch, index[i : i + 1], sub_index[i : i + 1], flips[:, i : i + 1])
        for i in range(len(pairs))
    ]
    assert heads.tolist() == np.concatenate(alone, axis=1).tolist()
