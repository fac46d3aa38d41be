"""The file of what a run shows: numbers as bytes, and no more of them than a page has room for."""

import base64
import json
import re
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from bertjax.contract import Attended, Example
from bertjax.modes import report, samples
from bertjax.tasks.samples import lengths


def read(array):
    shades = np.frombuffer(base64.b64decode(array["data"]), np.uint8).reshape(array["shape"])
    return array["low"] + shades / 255 * (array["high"] - array["low"])


def test_numbers_come_back():
    values = np.random.default_rng(0).normal(size=(3, 4))
    found = samples._plain({"a": [values], "b": (1, "x")})
    assert np.abs(read(found["a"][0]) - values).max() <= (values.max() - values.min()) / 510 + 1e-9
    assert found["b"] == [1, "x"] and json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.array([[np.nan, 1.0]]), np.zeros((0, 3))])
def test_odd_numbers_do_no_harm(values):
    found = read(samples._plain(values))
    assert found.shape == values.shape and np.isfinite(found).all()


def test_weights_are_shades_between_0_and_1():
    found = samples._plain(Attended(np.full((1, 1, 1, 2), 0.5, np.float32), ["a"], ["b", "c"]))
    assert (found["queries"], found["keys"]) == (["a"], ["b", "c"])
    assert (found["weights"]["low"], found["weights"]["high"]) == (0.0, 1.0)
    assert read(found["weights"]) == pytest.approx(np.full((1, 1, 1, 2), 0.5), abs=1 / 255)


def test_there_is_no_more_attention_than_a_page_has_room_for():
    def record(side):
        return {
            "kind": "x",
            "attention": {"encoder": Attended(np.zeros((12, 12, side, side)), [""] * side, [""] * side)},
        }

    fitting = list(samples._fitting([record(60), record(60), record(8)]))
    assert ["attention" in each for each in fitting] == [True, False, True]
    size = len(json.dumps(samples._plain(fitting)))
    assert size < 1_000_000


@pytest.mark.parametrize(("decodes", "most"), [(False, 20_000), (True, 500)])
def test_predictions_are_in_the_order_of_their_loss(decodes, most):
    records = [{"text": text, "loss": loss, "reference": "r"} for text, loss in (("a", 1.0), ("b", None), ("c", 3.0))]
    errors = mock.Mock(return_value=[*records, {"text": "a"}])
    runner = SimpleNamespace(task=SimpleNamespace(decodes=decodes), errors=errors)
    found = samples.predictions(runner, None)
    assert [record["loss"] for record in found] == [3.0, 1.0, None, None]
    assert len({record["digest"] for record in found}) == 4, "a text without a gold is another example"
    assert errors.call_args.args == (None, most)


def test_lengths_of_an_example_are_those_of_its_rows():
    rows = [{"input_ids": np.zeros(n, np.int32)} for n in (4, 5)]
    assert lengths(Example(rows, None)) == {"tokens": 9, "row_tokens": [4, 5]}
    assert lengths(Example(rows[:1], None)) == {"tokens": 4}


@pytest.mark.parametrize(
    ("made_by", "steps", "is_kept"),
    [("2", ("2", "4"), False), ("4", ("2", "4"), True), ("2", (), True), (None, ("4",), True)],
)
def test_samples_of_an_earlier_checkpoint_are_made_again_or_left_out(caplog, tmp_path, made_by, steps, is_kept):
    record = {"kind": "text"} | ({"checkpoint": made_by} if made_by else {})
    (tmp_path / samples.FILE).write_text(json.dumps(record) + "\n")
    (tmp_path / samples.PREDICTIONS).touch()
    (tmp_path / "config.json").write_text(json.dumps({"checkpoint": {"final": "latest"}}))
    for step in steps:
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
    asked = []

    def trained():
        asked.append(True)
        raise OSError(28, "No space left on device", "samples.jsonl")

    report.write_samples(tmp_path, trained)
    assert asked == ([] if is_kept else [True])
    assert bool(re.search("report without samples: .*samples.jsonl", caplog.text)) != is_kept
