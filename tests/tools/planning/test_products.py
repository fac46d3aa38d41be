"""Operations of products that the TPU compiler computes as convolutions; `test_programs` has others."""

import pytest

from bertjax.tools.planning.costs import step_costs


@pytest.mark.parametrize(
    ("shapes", "attributes", "products"),
    [
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
