"""Costs of compiled programs: hand-written ones with known costs, and parts of real programs for TPUs and CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.planning import hlo
from bertjax.planning.costs import Collective, step_costs
from bertjax.planning.roofline import collective_table
from tests.planning.plans import target_of

# An all-reduce; three iterations of a product and an all-gather; a reduce-scatter in the TPU compiler's form; a
# collective in two parts; and a conditional with two branches.
PROGRAM = """HloModule jit_step, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%body (p: (s32[], f32[4,16])) -> (s32[], f32[4,16]) {
  %p = (s32[]{:T(128)}, f32[4,16]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%i, %one)
  %w = f32[4,16]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %whole = f32[8,16]{1,0:T(8,128)S(1)} all-gather(%w), channel_id=7, replica_groups=[4,2]<=[8], dimensions={0}
  %product = f32[4,8]{1,0:T(8,128)} dot(%w, %whole), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %out = (s32[]{:T(128)}, f32[4,16]{1,0:T(8,128)}) tuple(%next, %w)
}

%condition (p.1: (s32[], f32[4,16])) -> pred[] {
  %p.1 = (s32[]{:T(128)}, f32[4,16]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  %limit = s32[]{:T(128)} constant(3)
  ROOT %test = pred[] compare(%i.1, %limit), direction=LT
}

%all-reduce-scatter.1 (p.2: bf16[16,16]) -> bf16[2,16] {
  %p.2 = bf16[16,16]{1,0} parameter(0)
  %reduced = bf16[16,16]{1,0} all-reduce(%p.2), channel_id=8, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  %zero = u32[] constant(0)
  ROOT %part = bf16[2,16]{1,0} dynamic-slice(%reduced, %zero, %zero), dynamic_slice_sizes={2,16}
}

%begin (p.3: f32[4,16]) -> f32[8,16] {
  %p.3 = f32[4,16]{1,0} parameter(0)
  ROOT %begun = f32[8,16]{1,0} all-gather(%p.3), channel_id=9, replica_groups=[4,2]<=[8], dimensions={0}
}

%end (p.4: f32[4,16]) -> f32[8,16] {
  %p.4 = f32[4,16]{1,0} parameter(0)
  ROOT %ended = f32[8,16]{1,0} all-gather(%p.4), channel_id=9, replica_groups=[4,2]<=[8], dimensions={0}
}

%yes (p.5: f32[4,16]) -> f32[4,16] {
  %p.5 = f32[4,16]{1,0} parameter(0)
  ROOT %doubled = f32[4,16]{1,0} add(%p.5, %p.5)
}

%no (p.6: f32[4,16]) -> f32[4,16] {
  ROOT %p.6 = f32[4,16]{1,0} parameter(0)
}

ENTRY %main (a: f32[4,16], b: bf16[16,16]) -> f32[4,16] {
  %a = f32[4,16]{1,0:T(8,128)} parameter(0)
  %b = bf16[16,16]{1,0:T(8,128)(2,1)} parameter(1)
  %start = s32[]{:T(128)} constant(0)
  %pair = (s32[]{:T(128)}, f32[4,16]{1,0:T(8,128)}) tuple(%start, %a)
  %total = f32[4,16]{1,0:T(8,128)} all-reduce(%a), channel_id=1, replica_groups={}, to_apply=%add
  %loop = (s32[]{:T(128)}, /*index=1*/f32[4,16]{1,0:T(8,128)}) while(%pair), condition=%condition, body=%body
  %first = f32[8,16]{1,0} fusion(%a), kind=kCustom, calls=%begin
  %second = f32[8,16]{1,0} fusion(%a), kind=kCustom, calls=%end
  %scattered = bf16[2,16]{1,0} fusion(%b), kind=kCustom, calls=%all-reduce-scatter.1
  %flag = pred[] constant(true)
  %either = f32[4,16]{1,0} conditional(%flag, %a, %a), branch_computations={%yes, %no}
  ROOT %result = f32[4,16]{1,0:T(8,128)} add(%a, %either), metadata={op_name="jit(step)/add (last)"}
}
"""


def test_a_program_with_known_costs():
    costs = step_costs(PROGRAM, 8)
    assert costs.flops == 3 * 2 * 4 * 8 * 16
    assert costs.uncounted_loops == 0
    pairs, everyone = ((0, 1), (2, 3), (4, 5), (6, 7)), (tuple(range(8)),)
    assert sorted(costs.collectives.values()) == [
        Collective("all-gather", 8 * 16 * 4, pairs, 1),  # its start and end are next to different computations
        Collective("all-gather", 8 * 16 * 4, pairs, 3),
        Collective("all-reduce", 4 * 16 * 4, everyone, 1),
        Collective("reduce-scatter", 16 * 16 * 2, everyone, 1),
    ]
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    assert collective_table(costs, target_of(bandwidth=8.0), mesh) == {
        "all-gather": {"link": {"count": 4, "bytes": 4 * 512, "sent_bytes": 4 * 512 / 2, "seconds": 4 * 64 / 2}},
        "all-reduce": {"link": {"count": 1, "bytes": 256, "sent_bytes": 2 * 256 * 7 / 8, "seconds": 2 * 32 * 7 / 8}},
        "reduce-scatter": {"link": {"count": 1, "bytes": 512, "sent_bytes": 512 * 7 / 8, "seconds": 64 * 7 / 8}},
    }


def test_bytes_read_and_written():
    # An iteration adds two numbers, and gathers 256 bytes to on-chip memory. A product of these and 256 bytes makes
    # 128.
    a_round = 12 + 256 + (256 + 128)
    fusions = 2 * (256 + 512) + (512 + 64)
    rest = 2 * 256 + (256 + 256) + 3 * 256  # the all-reduce, the nontrivial branch, the last sum
    assert step_costs(PROGRAM, 8).hbm_bytes == 3 * a_round + fusions + rest


def test_a_known_trip_count_is_used():
    noted = 'body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    assert step_costs(PROGRAM.replace("body=%body", noted), 8).flops == 5 * 2 * 4 * 8 * 16


def test_a_loop_with_an_unknown_number_of_iterations_is_reported():
    costs = step_costs(PROGRAM.replace("direction=LT", "direction=NE"), 8)
    assert (costs.flops, costs.uncounted_loops) == (2 * 4 * 8 * 16, 1)


def test_only_the_read_part_of_slices_is_counted():
    text = """HloModule a

%fused (p: f32[24,64], i: s32[]) -> f32[1,64] {
  %p = f32[24,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %slice = f32[1,64]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,64}
}

%copied (p.2: f32[24,64]) -> f32[24,64] {
  %p.2 = f32[24,64]{1,0} parameter(0)
  ROOT %copy = f32[24,64]{1,0} copy(%p.2)
}

%updated (p.1: f32[24,64], q: f32[1,64], i.1: s32[]) -> f32[24,64] {
  %p.1 = f32[24,64]{1,0} parameter(0)
  %q = f32[1,64]{1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  %same = f32[24,64]{1,0} fusion(%p.1), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%copied
  ROOT %update = f32[24,64]{1,0} dynamic-update-slice(%same, %q, %i.1, %i.1)
}

ENTRY %main (a: f32[24,64], n: s32[]) -> f32[24,64] {
  %a = f32[24,64]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %row = f32[1,64]{1,0} fusion(%a, %n), kind=kLoop, calls=%fused
  %copy-start.1 = (f32[1,64]{1,0:S(1)}, f32[1,64]{1,0}, u32[]{:S(2)}) copy-start(%row)
  %copy-done.1 = f32[1,64]{1,0:S(1)} copy-done(%copy-start.1)
  %slice-start.1 = (f32[24,64]{1,0}, f32[2,64]{1,0:S(1)}, s32[]{:S(4)}) slice-start(%a), slice={[0:2], [0:64]}
  %slice-done.1 = f32[2,64]{1,0:S(1)} slice-done(%slice-start.1)
  ROOT %new = f32[24,64]{1,0} fusion(%a, %copy-done.1, %n), kind=kLoop, calls=%updated
}
"""
    row = 64 * 4
    fetched = (row + 4 + row) + row + 2 * row
    assert step_costs(text, 1).hbm_bytes == fetched + (row + 4)


@pytest.mark.parametrize(
    ("attribute", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("replica_groups=[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        (
            "replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}",
            ((0, 1), (2, 3), (4, 5), (6, 7)),
        ),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(4)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("source_target_pairs={{0,1},{1,2}}", ((0, 1), (1, 2))),
        ("replica_groups={}", (tuple(range(8)),)),
    ],
)
def test_groups_of_devices(attribute, groups):
    line = f"  %r = f32[2]{{0}} all-reduce(%x), channel_id=1, {attribute}, use_global_device_ids=true"
    text = f"ENTRY %main (x: f32[2]) -> f32[2] {{\n  %x = f32[2]{{0}} parameter(0)\n{line}\n}}\n"
    program = hlo.parse(text)
    assert hlo.device_groups(program.computations["main"].instructions["r"], 8) == groups


@pytest.mark.parametrize(
    ("shapes", "attributes", "products"),
    [
        (("f32[8,16]", "f32[16,4]", "f32[8,4]"), "dim_labels=bf_io->bf", 8 * 4 * 16),
        # 64 x 16 products of 128x64 by 64x128, as window positions of which only one is not padding
        (
            ("f32[64,16,128,64]", "f32[64,16,128,64]", "f32[64,16,128,128]"),
            "window={size=64x16 stride=63x15 lhs_dilate=64x16}, dim_labels=01bf_01oi->01bf",
            64 * 16 * 128 * 128 * 64,
        ),
        (
            ("f32[64,16,128,64]", "f32[64,16,64,128]", "f32[64,16,128,128]"),
            "window={size=64x16 stride=64x16 pad=63_63x15_15 lhs_dilate=63x15 rhs_reversal=1x1}, "
            "dim_labels=01bf_01io->01bf",
            64 * 16 * 128 * 128 * 64,
        ),
        # a gradient of weights, summed over 64 rows and 128 positions
        (
            ("bf16[64,128,16]", "bf16[64,128,32]", "bf16[16,32,1]"),
            "window={size=64}, dim_labels=0fb_0io->bf0",
            64 * 128 * 16 * 32,
        ),
    ],
)
def test_products_that_are_convolutions(shapes, attributes, products):
    left, right, result = shapes
    text = (
        "ENTRY %main (x: f32[]) -> f32[] {\n"
        f"  %a = {left}{{0}} parameter(0)\n  %b = {right}{{0}} parameter(1)\n"
        f"  ROOT %c = {result}{{0}} convolution(%a, %b), {attributes}\n}}\n"
    )
    assert step_costs(text, 1).flops == 2 * products


def test_a_real_program():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def loss(weights, x):
        y, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)
        return y.sum()

    by_rows, copied = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    gradient = jax.jit(jax.grad(loss), in_shardings=(copied, by_rows), out_shardings=copied)
    shapes = jax.ShapeDtypeStruct((5, 16, 16), np.float32), jax.ShapeDtypeStruct((64, 16), np.float32)
    costs = step_costs(gradient.lower(*shapes).compile().as_text(), 8)
    assert costs.uncounted_loops == 0
    assert costs.flops == 3 * 5 * 2 * (64 // 8) * 16 * 16 or costs.flops == (3 * 5 - 1) * 2 * (64 // 8) * 16 * 16
    table = collective_table(costs, target_of(), mesh)
    assert list(table) == ["all-reduce"]
    assert table["all-reduce"]["link"]["bytes"] == 5 * 16 * 16 * 4
    assert {each.groups for each in costs.collectives.values()} == {(tuple(range(8)),)}


def test_attributes_may_span_several_lines():
    text = """HloModule a

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %k = f32[8]{0} custom-call(%a), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"key":"value"
}}, metadata={op_name="a/kernel"}
  ROOT %b = f32[8]{0} add(%k, %k)
}
"""
    instructions = hlo.parse(text).computations["main"].instructions
    assert list(instructions) == ["a", "k", "b"]
    assert instructions["k"].op_name == "a/kernel"
