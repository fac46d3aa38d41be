"""Speed of the float32 pretraining step on a CPU, compared with transformers on PyTorch, interleaved in one process.

    python -m benchmarks.pretraining_step --rounds=20
    python -m benchmarks.pretraining_step --rounds=20 --malloc=tcmalloc
    python -m benchmarks.pretraining_step --peers --variant=scanned:model.scan_layers=True --variant=rbg:rng=rbg
    python -m benchmarks.pretraining_step --peers --profile --shapes=base:8x128:30522

Each round times every contender once: our step, transformers eager and compiled, and plain matrix products with the
shapes of the model, in JAX and in PyTorch. The speed of a step relative to the fastest product uses `flops_per_token`.
"""

import argparse
import functools
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import common, step_profile
from bertjax.configs.sizes import SIZES

SHAPES = ("base:8x128:30522", "base:2x512:30522", "tiny:32x128:4096", "tiny:32x128:30522")
_HEADER = ["step", "tokens/s, median (quartiles)", "fastest round", "GFLOP/s", "of the fastest product"]
_PRODUCT_FLOPS = 2e10  # repeat small products up to this number of operations


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="SIZE:ROWSxLENGTH:VOCABULARY")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peers", nargs="*", choices=("eager", "compiled"), default=("eager", "compiled"))
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...")
    parser.add_argument("--malloc", choices=common.MALLOCS, default="default")
    parser.add_argument("--profile", action="store_true", help="time of our step by kind of operation")
    args = parser.parse_args()
    common.use_malloc(args.malloc)
    if args.peers and not (common.has_module("torch") and common.has_module("transformers")):
        sys.exit("error: --peers needs torch and transformers: pip install -e '.[dev]', or set --peers without a value")
    if "compiled" in args.peers and not shutil.which("g++"):
        sys.exit("error: torch.compile needs a C++ compiler, g++: install one, or set --peers=eager")
    variants = {"ours": {}, **dict(map(parse_variant, args.variant))}
    if args.profile:
        profile(args.shapes, variants)
        return
    print(f"{common.describe_machine()}; float32; {args.rounds} rounds", flush=True)
    for text in args.shapes:
        print("\n" + compare(common.Shape.parse(text), variants, args.peers, args.rounds), flush=True)
    print(f"\nLoad average at the end {common.load_average()}")


def profile(shapes: Sequence[str], variants: Mapping[str, Any]) -> None:
    """Prints the time of our step by kind of operation, for each shape and variant."""
    with step_profile.dumped_programs() as newest_program:
        print(f"{common.describe_machine()}; float32")
        for shape in map(common.Shape.parse, shapes):
            for name, settings in variants.items():
                seconds, wall = step_profile.trace(common.OurStep.of(shape, settings))
                shares = step_profile.report(step_profile.kinds(newest_program()), seconds)
                print(f"\n### {name}: {shape}, {wall * 1e3:,.0f} ms a step\n\n{shares}", flush=True)


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


def compare(shape: common.Shape, variants: Mapping[str, Any], peers: Sequence[str], rounds: int) -> str:
    """Times all contenders on one shape. Returns the results as text."""
    ours = {name: common.OurStep.of(shape, settings) for name, settings in variants.items()}
    contenders: dict[str, Callable[[], None]] = dict(ours)
    if peers:
        from benchmarks.torch_peer import TorchStep

        batches = ours["ours"].batches
        for peer in peers:
            contenders[f"transformers, {peer}"] = TorchStep(shape, batches, compiled=peer == "compiled", bfloat16=False)
    products = matrix_products(shape, bool(peers))
    for call in contenders.values():
        call()
    seconds = common.interleave({**contenders, **{name: call for name, (call, _) in products.items()}}, rounds)
    best = {name: flops / statistics.median(seconds[name]) / 1e9 for name, (_, flops) in products.items()}
    limit = max(best.values())
    rows = [_row(shape, name, seconds[name], limit) for name in contenders]
    lines = [
        f"### {shape}",
        "",
        common.table(_HEADER, rows),
        "",
        "Matrix products, GFLOP/s, medians: " + "; ".join(f"{name} {rate:.0f}" for name, rate in best.items()) + ".",
    ]
    return "\n".join(lines + ratios(seconds, list(ours), [name for name in contenders if name not in ours]))


def _row(shape: common.Shape, name: str, seconds: Sequence[float], limit: float) -> list[str]:
    tokens_per_second = [shape.tokens / s for s in seconds]
    gflops = statistics.median(tokens_per_second) * shape.flops_per_token() / 1e9
    fastest = f"{max(tokens_per_second):,.0f}"
    return [name, common.spread(tokens_per_second, 0), fastest, f"{gflops:.0f}", f"{gflops / limit:.0%}"]


def ratios(seconds: Mapping[str, Sequence[float]], ours: Sequence[str], peers: Sequence[str]) -> list[str]:
    """Returns speed ratios within rounds: our variants to our default, and our default to the faster peer."""
    pairs = [(name, "ours") for name in ours if name != "ours"]
    if peers:
        pairs.append(("ours", min(peers, key=lambda name: statistics.median(seconds[name]))))
    return [
        f"Speed of {a} / {b}: {common.spread([y / x for x, y in zip(seconds[a], seconds[b], strict=True)], 2)}."
        for a, b in pairs
    ]


def matrix_products(shape: common.Shape, with_torch: bool) -> dict[str, tuple[Callable[[], None], float]]:
    """Returns products with the shapes of the model and of 2048 cubed: a call and its number of operations."""
    hidden = SIZES[shape.size][1]
    predicted = shape.rows * shape.predicted
    sizes = [
        (shape.tokens, hidden, hidden),
        (shape.tokens, hidden, 4 * hidden),
        (shape.tokens, 4 * hidden, hidden),
        (predicted, hidden, shape.vocab_size),
        (2048, 2048, 2048),
    ]
    found: dict[str, tuple[Callable[[], None], float]] = {}
    for size in sizes:
        flops = 2 * size[0] * size[1] * size[2]
        times = max(1, round(_PRODUCT_FLOPS / flops))
        name = "x".join(map(str, size))
        found[f"jax {name}"] = (functools.partial(_repeat, jax_product(*size), times), flops * times)
        if with_torch:
            from benchmarks.torch_peer import matrix_product

            found[f"torch {name}"] = (functools.partial(_repeat, matrix_product(*size), times), flops * times)
    return found


def jax_product(m: int, k: int, n: int) -> Callable[[], None]:
    """Returns a call of a compiled float32 product of [m, k] and [k, n]."""
    rng = np.random.default_rng(0)
    a, b = (jax.device_put(rng.random(size, np.float32)) for size in ((m, k), (k, n)))
    product = jax.jit(lambda a, b: a @ b)
    product(a, b).block_until_ready()
    return lambda: product(a, b).block_until_ready()


def _repeat(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


if __name__ == "__main__":
    main()
