"""Tests of pairs as rows, single or packed: each pair is kept whole, and a batch depends only on (seed, step)."""

import itertools

import numpy as np
import pytest

from bertjax.data.codecs.translation.batches import PairRows, StreamBatches
from bertjax.data.rows.packed_rows import PackedBatches, PackedRows, row_capacity
from bertjax.errors import UserError


def pair(number, source, target):
    """A pair that its tokens identify."""
    first = 100 * (number + 1)
    return {
        "input_ids": np.arange(first, first + source, dtype=np.int32),
        "labels": np.arange(first + 50, first + 50 + target, dtype=np.int32),
    }


def test_a_generated_pair_that_is_too_long_is_an_error():
    def stream(start):
        return (pair(number, 2 + number, 1) for number in itertools.count(start))

    batches = StreamBatches(stream, length=4, batch_size=2).training(0, np.arange(2))
    assert next(batches)["input_ids"].shape == (2, 4)
    with pytest.raises(UserError, match=r"data\.seq_len: got 4; expected at least 5, the longest pair of dates"):
        next(batches)


def pairs_of(sizes):
    return PairRows.of(pair(number, *size) for number, size in enumerate(sizes))


def test_a_worked_example():
    rows = pairs_of([(2, 3), (4, 1)])
    assert rows.lengths.tolist() == [3, 4]
    batch = rows.padded(np.array([1, -1, 0]), 5)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "input_ids": [[200, 201, 202, 203, 0], [0] * 5, [100, 101, 0, 0, 0]],
        "segment_ids": [[1, 1, 1, 1, 0], [0] * 5, [1, 1, 0, 0, 0]],
        "labels": [[250, 0, 0, 0, 0], [0] * 5, [150, 151, 152, 0, 0]],
        "target_segment_ids": [[1, 0, 0, 0, 0], [0] * 5, [1, 1, 1, 0, 0]],
        "weights": [1.0, 0.0, 1.0],
    }
    assert {array.dtype.name for array in batch.values()} == {"int32", "float32"}


def test_a_worked_example_of_packing():
    rows = PackedRows(pairs_of([(2, 3), (4, 1), (7, 7)]), row_capacity(8, 4), seed=0, epoch=0)
    assert sorted(rows.lengths.tolist()) == [7, 7]
    assert len(PackedRows(pairs_of([(2, 3), (4, 1)]), row_capacity(8, 1), seed=0, epoch=0).lengths) == 2
    both = int(rows.padded(np.array([0]), 8)["segment_ids"].max() == 1)
    batch = rows.padded(np.array([both, -1]), 8)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "input_ids": [[100, 101, 200, 201, 202, 203, 0, 0], [0] * 8],
        "segment_ids": [[1, 1, 2, 2, 2, 2, 0, 0], [0] * 8],
        "position_ids": [[0, 1, 0, 1, 2, 3, 0, 0], [0] * 8],
        "labels": [[150, 151, 152, 250, 0, 0, 0, 0], [0] * 8],
        "target_segment_ids": [[1, 1, 1, 2, 0, 0, 0, 0], [0] * 8],
        "target_position_ids": [[0, 1, 2, 0, 0, 0, 0, 0], [0] * 8],
        "weights": [1.0, 0.0],
    }
    assert {array.dtype.name for array in batch.values()} == {"int32", "float32"}


@pytest.fixture(scope="module")
def packed():
    sizes = np.random.default_rng(0).integers(3, 20, (300, 2)).tolist()
    return lambda seed: PackedBatches(pairs_of(sizes), row_capacity(40, 8), 4, seed)


def take(batches, start, count, rows=(0, 1, 2, 3)):
    return list(itertools.islice(batches.training(start, np.array(rows)), count))


def test_a_packed_batch_is_a_function_of_seed_and_step(packed):
    batches = packed(3)
    steps = batches.steps_per_epoch
    whole = take(batches, 0, 2 * steps + 2)
    for start in (1, steps - 1, steps, 2 * steps - 1):
        for batch, again in zip(whole[start:], take(packed(3), start, len(whole) - start), strict=True):
            np.testing.assert_equal(batch, again)

    def company(epoch):
        """Returns the sets of pairs that share a row."""
        pairs = [(batch, row) for batch in epoch for row in range(4)]
        numbers = [batch["input_ids"][row][batch["segment_ids"][row] > 0] // 100 for batch, row in pairs]
        return {frozenset(row.tolist()) for row in numbers}

    others = company(take(packed(4), 0, steps))
    assert len(company(whole[:steps]) & company(whole[steps : 2 * steps])) < 10, "each epoch must be packed again"
    assert len(company(whole[:steps]) & others) < 10
