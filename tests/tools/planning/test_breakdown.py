"""Costs by part of the model and kind of computation, with the compiler's time."""

import pytest

from bertjax.tools.planning import breakdown
from bertjax.tools.planning.chips import Chip
from bertjax.tools.planning.costs import step_costs
from tests.tools.planning.test_attribution import named

CHIP = Chip(peak_flops=2e12, hbm_bytes=2**30, hbm_bandwidth=1e9, links={}, clock=1e9, source="")
CONDITION = 'metadata={op_name="jit(step)/optimizer/cond"}'
PROGRAM = f"""HloModule a

%product (p: f32[8,16], q: f32[16,8]) -> f32[8,8] {{
  %p = f32[8,16]{{1,0}} parameter(0)
  %q = f32[16,8]{{1,0}} parameter(1)
  %dot = f32[8,8]{{1,0}} dot(%p, %q), lhs_contracting_dims={{1}}, {named("intermediate/dot_general")}
  ROOT %gelu = f32[8,8]{{1,0}} erf(%dot), {named("activation/erf")}
}}

%update (r: f32[8,8]) -> f32[8,8] {{
  %r = f32[8,8]{{1,0}} parameter(0)
  ROOT %sum = f32[8,8]{{1,0}} add(%r, %r)
}}

%same (s: f32[8,8]) -> f32[8,8] {{
  ROOT %s = f32[8,8]{{1,0}} parameter(0)
}}

ENTRY %main (a: f32[8,16], b: f32[16,8], c: pred[]) -> f32[8,8] {{
  %a = f32[8,16]{{1,0}} parameter(0), metadata={{op_name="state.params['bert']['embeddings']['norm']"}}
  %b = f32[16,8]{{1,0}} parameter(1)
  %c = pred[] parameter(2)
  %copy.1 = f32[8,16]{{1,0}} copy(%a), backend_config={{"estimated_cycles":"500"}}
  %copy.2 = f32[16,8]{{1,0}} copy(%b)
  %x = f32[8,8]{{1,0}} fusion(%copy.1, %copy.2), calls=%product, {named("output/update", 1000)}
  %kernel.1 = f32[8,8]{{1,0}} custom-call(%x), custom_call_target="tpu_custom_call", {named("attention/call")}
  %y = f32[8,8]{{1,0}} bitcast(%kernel.1)
  ROOT %z = f32[8,8]{{1,0}} conditional(%c, %y, %y), branch_computations={{%update, %same}}, {CONDITION}
}}
"""


def rows():
    return {(row["part"], row["kind"]): row for row in breakdown.break_down(step_costs(PROGRAM, 1), CHIP)}


def test_every_instruction_has_a_part_and_a_kind():
    moved = {key: row["hbm_bytes"] for key, row in rows().items() if row["hbm_bytes"]}
    assert moved == {
        ("embeddings", "casts and copies"): 2 * 512,  # the name of its operand
        ("feed-forward", "casts and copies"): 2 * 512,  # the name of its user
        ("feed-forward", "matrix products"): 2 * 512 + 256,
        ("attention", "kernels"): 2 * 256,
        ("optimizer", "elementwise"): 2 * 256,  # the name of the condition around it
    }
    assert rows()["feed-forward", "matrix products"]["flops"] == 2 * 8 * 8 * 16


def test_seconds_are_those_of_the_compiler_or_follow_from_bytes_and_operations():
    found = {key: row["compiler_seconds"] for key, row in rows().items() if row["compiler_seconds"]}
    assert found == pytest.approx(
        {
            ("embeddings", "casts and copies"): 500 / 1e9,
            ("feed-forward", "casts and copies"): 1024 / 1e9,
            ("feed-forward", "matrix products"): 1000 / 1e9,
            ("attention", "kernels"): 512 / 1e9,
            ("optimizer", "elementwise"): 512 / 1e9,
        }
    )
    assert breakdown.compiler_seconds(step_costs(PROGRAM, 1), CHIP) == pytest.approx(sum(found.values()))


def test_programs_without_estimates_have_no_seconds():
    costs = step_costs(PROGRAM.replace("estimated_cycles", "unknown"), 1)
    assert breakdown.compiler_seconds(costs, CHIP) is None
    assert {row["compiler_seconds"] for row in breakdown.break_down(costs, CHIP)} == {None}


def test_the_table():
    costs = step_costs(PROGRAM, 1)
    seconds = breakdown.compiler_seconds(costs, CHIP)
    record = {
        "breakdown": breakdown.break_down(costs, CHIP),
        "compiler_seconds": seconds,
        "per_device": {"unknown_kernels": costs.unknown_kernels},
    }
    lines = breakdown.describe(record)
    assert lines[:4] == [
        "                          GB  of bytes      ms  of time",
        "by part:",
        "  feed-forward          0.00     52.9%     0.0    57.0%",
        "  embeddings            0.00     23.5%     0.0    14.1%",
    ]
    assert "  optimizer             0.00     11.8%     0.0    14.4%" in lines
    assert lines[-1] == "kernels with unknown operations: 1 executions; only their bytes are counted"
    assert "ms" not in breakdown.describe({**record, "compiler_seconds": None})[0]
