"""Operations and reads of kernels, from lines of programs; `test_programs` has compiled kernels."""

import pytest

from bertjax.tools.planning import hlo, kernels

OPERANDS = ("s8[1,2,4]", "s8[1,2,4]", "bf16[3,256,64]", "bf16[3,512,64]", "bf16[3,512,32]", "f32[3,256]")
PAIRS = 3 * 256 * 512


def kernel(name, result="bf16[3,256,64]", operands=OPERANDS, target="tpu_custom_call", rest=""):
    """The computation with a kernel as its last instruction, and the kernel."""
    lines = [f"  %p{number} = {shape}{{0}} parameter({number})" for number, shape in enumerate(operands)]
    names = ", ".join(f"%p{number}" for number in range(len(operands)))
    lines.append(f'  ROOT %{name} = ({result}{{0}}) custom-call({names}), custom_call_target="{target}"{rest}')
    computation = hlo.parse("ENTRY %m () -> f32[] {\n" + "\n".join(lines) + "\n}\n").computations["m"]
    return computation, computation.root


@pytest.mark.parametrize(
    ("name", "result", "of_keys", "of_values"),
    [
        ("splash_mha_fwd_residuals.1", "bf16[3,256,32]", 1, 1),
        ("splash_mha_dq_no_residuals", "bf16[3,256,64]", 2, 1),
        ("splash_mha_dkv_segmented_no_residuals.3", "bf16[3,512,64]", 2, 2),
        ("splash_mha_dkv_no_residuals.1", "bf16[4,3,256,64]", 3, 2),  # also returns the gradient of queries
        ("splash_mqa_fwd", "bf16[3,256,32]", 1, 1),
    ],
)
def test_splash_attention(name, result, of_keys, of_values):
    computation, instruction = kernel(name, result)
    assert kernels.kernel_flops(computation, instruction) == 2 * PAIRS * (64 * of_keys + 32 * of_values)


def test_splash_attention_with_positions_last():
    operands = (*OPERANDS[:2], "bf16[3,64,256]", "bf16[3,64,512]", "bf16[3,512,32]", "f32[3,256]")
    layouts = r', frontend_attributes={kernel_metadata={"x":"{\"q_layout\": 2, \"k_layout\": 2, \"v_layout\": 1}"}}'
    forward = kernel("splash_mha_fwd", "bf16[3,256,32]", operands, rest=layouts)
    assert kernels.kernel_flops(*forward) == 2 * PAIRS * (64 + 32)


def test_blocks_that_are_read_several_times():
    computation, forward = kernel("splash_mha_fwd")
    shapes = computation.shapes(forward.operands)
    assert kernels.reads(forward, shapes) == [1, 1, 1, 2, 2, 1]  # two blocks of queries
    computation, backward = kernel("splash_mha_dkv")
    assert kernels.reads(backward, shapes) == [4, 4, 4, 1, 1, 4]  # four blocks of keys
    whole = ("s8[1,1,1]", *OPERANDS[1:])
    computation, forward = kernel("splash_mha_fwd", operands=whole)
    assert kernels.reads(forward, computation.shapes(forward.operands)) == [1] * 6


@pytest.mark.parametrize("target", ["__gpu$xla.gpu.triton", "triton_kernel_call_ffi"])
def test_operations_that_the_scope_of_a_kernel_of_triton_states(target):
    computation, call = kernel("name", target=target, rest=', metadata={op_name="jit(f)/jvp(flops=42)/pallas_call"}')
    assert kernels.is_custom(call) and kernels.kernel_flops(computation, call) == 42


def test_kernels_of_unknown_operations():
    """A norm states that it has no matrix products; cuBLAS and splash attention are counted."""
    triton = {"target": "__gpu$xla.gpu.triton"}
    norm, silent = kernel("name", **triton, rest=', metadata={op_name="flops=0/call"}'), kernel("name", **triton)
    known = norm, kernel("splash_mha_fwd"), kernel("gemm", target="__cublas$gemm")
    assert [kernels.is_unknown(call) for _, call in (silent, *known)] == [True, False, False, False]


def test_the_kind_of_a_call():
    _, splash = kernel("splash_mha_fwd")
    _, cublas = kernel("gemm", target="__cublas$gemm")
    _, cudnn = kernel("attention", target="__cudnn$fmhaSoftmaxBackward")
    _, other = kernel("sort", target="TopK")
    assert [kernels.is_custom(each) for each in (splash, cublas, cudnn, other)] == [True, False, True, False]
    scratch = hlo.Shape("u8", (1024,), True, 1024)
    assert [kernels.is_workspace(each, scratch) for each in (splash, cublas, cudnn)] == [False, True, True]
