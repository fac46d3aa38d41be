import dataclasses

import numpy as np
import pytest

from bertjax.data.pretraining import epoch_plan
from bertjax.data.pretraining.batch_config import InstanceRowsConfig
from tests.data.batches import (
    ALL,
    BATCH,
    CONFIG,
    ONE_SEGMENT,
    PACKED,
    PAIRS,
    actual_text,
    assert_equal,
    expected_text,
    joined,
    make_batches,
    rows_in,
)


@pytest.mark.parametrize("batch_size", [1, 7, 8, 1000])
@pytest.mark.parametrize("pairs", [PAIRS, ONE_SEGMENT])
@pytest.mark.parametrize("rows", [CONFIG.rows, PACKED])
def test_evaluation_covers_each_row_once(corpus, batch_size, pairs, rows):
    batches = make_batches(corpus, "valid", batch_size=batch_size, pairs=pairs, rows=rows)
    every = list(batches.evaluation(np.arange(batch_size)))
    count = rows_in(batches, 0)
    assert len(every) == -(-count // batch_size)
    used = np.concatenate([batch["segment_ids"].any(axis=1) for batch in every])
    assert used.tolist() == [True] * count + [False] * (len(every) * batch_size - count)
    assert actual_text(every) == expected_text(corpus, "valid", pairs)
    last = every[-1]
    filler = ~last["segment_ids"].any(axis=1)
    for name in ("masked_weights", "next_sentence_weights"):
        if name in last:
            assert not last[name][filler].any()
    assert last["masked_weights"][~filler].any()


@pytest.mark.parametrize("block", [1 << 20, 10])
@pytest.mark.parametrize("packing", [False, True])
def test_evaluation_of_the_first_rows(corpus, packing, block, monkeypatch):
    monkeypatch.setattr(epoch_plan, "_BLOCK", block)
    rows = InstanceRowsConfig(packing=packing, valid_rows=0)
    every = joined(list(make_batches(corpus, "valid", rows=rows).evaluation(ALL)))
    count = int(every["segment_ids"].any(axis=1).sum())
    for most in (1, 5, 8, 13, count, count + 1):
        rows = dataclasses.replace(rows, valid_rows=most)
        some = joined(list(make_batches(corpus, "valid", rows=rows).evaluation(ALL)))
        kept = min(most, count)
        assert len(some["input_ids"]) == -(-kept // BATCH) * BATCH
        assert_equal({name: array[:kept] for name, array in some.items()}, {n: a[:kept] for n, a in every.items()})
        assert not some["segment_ids"][kept:].any()
        assert not some["masked_weights"][kept:].any()
