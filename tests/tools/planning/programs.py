"""Small programs whose costs are counted by hand, and their texts as compiled for a TPU and a GPU.

    python -m tests.tools.planning.programs

compiles them for one v5e and one H100, and writes the texts to `tests/tools/planning/programs/`. This needs the extras
`plan` and `gpu`, but no accelerator. The texts lack what the counts do not use.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from bertjax.models.layers import drop
from bertjax.models.losses import cross_entropy
from bertjax.tools.planning.targets import find_target

FOLDER = Path(__file__).with_name("programs")
TARGETS = {"tpu": "v5e:1x1", "gpu": "h100:1"}


@dataclasses.dataclass(frozen=True)
class Program:
    """A function, the shapes of its arguments, and its costs.

    Attributes:
      function: the function to compile.
      shapes: dtype and dimensions of each argument, such as "f32[8,16]".
      moved: the bytes to read and write, by compiler.
      flops: the operations of matrix products, by compiler.
      donated: the arguments whose memory the results may use.
      options: options for the compiler.
    """

    function: Callable[..., Any]
    shapes: str
    moved: dict[str, float]
    flops: float = 0.0
    donated: tuple[int, ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


R, H, F, V = 8192, 1024, 4096, 30_000  # rows, hidden size, feed-forward size, words
B, N, S, D = 8, 16, 512, 64  # batch, heads, length, head size
LAYERS = 3


def both(moved: float) -> dict[str, float]:
    """The same bytes with both compilers."""
    return {"tpu": moved, "gpu": moved}


def layer_norm(x, scale, bias):
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(variance + 1e-12) * scale + bias).astype(jnp.bfloat16)


def scanned(x, weights):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]


def adam(params, grads, mean, variance):
    optimizer = optax.scale_by_adam()
    state = optax.ScaleByAdamState(jnp.zeros((), jnp.int32), mean, variance)
    updates, state = optimizer.update(grads, state)
    return params - 1e-3 * updates, state.mu, state.nu


def attention(query, key, value):
    scores = jnp.einsum("BNSD,BNTD->BNST", query, key, preferred_element_type=jnp.float32)
    return jax.nn.softmax(scores).astype(value.dtype) @ value


def cudnn_attention(query, key, value):
    return jax.nn.dot_product_attention(query, key, value, implementation="cudnn")


def splash_attention(is_fused, block, query, key, value):
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute")
    sizes = {f"block_{name}": block for name in names}
    sizes |= dict.fromkeys(("block_q_dq", "block_kv_dq"), None if is_fused else block)
    mask = masks.MultiHeadMask([masks.FullMask((query.shape[2], key.shape[2]))] * N)
    kernel = splash.make_splash_mha(
        mask, head_shards=1, q_seq_shards=1, block_sizes=splash.BlockSizes(**sizes, use_fused_bwd_kernel=is_fused)
    )
    return jax.vmap(kernel)(query, key, value)


def backward(function):
    """The gradient of a function, given that of its result."""
    return lambda cotangent, *arguments: jax.vjp(function, *arguments)[1](cotangent)


def gelu(x):
    return (0.5 * x * (1 + jax.lax.erf(x * 0.5**0.5))).astype(x.dtype)


HEADS = f"bf16[{B},{N},{S},{D}]"  # the queries of all heads, for plain and for splash attention
LONG = f"bf16[{B},{N},{4 * S},{D}]"
LENGTHS = f"bf16[{B},{S},{N},{D}]"  # for cuDNN
ONE = 2 * B * N * S * D  # bytes of an array of either shape
SCORES = B * N * S * S  # elements


def several(shape, count):
    return ", ".join([shape] * count)


# On the TPU, intermediate results that fit into on-chip memory (128 MiB) move no bytes of main memory.
PROGRAMS = {
    "add": Program(lambda x, y: x + y, several(f"f32[{R},{H}]", 2), both(3 * 4 * R * H)),
    "cast": Program(lambda x: x.astype(jnp.bfloat16), f"f32[{R},{H}]", both((4 + 2) * R * H)),
    "transpose": Program(lambda x: x.T, f"f32[{R},{H}]", both(2 * 4 * R * H)),
    "concatenate": Program(lambda x, y: jnp.concatenate([x, y]), several(f"f32[{R},{H}]", 2), both(4 * 4 * R * H)),
    "sum": Program(lambda x: x.sum(0), f"f32[{R},{H}]", both(4 * R * H)),
    "product": Program(
        lambda x, w: x @ w, f"bf16[{R},{H}], bf16[{H},{F}]", both(2 * (R * H + H * F + R * F)), 2 * R * H * F
    ),
    "product, bias and gelu": Program(
        lambda x, w, b: gelu(x @ w + b),
        f"bf16[{R},{H}], bf16[{H},{F}], bf16[{F}]",
        # The GPU compiler writes the sum, and reads it for the activation.
        {"tpu": 2 * (R * H + H * F + F + R * F), "gpu": 2 * (R * H + H * F + F + R * F) + 2 * 2 * R * F},
        2 * R * H * F,
    ),
    "gradient of weights": Program(
        lambda x, y: x.T @ y, f"bf16[{R},{H}], bf16[{R},{F}]", both(2 * (R * H + R * F + H * F)), 2 * R * H * F
    ),
    # The TPU program reads the input for the maximum, and again for the rest, for which it stays on the chip.
    "softmax": Program(jax.nn.softmax, f"f32[{R},{H}]", {"tpu": 3 * 4 * R * H, "gpu": 2 * 4 * R * H}),
    "layer norm": Program(
        layer_norm, f"bf16[{R},{H}], f32[{H}], f32[{H}]", {"tpu": 3 * 2 * R * H, "gpu": 2 * 2 * R * H}
    ),
    # 16 random bits for each element; the GPU compiler writes and reads them.
    "dropout": Program(
        lambda x, key: drop(x, jax.random.wrap_key_data(key), 0.1),
        f"bf16[{R},{H}], u32[2]",
        {"tpu": 2 * 2 * R * H, "gpu": 2 * 2 * R * H + 2 * 2 * R * H},
    ),
    # The GPU program copies the input, then in each iteration weights, reads both, writes the result and copies it.
    "scan": Program(
        scanned,
        f"bf16[{R},{H}], bf16[{LAYERS},{H},{H}]",
        {
            "tpu": 2 * (2 * R * H + LAYERS * H * H),
            "gpu": 2 * (2 * R * H + LAYERS * (2 * H * H + (R * H + H * H + R * H) + 2 * R * H)),
        },
        LAYERS * 2 * R * H * H,
    ),
    "update in place": Program(
        lambda x, y, i: jax.lax.dynamic_update_slice_in_dim(x, y, i, 0),
        f"f32[{R},{H}], f32[16,{H}], s32[]",
        both(2 * 4 * 16 * H),
        donated=(0,),
    ),
    "lookup": Program(lambda table, ids: table[ids], f"f32[{V},{H}], s32[{R}]", both(4 * R + 2 * 4 * R * H)),
    "gradient of lookup": Program(  # reads the new values, reads and writes rows of the table
        lambda table, ids, y: table.at[ids].add(y),
        f"f32[{V},{H}], s32[{R}], f32[{R},{H}]",
        both(4 * R + 3 * 4 * R * H),
        donated=(0,),
    ),
    # Reads parameters, gradients and both moments; writes parameters and moments.
    "adam": Program(adam, several(f"f32[{F},{H}]", 4), both(7 * 4 * F * H), donated=(0, 2, 3)),
    # Reads the logits for the maximum, and again for the sum of exponentials.
    "cross-entropy": Program(lambda x, y: cross_entropy(x, y).sum(), f"f32[{R},{F}], s32[{R}]", both(2 * 4 * R * F)),
    # The TPU compiler makes it a kernel. The GPU program writes and reads scores (float32) and weights (bfloat16).
    "attention": Program(
        attention, several(HEADS, 3), {"tpu": 4 * ONE, "gpu": 4 * ONE + 2 * (4 + 2) * SCORES}, 4 * SCORES * D
    ),
    # TPU: reads queries, keys and the gradient twice, values once, writes three gradients; writes scores, and reads
    # them four times. GPU: five products with two inputs or outputs of size ONE each; scores are written, read for the
    # statistics, the weights and their gradient; weights (bfloat16) are written and read; so are the gradient of
    # weights (bfloat16) and that of scores (float32), which is read twice.
    "attention, backward": Program(
        backward(attention),
        several(HEADS, 4),
        {"tpu": 9 * ONE + 5 * 4 * SCORES, "gpu": 10 * ONE + (4 * 4 + 2 * 2 + 2 * 2 + 3 * 4) * SCORES},
        10 * SCORES * D,
    ),
}
CUBLAS = {"xla_gpu_enable_triton_gemm": False}  # products by cuBLAS, as the compiler may choose where it finds a GPU
ON_GPU = {
    # One product with its bias and activation, and a workspace of 32 MiB, which is no traffic.
    "cublas, bias and gelu": Program(
        lambda x, w, b: jax.nn.gelu(x @ w + b),
        f"bf16[{R},{H}], bf16[{H},{F}], bf16[{F}]",
        {"gpu": 2 * (R * H + H * F + F + R * F)},
        2 * R * H * F,
        options=CUBLAS,
    ),
    "cublas, attention": Program(
        attention, several(HEADS, 3), PROGRAMS["attention"].moved, 4 * SCORES * D, options=CUBLAS
    ),
    "cudnn": Program(cudnn_attention, several(LENGTHS, 3), {"gpu": 4 * ONE}, 4 * SCORES * D),
    # Three inputs and the output; then five inputs and three gradients.
    "cudnn, backward": Program(
        backward(cudnn_attention), several(LENGTHS, 4), {"gpu": (4 + 8) * ONE}, (4 + 10) * SCORES * D
    ),
}
LINES = 4 * B * S  # bytes of one float32 number per row and position
# Splash attention has the head size as the minor dimension, so tiles of 128 lanes are half empty: its arrays take twice
# the bytes. Its inputs and results here have the positions as the minor dimension, and are copied.
ON_TPU = {
    # Three inputs, the output, and the buffers of a block of queries: maxima, sums and the context.
    "splash": Program(
        functools.partial(splash_attention, False, 512),
        several(HEADS, 3),
        {"tpu": 4 * ONE + 3 * 128 * LINES},
        4 * SCORES * D,
    ),
    # Four inputs and three gradients; the output written and read. Buffers: as above, of one gradient, and of two. The
    # statistics are written and read twice.
    "splash, backward": Program(
        backward(functools.partial(splash_attention, False, 512)),
        several(HEADS, 4),
        {"tpu": (4 + 3 + 2 * 2) * ONE + ((3 + 1 + 2) * 128 + 4 * N) * LINES},
        (4 + 6 + 8) * SCORES * D,
    ),
    # Four inputs and three gradients, one of which is written and read before. Buffers of blocks of half the size. The
    # statistics, repeated eight times, are written, and read for each of two blocks of keys.
    "splash, fused backward": Program(
        backward(functools.partial(splash_attention, True, 256)),
        several(HEADS, 4),
        {"tpu": (4 + 3 + 2 * 2) * ONE + ((3 + 2) * 128 // 2 + (2 + 4) * 8 * N + 2 * N) * LINES},
        (4 + 10) * SCORES * D,
    ),
    # The kernel reads keys and values for each of four blocks of queries, and writes the output. Copies to and from
    # its layout: the output (2 + 1), values (1 + 2), keys (1 + 2) and queries, which stay on the chip (1).
    "splash, four blocks": Program(
        functools.partial(splash_attention, False, 512),
        several(LONG, 3),
        {"tpu": (4 * 2 * 2 + 2 + 10) * 4 * ONE + 3 * 128 * LINES},
        16 * 4 * SCORES * D,
    ),
    # Forward: as above, and 128 float32 for each query and head. Gradient of queries: keys and values for each block,
    # queries, the result. Gradients of keys and values: queries for each block, keys, values, results. Copies: the
    # statistics (8), the others as above.
    "splash, four blocks, backward": Program(
        backward(functools.partial(splash_attention, False, 512)),
        several(LONG, 4),
        {
            "tpu": ((4 * 2 * 2 + 2 + 4) + (4 * 2 * 2 + 2 + 2) + (4 * 2 + 4 + 4) + 8 + 21) * 4 * ONE
            + (3 + 1 + 2) * 128 * LINES
        },
        16 * (4 + 6 + 8) * SCORES * D,
    ),
}


def programs(kind: str) -> dict[str, Program]:
    """The programs for "tpu" or "gpu"."""
    return PROGRAMS | {"tpu": ON_TPU, "gpu": ON_GPU}[kind]


def compile_text(program: Program, kind: str) -> str:
    """The text of a program, compiled for one device."""
    target = find_target(TARGETS[kind])
    sharding = jax.sharding.SingleDeviceSharding(target.devices[0])
    compiled = jax.jit(program.function, donate_argnums=program.donated, in_shardings=sharding, out_shardings=sharding)
    return (
        compiled.lower(*map(_shape, _split(program.shapes)))
        .compile({**target.compiler_options, **program.options})
        .as_text()
    )


def _split(shapes: str) -> list[str]:
    return re.findall(r"\w+\[[\d,]*\]", shapes)


def _shape(text: str) -> jax.ShapeDtypeStruct:
    kind, dims = text.removesuffix("]").split("[")
    dtypes = {"f32": jnp.float32, "bf16": jnp.bfloat16, "s32": jnp.int32, "u32": jnp.uint32}
    return jax.ShapeDtypeStruct(tuple(int(size) for size in dims.split(",") if size), dtypes[kind])


_UNUSED = (
    r" stack_frame_id=\d+",
    r' scheduling_name="[^"]*"',
    r', frontend_attributes=\{xla.sdy.sharding="[^"]*"\}',
    r", sharding=\{(?:[^{}]|\{[^{}]*\})*\}",
    r', frontend_attributes=\{kernel_metadata=\{ "[^\n]*?" \}\}',
    r" +$",
)


def stripped(text: str) -> str:
    """A program without the names of files and what else the counts do not use."""
    computations = text[re.search(r"^(%|ENTRY)", text, re.M).start() :]
    computations = re.sub(r"\n(?=\"|\}\})", " ", computations)
    for attribute in _UNUSED:
        computations = re.sub(attribute, "", computations, flags=re.MULTILINE)
    return "HloModule m\n\n" + "\n".join(map(_without_notes, computations.splitlines())) + "\n"


def _without_notes(line: str) -> str:
    head, _, notes = line.partition(", backend_config=")
    kept = re.findall(r'"(?:estimated_cycles|known_trip_count|cost_estimate)":(?:"\d+"|\{[^}]*\})', notes)
    if "__cu" in head:
        return line
    return head + (f", backend_config={{{', '.join(kept)}}}" if kept else "")


def path(kind: str, name: str) -> Path:
    """The file of a program's text."""
    return FOLDER / kind / (re.sub(r"\W+", "_", name) + ".txt")


def compile_alone(kind: str, name: str) -> str:
    """The text of a program, compiled in a process without other uses of JAX."""
    jax.config.update("jax_platforms", "cpu")  # keeps JAX from looking for hardware
    return compile_text(programs(kind)[name], kind)


def main() -> None:
    """Compiles all programs and writes their texts."""
    for kind in TARGETS:
        for name in programs(kind):
            path(kind, name).parent.mkdir(parents=True, exist_ok=True)
            path(kind, name).write_text(stripped(compile_alone(kind, name)))


if __name__ == "__main__":
    main()
