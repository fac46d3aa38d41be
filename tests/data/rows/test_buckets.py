"""Tests of bucketed batches: few shapes, each row once per epoch, and an order that depends only on (seed, step)."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.rows.buckets import (
    BucketedBatches,
    Rows,
    bucket_lengths,
    budget_sizes,
    check_seq_len,
    choose_lengths,
    max_examples,
)
from bertjax.data.rows.packed_rows import count_rows, training_batches
from bertjax.data.rows.stored import fields_of
from bertjax.errors import UserError


def row(number, length):
    """A row that its first token identifies."""
    ids = np.arange(length, dtype=np.int32) + 1000 * (number + 1)
    return {"input_ids": ids, "token_type_ids": np.ones(length, np.int32), "labels": np.array(number, np.int32)}


def batches_of(lengths, batch_size=4, seed=3, limit=40, budget=False):
    rows = Rows(fields_of(row(i, n) for i, n in enumerate(lengths)))
    padded = bucket_lengths(limit)
    sizes = budget_sizes(padded, batch_size) if budget else [batch_size] * len(padded)
    return BucketedBatches(rows, padded, sizes, seed)


def take(batches, start, count, rows=None):
    rows = np.arange(batches.sizes[-1]) if rows is None else rows
    return list(itertools.islice(batches.training(start, rows), count))


def test_a_worked_example():
    rows = Rows(fields_of([row(0, 2), row(1, 3)]))
    assert rows.lengths.tolist() == [2, 3]
    batch = rows.padded(np.array([1, -1, 0]), 4)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "segment_ids": [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]],
        "weights": [1.0, 0.0, 1.0],
        "input_ids": [[2000, 2001, 2002, 0], [0, 0, 0, 0], [1000, 1001, 0, 0]],
        "token_type_ids": [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]],
        "labels": [1, 0, 0],
    }
    assert batch["weights"].dtype == np.float32 and batch["input_ids"].dtype == np.int32


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 300))
def test_the_chosen_lengths_have_the_lowest_cost(lengths, of_a_length):
    def cost(chosen):
        return sum(min(each for each in chosen if each >= length) for length in lengths) + of_a_length * len(chosen)

    longest = next(each for each in bucket_lengths(40) if each >= max(lengths))
    shorter = [each for each in bucket_lengths(40) if each < longest]
    subsets = ((*part, longest) for size in range(len(shorter) + 1) for part in itertools.combinations(shorter, size))
    chosen = choose_lengths(np.array(lengths), 40, of_a_length)
    assert chosen[-1] == longest
    assert cost(chosen) == min(map(cost, subsets))


def test_a_worked_example_of_packing():
    rows = Rows(fields_of([row(0, 2), row(1, 3), row(2, 4)]))
    batch = rows.packed(np.array([1, 0, 2]), np.array([2, 0, 1]), 6)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "segment_ids": [[1, 1, 1, 2, 2, 0], [0] * 6, [1, 1, 1, 1, 0, 0]],
        "position_ids": [[0, 1, 2, 0, 1, 0], [0] * 6, [0, 1, 2, 3, 0, 0]],
        "input_ids": [[2000, 2001, 2002, 1000, 1001, 0], [0] * 6, [3000, 3001, 3002, 3003, 0, 0]],
        "token_type_ids": [[1, 1, 1, 1, 1, 0], [0] * 6, [1, 1, 1, 1, 0, 0]],
        "labels": [[1, 0], [0, 0], [2, 0]],
        "cls_positions": [[0, 3], [0, 0], [0, 0]],
        "weights": [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]],
    }
    assert batch["weights"].dtype == np.float32
    assert {array.dtype.name for name, array in batch.items() if name != "weights"} == {"int32"}


@settings(max_examples=25)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=60), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_every_row_comes_once_in_an_epoch_of_packed_ones(lengths, batch_size, seed):
    batches = training_batches(Rows(fields_of(row(i, n) for i, n in enumerate(lengths))), (40,), True, batch_size, seed)
    assert batches.steps_per_epoch == -(-count_rows(np.array(lengths), 40, True) // batch_size)
    labels = []
    for batch in itertools.islice(batches.training(0, np.arange(batch_size)), batches.steps_per_epoch):
        assert batch["weights"].shape == (batch_size, max_examples(40))
        for place in zip(*np.nonzero(batch["weights"]), strict=True):
            ids = batch["input_ids"][place[0]][batch["segment_ids"][place[0]] == 1 + place[1]]
            labels.append(int(batch["labels"][place]))
            assert ids.tolist() == row(labels[-1], lengths[labels[-1]])["input_ids"].tolist()
            assert ids[0] == batch["input_ids"][place[0], batch["cls_positions"][place]]
    assert sorted(labels) == list(range(len(lengths)))


@settings(max_examples=50)
@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans()
)
def test_every_row_comes_once_in_an_epoch(lengths, batch_size, seed, budget):
    batches = batches_of(lengths, batch_size, seed, budget=budget)
    epoch = take(batches, 0, batches.steps_per_epoch)
    labels = np.concatenate([batch["labels"][batch["weights"] > 0] for batch in epoch])
    assert sorted(labels.tolist()) == list(range(len(lengths)))
    assert {batch["input_ids"].shape for batch in epoch} <= set(zip(batches.sizes, batches.lengths, strict=True))
    for batch in epoch:
        for label, ids, tokens in zip(batch["labels"], batch["input_ids"], batch["segment_ids"], strict=True):
            if tokens.any():
                assert ids[tokens > 0].tolist() == row(label, lengths[label])["input_ids"].tolist()
    assert sum((batch["weights"] == 0).any() for batch in epoch) <= 1, "at most one batch has empty rows"


def test_the_last_batch_is_padded_to_its_longest_row():
    (batch,) = take(batches_of([10, 16], batch_size=4), 0, 1)
    assert batch["input_ids"].shape == (4, 16)
    assert batch["weights"].tolist().count(0.0) == 2


def test_a_batch_is_a_function_of_seed_and_step():
    batches = batches_of(range(2, 41))
    whole = take(batches, 0, 25)
    for start in (1, 9, 10, 23):  # an epoch has 10 batches
        for batch, again in zip(whole[start:], take(batches, start, 25 - start), strict=True):
            np.testing.assert_equal(batch, again)
    assert any(not np.array_equal(a["labels"], b["labels"]) for a, b in zip(whole[:10], whole[10:20], strict=True)), (
        "a second epoch must have a different order"
    )
    others = take(batches_of(range(2, 41), seed=4), 0, 10)
    assert any(not np.array_equal(a["labels"], b["labels"]) for a, b in zip(whole, others, strict=False))


def test_batches_of_short_rows_have_more_rows_under_a_token_budget():
    batches = batches_of([10] * 40 + [20] * 4 + [40] * 9, budget=True)
    shapes = list(zip(batches.sizes, batches.lengths, strict=True))
    assert shapes == [(20, 8), (12, 12), (8, 16), (4, 24), (4, 32), (4, 40)]
    shapes = [batch["input_ids"].shape for batch in take(batches, 0, batches.steps_per_epoch)]
    assert sorted(shapes) == [(4, 24)] * 2 + [(4, 40)] * 3 + [(12, 12)] * 3


def test_processes_split_the_rows_of_batches_of_any_size():
    batches = batches_of([10] * 40 + [40] * 9, budget=True)
    parts = [take(batches, 0, 8, np.array(rows)) for rows in ([2, 0], [1, 3])]
    for whole, one, two in zip(take(batches, 0, 8), *parts, strict=True):
        factor = len(whole["labels"]) // 4
        assert len(one["labels"]) == len(two["labels"]) == 2 * factor
        for part, rows in ((one, [2, 0]), (two, [1, 3])):
            indices = [row * factor + i for row in rows for i in range(factor)]
            np.testing.assert_array_equal(part["labels"], whole["labels"][indices])


@pytest.mark.parametrize("seq_len", [7, 65])
def test_seq_len_out_of_range_is_an_error(seq_len):
    with pytest.raises(UserError, match=rf"data.seq_len: got {seq_len}; expected 8 to model.max_positions=64"):
        check_seq_len(seq_len, 64)
    check_seq_len(64, 64)
