"""Speed of the float32 pretraining step on a CPU, compared with transformers on PyTorch, interleaved in one process.

    python -m benchmarks.pretraining_step --rounds=20
    python -m benchmarks.pretraining_step --rounds=20 --malloc=tcmalloc
    python -m benchmarks.pretraining_step --peers --variant=scanned:model.scan_layers=True --variant=rbg:rng=rbg

Each round times every contender once: our step, transformers eager and compiled, and plain matrix products with the
shapes of the model, in JAX and in PyTorch. The speed of a step relative to the fastest product uses `flops_per_token`.
"""

import argparse
import functools
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from benchmarks import common
from benchmarks.common import Speed
from bertjax.configs.sizes import SIZES

SHAPES = ("base:8x128:30522", "base:2x512:30522", "tiny:32x128:4096", "tiny:32x128:30522")
_PRODUCT_FLOPS = 2e10  # repeat small products up to this number of operations


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = common.parser(__doc__ or "", rounds=10)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="SIZE:ROWSxLENGTH:VOCABULARY")
    parser.add_argument("--peers", nargs="*", choices=("eager", "compiled"), default=("eager", "compiled"))
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...")
    args = parser.parse_args()
    if args.smoke:
        args.shapes = ("tiny:4x32:1000",)
        args.peers = ("eager",)
    if args.peers and (missing := common.missing("torch", "transformers")):
        sys.exit(f"error: {missing}, which --peers needs: pip install -e '.[dev]', or set --peers without a value")
    if "compiled" in args.peers and not shutil.which("g++"):
        sys.exit("error: torch.compile needs a C++ compiler, g++: install one, or set --peers=eager")
    common.report(measure, args)


def measure(args: argparse.Namespace) -> Iterator[Speed]:
    """Yields our speed on each shape compared with the faster peer, and that of variants compared with our default."""
    variants = {"ours": {}, **dict(map(parse_variant, args.variant))}
    for shape in map(common.Shape.parse, args.shapes):
        seconds, rates = time_contenders(shape, variants, args)
        work = f"pretraining step, {shape}"
        peers = [f"transformers, {peer}" for peer in args.peers]
        peer = min(peers, key=lambda name: statistics.median(seconds[name]), default="")
        speeds = {name: [shape.tokens / s for s in values] for name, values in seconds.items()}
        gflops = statistics.median(speeds["ours"]) * shape.flops_per_token() / 1e9
        print(f"{work}: {gflops:.0f} GFLOP/s, {gflops / max(rates.values()):.0%} of the fastest product")
        print("GFLOP/s of products: " + "; ".join(f"{name} {rate:.0f}" for name, rate in rates.items()))
        yield Speed(work, "tokens/s", speeds["ours"], peer, speeds.get(peer, ()))
        for name in list(variants)[1:]:
            yield Speed(f"{work}, {name}", "tokens/s", speeds[name], "our default", speeds["ours"])


def parse_variant(text: str) -> tuple[str, dict[str, Any]]:
    """Parses `NAME:KEY=VALUE,...`; values are JSON, or else strings."""
    name, _, settings = text.partition(":")
    values = {}
    for setting in settings.split(","):
        key, _, value = setting.partition("=")
        try:
            values[key] = json.loads(value.lower() if value in ("True", "False") else value)
        except ValueError:
            values[key] = value
    return name, values


def time_contenders(
    shape: common.Shape, variants: Mapping[str, Any], args: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Returns the seconds of each contender, and the median GFLOP/s of each matrix product."""
    contenders: dict[str, Any] = {name: common.OurStep.of(shape, settings) for name, settings in variants.items()}
    batches = contenders["ours"].batches
    for peer in args.peers:
        from benchmarks.torch_peer import TorchStep

        is_compiled = peer == "compiled"
        contenders[f"transformers, {peer}"] = TorchStep(shape, batches, compiled=is_compiled, bfloat16=False)
    products = matrix_products(shape, bool(args.peers))
    for call in contenders.values():
        call()
    seconds = common.interleave({**contenders, **{name: call for name, (call, _) in products.items()}}, args.rounds)
    rates = {name: flops / statistics.median(seconds[name]) / 1e9 for name, (_, flops) in products.items()}
    return seconds, rates


def matrix_products(shape: common.Shape, with_torch: bool) -> dict[str, tuple[Callable[[], Any], float]]:
    """Returns products with the shapes of the model and of 2048 cubed: a call and its number of operations."""
    hidden = SIZES[shape.size][1]
    sizes = [
        (shape.tokens, hidden, hidden),
        (shape.tokens, hidden, 4 * hidden),
        (shape.tokens, 4 * hidden, hidden),
        (shape.rows * shape.predicted, hidden, shape.vocab_size),
        (2048, 2048, 2048),
    ]
    products: dict[str, tuple[Callable[[], Any], float]] = {}
    for size in sizes:
        flops = 2 * size[0] * size[1] * size[2]
        times = max(1, round(_PRODUCT_FLOPS / flops))
        name = "x".join(map(str, size))
        products[f"jax {name}"] = (functools.partial(_repeat, jax_product(*size), times), flops * times)
        if with_torch:
            from benchmarks.torch_peer import matrix_product

            products[f"torch {name}"] = (functools.partial(_repeat, matrix_product(*size), times), flops * times)
    return products


def jax_product(m: int, k: int, n: int) -> Callable[[], None]:
    """Returns a call of a compiled float32 product of [m, k] and [k, n]."""
    rng = np.random.default_rng(0)
    a, b = (jax.device_put(rng.random(size, np.float32)) for size in ((m, k), (k, n)))
    product = jax.jit(lambda a, b: a @ b)
    product(a, b).block_until_ready()
    return lambda: product(a, b).block_until_ready()


def _repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


if __name__ == "__main__":
    main()
