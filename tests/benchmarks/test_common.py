import pytest

from benchmarks import common, step_profile
from benchmarks.pretraining_step import ratios

PUBLISHED_VOCAB = 30_528  # 30,522 rounded up to a multiple of 8, as in NVIDIA's code


def batch_specs(shape, overrides):
    (spec,) = common.read_config(shape, overrides).example().task.batch_specs()
    return spec


@pytest.mark.parametrize(
    ("size", "length", "published"),
    [("large", 128, 1.880e9), ("large", 512, 1.992e9), ("base", 128, 0.546e9), ("base", 512, 0.588e9)],
)
def test_operations_equal_published_numbers(size, length, published):
    assert common.Shape(size, 8, length, PUBLISHED_VOCAB).flops_per_token() == pytest.approx(published, abs=0.5e6)


def test_operations_computed_by_hand():
    # One layer of width 2 without attention or head: 12 * 4 weights, a multiply-add forward and two backward.
    assert common.flops_per_token(1, 2, vocab_size=0, length=0, predicted=0) == 2 * 3 * 48
    # A query against 8 keys of width 2, and the sum of 8 values: 2 * 8 * 2 multiply-adds, three times.
    assert common.flops_per_token(1, 2, vocab_size=0, length=8, predicted=0) - 288 == 2 * 3 * 32
    # Half of the tokens go through a dense layer and the product with 10 embeddings.
    assert common.flops_per_token(1, 2, vocab_size=10, length=0, predicted=0.5) - 288 == 2 * 3 * 24 / 2


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


PROGRAM = """HloModule jit_step

%fused (a: f32[2], b: f32[2]) -> f32[2] {
  %a = f32[2]{0} parameter(0)
  %x = f32[2]{0} exponential(f32[2]{0} %a)
  ROOT %r = f32[2]{0} multiply(f32[2]{0} %x, f32[2]{0} %x)
}

%random (a: u32[2]) -> u32[2] {
  %s.1 = u32[2]{0} shift-right-logical(u32[2]{0} %a, u32[2]{0} %a)
  ROOT %q = u32[2]{0} add(u32[2]{0} %s.1, u32[2]{0} %a)
}

ENTRY %main (p: f32[2]) -> (f32[2], u32[]) {
  %dot.1 = f32[2]{0} dot(f32[2]{0} %p, f32[2]{0} %p), lhs_contracting_dims={0}
  %fusion.2 = f32[2]{0} fusion(f32[2]{0} %dot.1), kind=kLoop, calls=%fused
  %fusion.3 = u32[2]{0:T(128)} fusion(f32[2]{0} %dot.1), kind=kLoop, calls=%random
  %reduce.4 = f32[] reduce(f32[2]{0} %p), to_apply=%fused
  ROOT %tuple = (f32[2]{0}, u32[]) tuple(f32[2]{0} %dot.1, u32[] %p)
}
"""


def test_operations_are_grouped_by_kind():
    found = step_profile.kinds(PROGRAM)
    assert {name: found[name] for name in ("dot.1", "fusion.2", "fusion.3", "reduce.4", "tuple")} == {
        "dot.1": "matrix product",
        "fusion.2": "element-wise",
        "fusion.3": "random numbers",
        "reduce.4": "reduction",
        "tuple": "control",
    }


def test_time_inside_another_operation_counts_once():
    def event(name: str, thread: int, begin: int, length: int) -> dict:
        return {"ts": begin, "dur": length, "tid": thread, "args": {"hlo_op": name}}

    events = [event("loop", 1, 0, 100), event("a", 1, 10, 20), event("b", 1, 30, 40), event("a", 2, 10, 5)]
    seconds = {name: round(value * 1e6) for name, value in step_profile.own_seconds(events).items()}
    assert seconds == {"loop": 40, "a": 25, "b": 40}
