"""Costs of hand-written programs; `test_programs` has compiled ones."""

from bertjax.tools.planning.costs import Collective, step_costs

# An all-reduce; three iterations of a product and an all-gather; a reduce-scatter in the TPU compiler's form; a
# collective in two parts; and a conditional with two branches.
PROGRAM = """HloModule jit_step, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%body (p: (s32[], f32[4,16])) -> (s32[], f32[4,16]) {
  %p = (s32[], f32[4,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %w = f32[4,16]{1,0} get-tuple-element(%p), index=1
  %whole = f32[8,16]{1,0:S(1)} all-gather(%w), channel_id=7, replica_groups=[4,2]<=[8], dimensions={0}
  %product = f32[4,8]{1,0} dot(%w, %whole), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %out = (s32[], f32[4,16]{1,0}) tuple(%next, %w)
}

%condition (p.1: (s32[], f32[4,16])) -> pred[] {
  %p.1 = (s32[], f32[4,16]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %limit = s32[] constant(3)
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
  %a = f32[4,16]{1,0} parameter(0)
  %b = bf16[16,16]{1,0} parameter(1)
  %start = s32[] constant(0)
  %pair = (s32[], f32[4,16]{1,0}) tuple(%start, %a)
  %total = f32[4,16]{1,0} all-reduce(%a), channel_id=1, replica_groups={}, to_apply=%add
  %loop = (s32[], /*index=1*/f32[4,16]{1,0}) while(%pair), condition=%condition, body=%body
  %first = f32[8,16]{1,0} fusion(%a), kind=kCustom, calls=%begin
  %second = f32[8,16]{1,0} fusion(%a), kind=kCustom, calls=%end
  %scattered = bf16[2,16]{1,0} fusion(%b), kind=kCustom, calls=%all-reduce-scatter.1
  %flag = pred[] constant(true)
  %either = f32[4,16]{1,0} conditional(%flag, %a, %a), branch_computations={%yes, %no}
  ROOT %result = f32[4,16]{1,0} add(%a, %either), metadata={op_name="jit(step)/add (last)"}
}
"""


def test_a_program_with_known_costs():
    costs = step_costs(PROGRAM, 8)
    assert costs.flops == 3 * 2 * 4 * 8 * 16
    assert costs.uncounted_loops == 0
    pairs, everyone = ((0, 1), (2, 3), (4, 5), (6, 7)), (tuple(range(8)),)
    collectives = sorted(costs.collectives.values())
    assert collectives == [
        Collective("all-gather", 8 * 16 * 4, pairs, 1),  # its start and end are next to different computations
        Collective("all-gather", 8 * 16 * 4, pairs, 3),
        Collective("all-reduce", 4 * 16 * 4, everyone, 1),
        Collective("reduce-scatter", 16 * 16 * 2, everyone, 1),
    ]
    sent = [512 / 2, 3 * 512 / 2, 2 * 256 * 7 / 8, 512 * 7 / 8]
    assert [collective.sent_bytes for collective in collectives] == sent


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


def test_calls_and_asynchronous_instructions_cost_what_they_call():
    text = """HloModule a

%captured (p: f32[64]) -> f32[64] {
  %p = f32[64]{0} parameter(0)
  ROOT %doubled = f32[64]{0} add(%p, %p)
}

%scattered (q: f32[64]) -> f32[32] {
  %q = f32[64]{0} parameter(0)
  ROOT %part = f32[32]{0} reduce-scatter(%q), channel_id=3, replica_groups={{0,1}}, dimensions={0}, to_apply=%add
}

ENTRY %main (a: f32[64]) -> f32[32] {
  %a = f32[64]{0} parameter(0)
  %b = f32[64]{0} call(%a), to_apply=%captured
  %start = ((f32[64]{0}), f32[32]{0}, u32[]) async-start(%b), async_execution_thread="parallel", calls=%scattered
  ROOT %done = f32[32]{0} async-done(%start)
}
"""
    costs = step_costs(text, 2)
    assert costs.hbm_bytes == 4 * (64 + 64) + 4 * (64 + 32)
    assert list(costs.collectives.values()) == [Collective("reduce-scatter", 4 * 64, ((0, 1),), 1)]
