import numpy as np
import pytest

from bertjax.data import splits
from bertjax.data.splits import SplitConfig, check_split, held_out, is_held_out, read_splits
from bertjax.errors import UserError


def test_the_same_fraction_is_split_off_each_time():
    out = held_out(np.arange(10_000), 0.1, 0)
    assert out.mean() == pytest.approx(0.1, abs=0.01)
    np.testing.assert_array_equal(out[:100], held_out(np.arange(100), 0.1, 0))
    assert (out != held_out(np.arange(10_000), 0.1, 1)).any()


@pytest.mark.parametrize(("fraction", "count"), [(1e-6, 0), (1 - 1e-6, 3)])
def test_an_empty_split_is_an_error(fraction, count):
    message = rf"data.valid_fraction={fraction}: got {count} of 3 rows of a.tsv in the validation split; .*at least"
    with pytest.raises(UserError, match=message):
        list(read_splits(SplitConfig("a.tsv", "", fraction), lambda source, key: iter("abc"), 0))
    message = message.replace("rows of", "rows with 1 texts, which are not divided, of")
    with pytest.raises(UserError, match=message):
        list(read_splits(SplitConfig("a.tsv", "", fraction), lambda *_: iter("aaa"), 0, lambda *_: 0, "texts"))


def test_rows_come_in_order_with_their_splits(monkeypatch):
    monkeypatch.setattr(splits, "_SPLIT_AT_ONCE", 7)
    found = list(read_splits(SplitConfig("a.tsv", "", 0.3), lambda source, key: iter(range(100)), 0))
    assert [row for _, row in found] == list(range(100))
    assert [split == "valid" for split, _ in found] == held_out(np.arange(100), 0.3, 0).tolist()
    groups = list(read_splits(SplitConfig("a.tsv", "", 0.3), lambda *_: iter(range(100)), 0, lambda row, _: row // 5))
    assert [split == "valid" for split, _ in groups] == np.repeat(held_out(np.arange(20), 0.3, 0), 5).tolist()


def test_training_rows_come_before_those_of_another_source():
    def read(source, key):
        return iter([f"{key}={source}"])

    found = list(read_splits(SplitConfig("a.tsv", "b.tsv", 0.0), read, 0))
    assert found == [("train", "data.source=a.tsv"), ("valid", "data.valid_source=b.tsv")]
    assert list(read_splits(SplitConfig("", "b.tsv", 0.0), read, 0)) == [("valid", "data.valid_source=b.tsv")]


def test_the_split_of_a_text_depends_on_its_content():
    texts = [f"text {number}" for number in range(10_000)]
    out = [is_held_out(text, 0.1, 0) for text in texts]
    assert np.mean(out) == pytest.approx(0.1, abs=0.01)
    assert [number for number in range(50) if out[number]] == [4, 35, 41, 42]  # existing runs depend on this draw
    assert not any(is_held_out(text, 0.0, 0) for text in texts) and all(is_held_out(text, 1.0, 0) for text in texts)
    assert out != [is_held_out(text, 0.1, 1) for text in texts]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_fraction_is_required_without_a_validation_source(fraction):
    with pytest.raises(UserError, match=r"config key data.valid_fraction: got .*above 0 and below 1.*Fix: use 0.1"):
        check_split("", fraction)
    check_split("dev.tsv", fraction)
