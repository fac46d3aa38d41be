from benchmarks import common
from benchmarks.pretraining_step import ratios


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
