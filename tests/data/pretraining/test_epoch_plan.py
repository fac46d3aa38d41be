import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.pretraining import epoch_plan
from bertjax.data.pretraining.epoch_plan import EpochPlan, PlannedRows
from bertjax.data.pretraining.sentence_pairs import INSTANCE, PairsConfig, Sentences, make_instances
from bertjax.data.rows.packing import Packing
from bertjax.errors import UserError
from tests.data.batches import MASKING, PAIRS

LENGTHS = np.tile(np.array([3, 9, 4, 12, 7, 5], np.int32), 40)
SIZES = np.array([1, 2, 3, 4, 5, 9] * 10, np.int32)
PACKING = Packing(32, 6, 4, tuple(np.clip(np.rint(np.arange(33) * 0.15), 1, 5).astype(int).tolist()))


def make_plan(
    folder: Path, mode: str = "dynamic", seed: int = 7, pairs: PairsConfig = PAIRS, packing: Packing | None = None
) -> EpochPlan:
    masking = dataclasses.replace(MASKING, mode=mode)
    return EpochPlan(Sentences(LENGTHS, SIZES), pairs, masking, packing, num_special=3, seed=seed, folder=folder)


def all_rows(made: EpochPlan, epoch: int) -> PlannedRows:
    return made.rows(epoch, 0, made.count(epoch))


def in_order(rows: PlannedRows) -> np.ndarray:
    """Returns the instances in the order of the text."""
    return np.sort(rows.instances, order=["document_a", "start_a"])


@pytest.fixture(params=[1 << 20, 120], ids=["one block", "four blocks"])
def block(request, monkeypatch) -> int:
    """The size of a block, in sentences."""
    monkeypatch.setattr(epoch_plan, "_BLOCK", request.param)
    return request.param


@pytest.fixture
def made_blocks(monkeypatch) -> list[tuple[int, int]]:
    """Collects the epoch and number of each block that is planned."""
    made, original = [], EpochPlan._make

    def make(self: EpochPlan, epoch: int, number: int) -> PlannedRows:
        made.append((epoch, number))
        return original(self, epoch, number)

    monkeypatch.setattr(EpochPlan, "_make", make)
    return made


@pytest.mark.parametrize("packing", [None, PACKING])
@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_each_epoch_contains_each_instance_once(mode, packing, block, tmp_path):
    made, config = make_plan(tmp_path, mode, packing=packing), dataclasses.replace(MASKING, mode=mode)
    for epoch in range(5):
        rows = all_rows(made, epoch)
        assert rows.instances.dtype == INSTANCE
        documents = np.arange(len(SIZES))
        expected = make_instances(Sentences(LENGTHS, SIZES), documents, PAIRS, 3, 7, config.epoch_of_draws(epoch))
        assert in_order(rows).tobytes() == expected.tobytes()
        assert in_order(rows).tobytes() != rows.instances.tobytes()
        if packing is None:
            assert rows.first.tolist() == list(range(len(expected) + 1))
        else:
            assert len(rows) < len(expected)


@pytest.mark.parametrize("removed", [[], [0, 7, 8, 59], list(range(58))])
def test_removed_documents_are_neither_planned_nor_drawn(removed, block, tmp_path):
    sentences = Sentences(LENGTHS, SIZES)
    options = {"pairs": PAIRS, "masking": MASKING, "packing": None, "num_special": 3, "seed": 7, "folder": tmp_path}
    made = EpochPlan(sentences.without(np.array(removed, int)), **options)
    instances = [all_rows(made, epoch).instances for epoch in range(4)]
    of_all = [all_rows(EpochPlan(sentences, **options), epoch).instances for epoch in range(4)]
    documents = np.setdiff1d(np.arange(len(SIZES)), removed)
    assert all(np.unique(rows["document_a"]).tolist() == documents.tolist() for rows in instances)
    drawn = np.concatenate([rows["document_b"][rows["is_random_next"]] for rows in instances])
    assert len(drawn) > 5 and set(drawn) <= set(documents)
    assert len(list(tmp_path.iterdir())) == 2, "counts of other documents are separate"
    if not removed:
        assert [rows.tobytes() for rows in instances] == [rows.tobytes() for rows in of_all]


