"""Time and memory of self-attention, global and local, and of recurrent layers by length, forward and backward.

    python -m benchmarks.attention_length --output=runs/demo/attention_length.json

All layers have the same width and process rows of random vectors. Each round times every layer at every length once;
results are medians over the rounds. Memory is the temporary memory of the compiled program, without arguments and
results (`memory_analysis().temp_size_in_bytes`). If the output file is in a run's folder, the run's page shows it.
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from bertjax.models.dot_product import Mask
from flax import linen as nn

from benchmarks import common
from bertjax.models.attention import MultiHeadAttention, make_mask
from bertjax.models.recurrent import BiGRU, BiLSTM
from bertjax.models.transformer_config import LayerKind, TransformerConfig

_LENGTHS = (64, 128, 256, 512, 1024)
_WINDOW = 64  # to each side, as in ModernBERT
_HEADER = ["layer", "length", "ms", "MiB"]


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=_LENGTHS)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--hidden_size", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = measure(args)
    device = jax.devices()[0]
    record = {
        "device": f"{device.device_kind} ({device.platform})",
        "machine": common.describe_machine(),
        **{name: getattr(args, name) for name in ("batch_size", "hidden_size", "heads", "rounds")},
        "rows": rows,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    common.write_json(args.output, record)
    cells = [
        [row["layer"], str(row["length"]), f"{1e3 * row['seconds']:.2f}", f"{row['bytes'] / 2**20:.1f}"] for row in rows
    ]
    print(common.table(_HEADER, cells))


def layers(hidden_size: int, heads: int) -> dict[str, nn.Module]:
    """Returns modules that process rows [B, S, H], by the layer's name."""
    config = TransformerConfig(
        hidden_size=hidden_size,
        num_layers=1,
        num_heads=heads,
        intermediate_size=hidden_size,
        dropout=0.0,
        attention_dropout=0.0,
        activation="gelu",
        norm_eps=1e-12,
    )
    return {
        "self-attention": _Attention(MultiHeadAttention(config, LayerKind())),
        f"local attention, {2 * _WINDOW} tokens": _Attention(MultiHeadAttention(config, LayerKind(_WINDOW))),
        "LSTM": _Recurrent(BiLSTM(hidden_size // 2)),
        "GRU": _Recurrent(BiGRU(hidden_size // 2)),
    }


class _Attention(nn.Module):
    layer: MultiHeadAttention

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = make_mask(jnp.ones(x.shape[:2], jnp.int32), "both")
        output, _ = self.layer(x, x, mask, deterministic=True, return_attention=False)
        return output.total()


class _Recurrent(nn.Module):
    layer: BiLSTM | BiGRU

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer(x, jnp.ones(x.shape[:2], jnp.int32)).hidden


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row per layer and length: seconds of an evaluation with gradients, and bytes of temporary memory."""
    calls: dict[tuple[str, int], Callable[[], Any]] = {}
    memory = {}
    for length in args.lengths:
        x = jax.random.normal(jax.random.key(length), (args.batch_size, length, args.hidden_size))
        for name, module in layers(args.hidden_size, args.heads).items():
            params = module.init(jax.random.key(0), x)
            gradients = jax.grad(lambda p, x, module=module: jnp.sum(module.apply(p, x) ** 2), argnums=(0, 1))
            program = jax.jit(gradients).lower(params, x).compile()
            memory[name, length] = int(program.memory_analysis().temp_size_in_bytes)
            calls[name, length] = functools.partial(_wait_for, program, params, x)
    common.interleave(calls, 1)  # warms up
    seconds = common.interleave(calls, args.rounds)
    return [
        {
            "layer": name,
            "length": length,
            "seconds": statistics.median(seconds[name, length]),
            "bytes": memory[name, length],
        }
        for name, length in calls
    ]


def _wait_for(program: Any, *arguments: Any) -> None:
    jax.block_until_ready(program(*arguments))


if __name__ == "__main__":
    main()
