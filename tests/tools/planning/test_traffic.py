"""Bytes that instructions read and write, in hand-written programs; `test_programs` has compiled ones."""

from bertjax.tools.planning.costs import step_costs


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


def test_a_product_of_slices_has_no_traffic_of_its_workspace():
    axes = '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'
    call = 'custom_call_target="__cublas$gemm"'
    text = f"""HloModule a

%slices (p: bf16[3,8,16], q: bf16[3,16,4], i: s32[]) -> (bf16[8,4], s8[1024]) {{
  %p = bf16[3,8,16]{{2,1,0}} parameter(0)
  %q = bf16[3,16,4]{{2,1,0}} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %p.1 = bf16[1,8,16]{{2,1,0}} dynamic-slice(%p, %i, %zero, %zero), dynamic_slice_sizes={{1,8,16}}
  %p.2 = bf16[8,16]{{1,0}} bitcast(%p.1)
  %q.1 = bf16[1,16,4]{{2,1,0}} slice(%q), slice={{[0:1], [0:16], [0:4]}}
  %q.2 = bf16[16,4]{{1,0}} bitcast(%q.1)
  %call = (bf16[8,4]{{1,0}}, s8[1024]{{0}}) custom-call(%p.2, %q.2), {call}, backend_config={axes}
  %result = bf16[8,4]{{1,0}} get-tuple-element(%call), index=0
  %scratch = s8[1024]{{0}} get-tuple-element(%call), index=1
  ROOT %both = (bf16[8,4]{{1,0}}, s8[1024]{{0}}) tuple(%result, %scratch)
}}

ENTRY %main (a: bf16[3,8,16], b: bf16[3,16,4], n: s32[]) -> bf16[8,4] {{
  %a = bf16[3,8,16]{{2,1,0}} parameter(0)
  %b = bf16[3,16,4]{{2,1,0}} parameter(1)
  %n = s32[] parameter(2)
  %c = (bf16[8,4]{{1,0}}, s8[1024]{{0}}) fusion(%a, %b, %n), kind=kCustom, calls=%slices
  ROOT %d = bf16[8,4]{{1,0}} get-tuple-element(%c), index=0
}}
"""
    costs = step_costs(text, 1)
    assert costs.hbm_bytes == 2 * (8 * 16 + 16 * 4 + 8 * 4) + 4
    assert costs.flops == 2 * 8 * 16 * 4


def test_an_asynchronous_collective_of_several_arrays():
    text = """HloModule a

ENTRY %main (a: f32[64], b: bf16[32]) -> f32[128] {
  %a = f32[64]{0} parameter(0)
  %b = bf16[32]{0} parameter(1)
  %s = ((f32[64]{0}, bf16[32]{0}), (f32[128]{0}, bf16[64]{0})) all-gather-start(%a, %b), channel_id=1, dimensions={0}
  %d = (f32[128]{0}, bf16[64]{0}) all-gather-done(%s)
  ROOT %r = f32[128]{0} get-tuple-element(%d), index=0
}
"""
    assert step_costs(text, 2).hbm_bytes == 4 * (64 + 128) + 2 * (32 + 64)
