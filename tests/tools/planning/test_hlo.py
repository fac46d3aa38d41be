"""The parser of compiled programs: groups of devices, and attributes on several lines."""

import pytest

from bertjax.tools.planning import hlo


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


@pytest.mark.parametrize(
    ("shape", "num_bytes", "stored_bytes"),
    [
        ("f32[100,64]{1,0}", 25_600, 25_600),
        ("f32[100,64]{1,0:T(8,128)}", 25_600, 4 * 104 * 128),
        ("f32[100,64]{0,1:T(8,128)}", 25_600, 4 * 128 * 64),
        ("bf16[2,100,64]{2,1,0:T(8,128)(2,1)S(1)}", 25_600, 2 * 2 * 104 * 128),
        ("f32[768]{0:T(1024)}", 3_072, 4_096),
        ("s32[]{:T(128)}", 4, 4),
    ],
)
def test_sizes_with_the_padding_of_tiles(shape, num_bytes, stored_bytes):
    text = f"ENTRY %main () -> f32[] {{\n  ROOT %a = {shape} parameter(0)\n}}\n"
    (found,) = hlo.parse(text).computations["main"].root.results
    assert (found.num_bytes, found.stored_bytes) == (num_bytes, stored_bytes)
    assert found.is_in_hbm == ("S(1)" not in shape)