def test_blocks_have_documents_from_the_whole_text(tmp_path, monkeypatch, check_uniform):
    sizes = np.ones(100_000, np.int32)
    monkeypatch.setattr(epoch_plan, "_BLOCK", 50_000)
    made = EpochPlan(Sentences(sizes * 9, sizes), PAIRS, MASKING, None, num_special=3, seed=0, folder=tmp_path)
    first = made.rows(0, 0, 10_000).instances["document_a"]
    check_uniform("documents of the first block", np.bincount(first // 5000, minlength=20))
    second = made.rows(0, 10_000, 20_000).instances["document_a"]
    other_epoch = made.rows(1, 0, 10_000).instances["document_a"]
    assert set(first).isdisjoint(second)
    assert 800 < len(set(first) & set(other_epoch)) < 1200


@settings(max_examples=20)
@given(st.integers(0, 100), st.integers(0, 100))
def test_rows_do_not_depend_on_how_many_are_requested(tmp_path_factory, start, count):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(epoch_plan, "_BLOCK", 120)
        made = make_plan(tmp_path_factory.getbasetemp() / "alone", packing=PACKING)
        whole = all_rows(made, 0)
        stop = min(start + count, len(whole))
        if start < stop:
            some, expected = made.rows(0, start, stop), whole.take(np.arange(start, stop))
            assert some.instances.tobytes() == expected.instances.tobytes()
            assert some.first.tolist() == expected.first.tolist()


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=2), min_size=1, max_size=4), st.data())
def test_locate_counts_the_full_batches_of_each_epoch(tmp_path_factory, counts, data):
    batch_size = data.draw(st.integers(1, min(map(sum, counts))))
    made = make_plan(tmp_path_factory.mktemp("plan"))
    made._num_blocks = 2
    made._block = lambda epoch, number: np.empty(counts[epoch % len(counts)][number])
    totals = [sum(counts[epoch % len(counts)]) for epoch in range(12)]
    places = [(epoch, i * batch_size) for epoch, total in enumerate(totals) for i in range(total // batch_size)]
    step = data.draw(st.integers(0, len(places) - 1))
    assert made.locate(step, batch_size) == places[step]


def test_an_epoch_smaller_than_a_batch_is_reported(tmp_path, block):
    made = make_plan(tmp_path)
    count = made.count(0)
    assert made.locate(0, count) == (0, 0)
    with pytest.raises(UserError, match=f"batch_size: got {count + 1} rows per step, but {count} rows per epoch"):
        made.locate(0, count + 1)


def test_a_resumed_run_plans_only_the_block_it_starts_in(tmp_path, monkeypatch, made_blocks):
    monkeypatch.setattr(epoch_plan, "_BLOCK", 120)
    first = make_plan(tmp_path)
    per_epoch = [first.count(epoch) // 4 for epoch in range(3)]
    expected = first.rows(2, 4, 8).instances.tobytes()
    first._planner.shutdown()
    made_blocks.clear()
    again = make_plan(tmp_path)
    assert again.locate(per_epoch[0] + per_epoch[1] + 1, 4) == (2, 4)
    assert not made_blocks
    assert again.rows(2, 4, 8).instances.tobytes() == expected
    again._planner.shutdown()
    assert made_blocks == [(2, 0), (2, 1)]


def test_different_settings_have_separate_counts(tmp_path):
    other_pairs = PairsConfig(16, True, False, 0.1, 0.5)
    plans = [
        make_plan(tmp_path),
        make_plan(tmp_path, seed=8),
        make_plan(tmp_path, pairs=other_pairs),
        make_plan(tmp_path, "static"),
        make_plan(tmp_path, packing=PACKING),
    ]
    counts = [[made.count(epoch) for epoch in range(3)] for made in plans]
    files = sorted(tmp_path.iterdir())
    assert len(files) == len(plans)
    assert sorted([sum(epoch) for epoch in json.loads(file.read_text()).values()] for file in files) == sorted(counts)


@pytest.mark.parametrize("left", ["", "{", '{"0": ['])
def test_lost_or_damaged_counts_are_counted_again(tmp_path, left):
    expected = [make_plan(tmp_path).count(epoch) for epoch in range(2)]
    (path,) = tmp_path.iterdir()
    path.write_text(left)
    assert [make_plan(tmp_path).count(epoch) for epoch in range(2)] == expected
    assert json.loads(path.read_text()) == {"0": [expected[0]], "1": [expected[1]]}


def test_a_folder_that_cannot_be_written_is_not_an_error(tmp_path):
    expected = make_plan(tmp_path / "writable").count(0)
    (tmp_path / "file").touch()
    made = make_plan(tmp_path / "file")
    assert made.count(0) == expected
    assert made.locate(1, 4) == (0, 4)
