import pytest

from benchmarks import common
from benchmarks.pretraining_step import ratios


def batch_specs(shape, overrides):
    (spec,) = common.read_config(shape, overrides).example().task.batch_specs()
    return spec


@pytest.mark.parametrize("next_sentence", [True, False])
def test_synthetic_batches_have_the_shapes_of_the_task(next_sentence):
    shape = common.Shape("tiny", 4, 16, 50)
    specs = batch_specs(shape, {"data.next_sentence": next_sentence})
    batch = common.made_up_batch(specs, shape.vocab_size)
    assert {name: (a.shape, a.dtype) for name, a in batch.items()} == {n: (s.shape, s.dtype) for n, s in specs.items()}
    assert batch["input_ids"].min() >= 5 and batch["input_ids"].max() < 50
    assert all(len(set(row)) == shape.predicted for row in batch["masked_positions"].tolist())
    assert batch["masked_positions"].min() >= 1 and batch["masked_positions"].max() < 16


def test_contenders_alternate():
    calls: list[str] = []
    seconds = common.interleave({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=2)
    assert "".join(calls) == "abcabc"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_ratios_are_computed_per_round_against_the_faster_peer():
    seconds = {"ours": [1.0, 2.0], "unrolled": [0.5, 1.0], "eager": [3.0, 3.0], "compiled": [2.0, 2.5]}
    assert ratios(seconds, ["ours", "unrolled"], ["eager", "compiled"]) == [
        "Speed of unrolled / ours: 2.00 (2.00 to 2.00).",
        "Speed of ours / compiled: 1.62 (1.44 to 1.81).",
    ]
