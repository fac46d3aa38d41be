import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import plan
from bertjax.data.masking import MaskingConfig
from bertjax.data.plan import PLANNED_ROW, Plan
from bertjax.data.sentence_pairs import ROW, PairsConfig, Sentences, make_rows
from bertjax.errors import UserError

PAIRS = PairsConfig(seq_len=32, next_sentence=True, short_seq_prob=0.1, random_next_prob=0.5)
LENGTHS = np.tile(np.array([3, 9, 4, 12, 7, 5], np.int32), 40)
SIZES = np.array([1, 2, 3, 4, 5, 9] * 10, np.int32)


def masking(mode: str) -> MaskingConfig:
    return MaskingConfig(
        rate=0.15,
        max_predictions=5,
        mask_fraction=0.8,
        random_fraction=0.1,
        keep_fraction=0.1,
        whole_word=False,
        mode=mode,
        dupe_factor=2,
    )


def make_plan(folder: Path, mode: str = "dynamic", seed: int = 7, pairs: PairsConfig = PAIRS) -> Plan:
    return Plan(Sentences(LENGTHS, SIZES), pairs, masking(mode), seed=seed, folder=folder)


def digest(folder: Path) -> str:
    """Of the rows of three epochs."""
    made = make_plan(folder)
    return hashlib.sha256(b"".join(made.rows(epoch).tobytes() for epoch in range(3))).hexdigest()


def by_number(rows: np.ndarray) -> np.ndarray:
    return rows[np.argsort(rows["number"])]


def test_two_plans_are_equal(tmp_path):
    first, second = make_plan(tmp_path / "a"), make_plan(tmp_path / "b")
    # One asks for its epochs in order, the other does not.
    ordered = [first.rows(epoch).tobytes() for epoch in range(4)]
    assert [second.rows(epoch).tobytes() for epoch in (3, 1, 0, 2)] == [ordered[i] for i in (3, 1, 0, 2)]
    assert len(set(ordered)) == 4


