"""Time and memory of self-attention, global and local, and of recurrent layers by length, forward and backward.

    python -m benchmarks.attention_length --output=runs/demo/attention_length.json

All layers have the same width and process rows of random vectors. Each round times every layer at every length once;
results are medians over the rounds. Memory is the temporary memory of the compiled program, without arguments and
results (`memory_analysis().temp_size_in_bytes`). If the output file is in a run's folder, the run's page shows it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from bertjax.models.dot_product import Mask
from flax import linen as nn

from benchmarks import common
from bertjax.files import completed
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
    rows = measure(layers(args.hidden_size, args.heads), args.lengths, args.batch_size, args.hidden_size, args.rounds)
    device = jax.devices()[0]
    record = {
        "device": f"{device.device_kind} ({device.platform})",
        "machine": common.describe_machine(),
        "batch_size": args.batch_size,
        "hidden_size": args.hidden_size,
        "heads": args.heads,
        "rounds": args.rounds,
        "rows": rows,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with completed(args.output) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")
    cells = [
        [row["layer"], str(row["length"]), f"{1e3 * row['seconds']:.2f}", f"{row['bytes'] / 2**20:.1f}"] for row in rows
    ]
    print(common.table(_HEADER, cells))


def layers(hidden_size: int, heads: int) -> dict[str, Callable[[jax.Array], tuple[nn.Module, tuple[Any, ...]]]]:
    """Returns functions that make a module and its arguments for rows [B, S, H], by the layer's name."""

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

    def attention(kind: LayerKind) -> Callable[[jax.Array], tuple[nn.Module, tuple[Any, ...]]]:
        layer = _Attention(MultiHeadAttention(config, kind))
        return lambda x: (layer, (x, make_mask(jnp.ones(x.shape[:2], jnp.int32), "both")))

    def recurrent(kind: type[BiLSTM] | type[BiGRU]) -> Callable[[jax.Array], tuple[nn.Module, tuple[Any, ...]]]:
        return lambda x: (_Recurrent(kind(hidden_size // 2)), (x, jnp.ones(x.shape[:2], jnp.int32)))

    return {
        "self-attention": attention(LayerKind()),
        f"local attention, {2 * _WINDOW} tokens": attention(LayerKind(_WINDOW)),
        "LSTM": recurrent(BiLSTM),
        "GRU": recurrent(BiGRU),
    }


class _Attention(nn.Module):
    layer: MultiHeadAttention

    def __call__(self, x: jax.Array, mask: Mask) -> jax.Array:
        output, _ = self.layer(x, x, mask, deterministic=True, return_attention=False)
        return output.total()


class _Recurrent(nn.Module):
    layer: BiLSTM | BiGRU

    def __call__(self, x: jax.Array, segment_ids: jax.Array) -> jax.Array:
        return self.layer(x, segment_ids).hidden


def measure(
    made: Mapping[str, Callable[[jax.Array], tuple[nn.Module, tuple[Any, ...]]]],
    lengths: Sequence[int],
    batch_size: int,
    hidden_size: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """Returns a row per layer and length: seconds of an evaluation with gradients, and bytes of temporary memory."""
    programs: dict[tuple[str, int], tuple[Any, tuple[Any, ...]]] = {}
    for length in lengths:
        x = jax.random.normal(jax.random.key(length), (batch_size, length, hidden_size))
        for name, make in made.items():
            module, arguments = make(x)
            params = module.init(jax.random.key(0), *arguments)
            gradients = jax.grad(
                lambda p, *inputs, module=module: jnp.sum(module.apply(p, *inputs) ** 2), argnums=(0, 1)
            )
            programs[name, length] = jax.jit(gradients).lower(params, *arguments).compile(), (params, *arguments)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in programs}
    for number in range(rounds + 1):
        for key, (program, given) in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*given))
            if number:  # the first round warms up
                times[key].append(time.perf_counter() - start)
    return [
        {
            "layer": name,
            "length": length,
            "seconds": statistics.median(times[name, length]),
            "bytes": int(programs[name, length][0].memory_analysis().temp_size_in_bytes),
        }
        for name, length in programs
    ]


if __name__ == "__main__":
    main()
