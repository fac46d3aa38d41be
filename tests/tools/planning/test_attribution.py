"""Attribution of instructions to parts of the model and to kinds of computation."""

import pytest

from bertjax.tools.planning import attribution, hlo


def named(name, cycles=""):
    """The attributes of an instruction of a layer."""
    scope = "jit(step)/jvp(Bert)/bert/encoder/while/body/TransformerLayer/TransformerLayer._sublayers"
    note = f', backend_config={{"estimated_cycles":"{cycles}"}}' if cycles else ""
    return f'metadata={{op_name="{scope}/{name}"}}{note}'


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("u32[8]{0} reshape(%a)", "random bits"),
        ("f32[8]{0} exponential(%a)", "softmax"),
        (f"f32[8]{{0}} exponential(%a), {named('activation/exp')}", "activation"),
        (f"f32[8]{{0}} reduce(%a), {named('attention_norm/reduce_sum')}", "norm"),
        (f"f32[8]{{0}} reduce(%a), {named('output/reduce_sum')}", "sums"),
        (f"f32[8]{{0}} select(%a, %a, %a), {named('drop/select_n')}", "dropout"),
        ("f32[8]{0} gather(%a, %a)", "lookup"),
        ("f32[8]{0} dynamic-slice(%a)", "slices"),
        ("f32[8]{0} all-reduce-start(%a)", "communication"),
        ('f32[8]{0} custom-call(%a), custom_call_target="__cublas$gemm"', "matrix products"),
        ('f32[8]{0} custom-call(%a), custom_call_target="__cudnn$fmhaSoftmax"', "kernels"),
        ("f32[8]{0} convert(%a)", "casts and copies"),
        ("f32[8]{0} add(%a, %a)", "elementwise"),
    ],
)
def test_kinds(line, kind):
    text = f"ENTRY %m (a: f32[8]) -> f32[8] {{\n  %a = f32[8]{{0}} parameter(0)\n  ROOT %b = {line}\n}}\n"
    computation = hlo.parse(text).computations["m"]
    instruction = computation.instructions["b"]
    assert attribution.kind_of(instruction, [(computation, instruction)]) == kind


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("state.opt_state[0].mu['bert']['encoder']['layers']['attention']['key']['kernel']", "optimizer"),
        ("state.params['bert']['encoder']['layers']['output_norm']['scale']", "feed-forward"),
        ("jit(step)/jvp(BertForPreTraining)/masked_lm/bias", "heads"),
        ("jit(step)/jvp(BertForPreTraining)/bert/pooler/dot_general", "heads"),
        ("jit(step)/transpose(jvp(BertForPreTraining))/bert/embeddings/norm/mul", "embeddings"),
        ("jit(step)/jvp(T)/encoder/while/body/TransformerLayer/TransformerLayer._sublayers/drop/mul", "layers"),
        ("jit(step)/jvp(T)/decoder/while/body/TransformerLayer/cross_attention/query/add", "attention"),
        ("jit(step)/jvp()/sub", "heads"),
        ("jit(step)/add", "other"),
        ("reshape.738", "other"),  # the compiler's own name
    ],
)
def test_parts(name, part):
    text = f'ENTRY %m (a: f32[8]) -> f32[8] {{\n  ROOT %a = f32[8]{{0}} negate(), metadata={{op_name="{name}"}}\n}}\n'
    computation = hlo.parse(text).computations["m"]
    instruction = computation.instructions["a"]
    assert attribution.part_of(computation, instruction, [(computation, instruction)], "") == part