def test_another_process_has_the_same_plan(tmp_path):
    code = f"""
import importlib.util, pathlib
spec = importlib.util.spec_from_file_location("test_plan", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.digest(pathlib.Path({str(tmp_path / "other")!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest(tmp_path / "this")


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_each_epoch_is_a_permutation_of_its_rows(mode, tmp_path):
    made, config = make_plan(tmp_path, mode), masking(mode)
    for epoch in range(5):
        rows = made.rows(epoch)
        assert rows.dtype == PLANNED_ROW
        assert not (np.diff(rows["number"]) == 1).all()
        expected = make_rows(Sentences(LENGTHS, SIZES), PAIRS, 7, config.epoch_of_draws(epoch))
        assert by_number(rows)["number"].tolist() == list(range(len(expected)))
        for name in ROW.names:
            np.testing.assert_array_equal(by_number(rows)[name], expected[name])


def test_static_epochs_repeat_their_draws_but_not_their_order(tmp_path):
    made = make_plan(tmp_path, "static")
    rows = [made.rows(epoch) for epoch in range(5)]
    drawn = [by_number(each).tobytes() for each in rows]
    assert drawn[0] == drawn[2] == drawn[4]
    assert drawn[1] == drawn[3] != drawn[0]
    assert len({each.tobytes() for each in rows}) == 5


def test_dynamic_epochs_are_drawn_anew(tmp_path):
    made = make_plan(tmp_path)
    assert len({by_number(made.rows(epoch)).tobytes() for epoch in range(5)}) == 5


def test_a_written_epoch_is_read_and_not_made_again(tmp_path, monkeypatch):
    first = make_plan(tmp_path).rows(0).tobytes()
    monkeypatch.setattr(plan, "make_rows", None)
    again = make_plan(tmp_path)
    assert again.rows(0).tobytes() == first
    assert isinstance(again.rows(0), np.memmap)


def test_plans_of_other_settings_stand_beside_each_other(tmp_path):
    other_pairs = PairsConfig(seq_len=16, next_sentence=True, short_seq_prob=0.1, random_next_prob=0.5)
    for _ in range(2):  # made, then read
        rows = [
            make_plan(tmp_path).rows(0),
            make_plan(tmp_path, seed=8).rows(0),
            make_plan(tmp_path, pairs=other_pairs).rows(0),
        ]
        assert len({each.tobytes() for each in rows}) == 3
        # The second epoch of static masking is not the third's, as it is in dynamic masking.
        assert make_plan(tmp_path).rows(2).tobytes() != make_plan(tmp_path, "static").rows(2).tobytes()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(3, 20), min_size=1, max_size=6), st.integers(1, 3), st.data())
def test_locate_counts_the_full_batches_of_each_epoch(tmp_path_factory, counts, batch_size, data):
    made = make_plan(tmp_path_factory.mktemp("plan"))
    made.rows = lambda epoch: np.empty(counts[epoch % len(counts)], PLANNED_ROW)
    places = [(epoch, place) for epoch in range(12) for place in range(counts[epoch % len(counts)] // batch_size)]
    step = data.draw(st.integers(0, len(places) - 1))
    assert made.locate(step, batch_size) == places[step]


def test_locate_walks_epochs_of_different_lengths(tmp_path):
    made, batch_size = make_plan(tmp_path), 16
    steps = [len(made.rows(epoch)) // batch_size for epoch in range(6)]
    assert len(set(steps)) > 1
    expected = [(epoch, place) for epoch, count in enumerate(steps) for place in range(count)]
    fresh = make_plan(tmp_path)
    assert fresh.locate(len(expected) - 1, batch_size) == expected[-1]
    assert [fresh.locate(step, batch_size) for step in range(len(expected))] == expected


def test_an_epoch_smaller_than_a_batch_is_told(tmp_path):
    made = make_plan(tmp_path)
    count = len(made.rows(0))
    assert made.locate(0, count) == (0, 0)
    with pytest.raises(UserError, match=f"batch_size: got {count + 1} rows a step, but {count} rows in an epoch"):
        made.locate(0, count + 1)


def test_an_unfinished_file_never_has_the_final_name(tmp_path, monkeypatch):
    seen: list[Path] = []

    def interrupted(path: Path, rows: np.ndarray) -> None:
        path.write_bytes(b"half")
        seen.append(path)
        raise KeyboardInterrupt

    expected = make_plan(tmp_path / "whole").rows(0).tobytes()
    final = next((tmp_path / "whole").rglob("*.npy")).name
    monkeypatch.setattr(plan.np, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_plan(tmp_path / "cut").rows(0)
    assert seen
    assert final not in [path.name for path in (tmp_path / "cut").rglob("*")]
    monkeypatch.undo()
    # What the interrupted process left is no hindrance.
    assert seen[0].exists()
    assert make_plan(tmp_path / "cut").rows(0).tobytes() == expected
    assert (seen[0].parent / final).exists()


def test_the_final_name_appears_when_all_is_written(tmp_path, monkeypatch):
    save, folders = np.save, []

    def watched(path: Path, rows: np.ndarray) -> None:
        save(path, rows)
        folders.append([other.name for other in path.parent.iterdir()])

    monkeypatch.setattr(plan.np, "save", watched)
    made = make_plan(tmp_path)
    made.rows(0), made.rows(1)
    names = sorted(path.name for path in tmp_path.rglob("*.npy"))
    assert len(names) == 2
    assert [names[0] in folder for folder in folders] == [False, True]
    assert all(names[1] not in folder for folder in folders)


def test_threads_share_a_plan(tmp_path):
    expected = [make_plan(tmp_path / "alone").rows(epoch).tobytes() for epoch in range(5)]
    for attempt in range(10):
        made = make_plan(tmp_path / str(attempt))
        with ThreadPoolExecutor(8) as pool:
            drawn = list(pool.map(lambda epoch, made=made: made.rows(epoch).tobytes(), [4, 3] * 4))
        assert drawn == [expected[4], expected[3]] * 4
        assert [made.rows(epoch).tobytes() for epoch in range(5)] == expected
