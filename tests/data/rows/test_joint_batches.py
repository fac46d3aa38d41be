import itertools

import numpy as np
import pytest

from bertjax.data.rows.buckets import max_examples
from bertjax.data.rows.joint_batches import Examples, JointBatches, row_counts
from bertjax.data.rows.stored import Ragged

LENGTH, SIZE, TEXTS = 64, 16, 3


def examples(counts, numbers=None):
    """Examples with these numbers of texts, whose tokens are all different."""
    rng = np.random.default_rng(len(counts))
    lengths = rng.integers(3, 30, sum(counts)).astype(np.int32)
    tokens = np.arange(lengths.sum(), dtype=np.int32)
    fields = {
        "input_ids": Ragged(tokens, lengths),
        "token_type_ids": Ragged(np.zeros_like(tokens), lengths),
        "place": np.concatenate([np.arange(count) for count in counts]).astype(np.int32),
        "number": np.arange(sum(counts), dtype=np.int32) if numbers is None else np.array(numbers, np.int32),
        "score": np.arange(sum(counts), dtype=np.float32),
    }
    return Examples(fields, TEXTS if numbers is None else 2), np.split(tokens, np.cumsum(lengths)[:-1])


def batches_of(found, sizes):
    return JointBatches(found, LENGTH, sizes, SIZE, seed=3)


def test_every_text_is_once_in_an_epoch_at_its_place():
    found, tokens = examples([2, 3] * 35)
    sizes = row_counts(found, LENGTH, SIZE, multiple=4, seed=3)
    batches, seen = batches_of(found, sizes), []
    for batch in itertools.islice(batches.training(0, np.arange(SIZE)), batches.steps_per_epoch):
        assert len(batch["input_ids"]) in sizes and len(batch["input_ids"]) % 4 == 0
        for numbers, places, scores in zip(batch["numbers"], batch["places"], batch["scores"], strict=True):
            for number, place, score in zip(numbers, places, (numbers[0], *scores), strict=True):
                if place >= 0:
                    row, slot = divmod(place, max_examples(LENGTH))
                    ids = batch["input_ids"][row][batch["segment_ids"][row] == slot + 1]
                    np.testing.assert_array_equal(ids, tokens[number])
                    assert batch["input_ids"][row, batch["cls_positions"][row, slot]] == ids[0] and score == number
                    seen.append(number)
    assert sorted(seen) == list(range(len(tokens)))
    assert batch["weights"].sum() == 70 % SIZE, "examples without texts have no weight"


def test_each_epoch_has_its_own_order():
    found, _ = examples([2] * 64)
    batches = batches_of(found, row_counts(found, LENGTH, SIZE, 1, 3))
    (first,), (second,) = (itertools.islice(batches.training(step, np.arange(SIZE)), 1) for step in (0, 4))
    assert not np.array_equal(first["numbers"], second["numbers"])


def test_parts_of_a_batch_make_the_whole():
    found, _ = examples([3] * 32)
    batches = batches_of(found, row_counts(found, LENGTH, SIZE, 4, 3))
    whole, *parts = (next(batches.training(1, np.arange(SIZE)[rows])) for rows in (slice(None), slice(8), slice(8, 16)))
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def test_a_batch_of_long_texts_has_more_rows():
    found, _ = examples([2] * 32)
    batches = batches_of(found, (1, 32))
    assert len(next(batches.training(0, np.arange(SIZE)))["input_ids"]) == 32


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_text_of_a_class_is_related_to_another_of_its_class(epoch):
    numbers = np.arange(50) % 7
    numbers[0] = 99
    found, _ = examples([1] * 50, numbers)
    first, second = found.ordered(3, epoch).T
    assert sorted(first) == list(range(50)) and second[first == 0] == -1
    others = second >= 0
    assert others.sum() == 49 and (first != second).all()
    np.testing.assert_array_equal(numbers[first[others]], numbers[second[others]])
