"""Microseconds of attention and norms in bfloat16 on one GPU, and the roofs of its matrix products and its memory.

    python -m benchmarks.gpu_kernels --output=kernels.json

Attention is forward and backward, by every backend of `bertjax.models.attention.backends`: on rows of one instance, on
rows of four, and on the latter with a window. Backends that cannot compute it are listed with the reason. Errors of
results and gradients are relative to the norms of those of plain XLA in float32. The output file is updated after each
measurement.
`--smoke` runs small shapes on a CPU.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import common, gpu, turns
from bertjax.models import triton_norm
from bertjax.models.attention import backends
from bertjax.models.attention.inputs import AttentionInputs
from bertjax.models.attention.mask import make_mask
from bertjax.models.attention.xla import xla
from bertjax.models.layers import Draws, Update
from bertjax.models.norms import Norm

_TIMING = 0.5  # seconds of each measurement
_WINDOW = 64
_INSTANCES = 4  # in a packed row
# Arrays that dropout, residual sum and norm must move: forward two inputs, their sum and the result; backward the sum,
# two gradients of the result and those of the inputs.
_MOVED = 9
_HEADER = ["what", "µs", "rate", "relative errors"]
_Function = Callable[..., Any]


class Scale(NamedTuple):
    """The shape [B, S, N, D] of queries, keys and values; M, K and N of products; and the numbers to copy."""

    shape: tuple[int, int, int, int]
    products: tuple[tuple[int, int, int], ...]
    copied: int


_WIDTHS = ((768, 768), (768, 3072), (3072, 768), (1024, 4096), (4096, 1024))
FULL = Scale((64, 512, 12, 64), ((8192, 8192, 8192), *((32_768, *widths) for widths in _WIDTHS)), 2**30)
SMOKE = Scale((2, 128, 2, 64), ((256, 256, 256),), 2**20)


class Measurements:
    """The results so far, which are written after each measurement."""

    def __init__(self, output: Path, clock: turns.Clock, timing: float) -> None:
        """Initializes with the JSON file, the clock after whose end nothing is measured, and the seconds of each."""
        self.all: list[dict[str, Any]] = []
        self._output, self._clock, self._timing = output, clock, timing

    def add(self, name: str, **values: Any) -> None:
        """Adds a result."""
        self.all.append({"name": name, **values})
        print(", ".join(filter(None, row(self.all[-1]))), flush=True)
        common.write_json(self._output, {"device": jax.devices()[0].device_kind, "results": self.all})

    def time(self, name: str, function: _Function, arrays: Any, wanted: Any = None, **amounts: float) -> None:
        """Adds the time of a function.

        Args:
          name: the name of the result.
          function: the function, which is compiled.
          arrays: its arguments.
          wanted: a function that returns the accurate values of its results, by name.
          **amounts: `operations` and `moved` (bytes); the result has the rate of each per second.
        """
        if self._clock.left() <= 0:
            return self.add(name, skipped="no time left")
        try:
            began = time.perf_counter()
            call = jax.jit(function)
            results = jax.block_until_ready(call(*arrays))
            compiled = time.perf_counter() - began
            errors = {key: _error(results[key], value) for key, value in wanted().items()} if wanted else {}

            def step(times: int) -> None:
                for _ in range(times):
                    results = call(*arrays)
                jax.block_until_ready(results)

            seconds = gpu.time_step(step, self._timing)
        except Exception as error:  # any kernel can fail; the others are measured
            return self.add(name, error=turns.message(error))
        rates = {f"{what}_per_second": amount / seconds for what, amount in amounts.items()}
        return self.add(name, microseconds=1e6 * seconds, compile_seconds=compiled, errors=errors, **rates)


def main() -> None:
    """Measures everything for which there is time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--seconds", type=float, default=120.0, help="nothing is measured after this time")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    scale, timing = (SMOKE, 0.0) if args.smoke else (FULL, _TIMING)
    results = Measurements(args.output, turns.Clock(args.seconds), timing)
    for m, k, n in scale.products:
        results.time(f"product {m}x{k}x{n}", jnp.matmul, (_normal((m, k)), _normal((k, n))), operations=2.0 * m * k * n)
    copied = jnp.zeros(scale.copied, jnp.bfloat16)
    results.time("copy", lambda x: x + 1, (copied,), moved=2.0 * copied.nbytes)
    measure_attention(results, scale.shape)
    measure_norm(results, scale.shape)
    print(
        f"\n{common.describe_machine()}; bfloat16\n\n{common.table(_HEADER, [row(result) for result in results.all])}"
    )
    if args.smoke and any("error" in result for result in results.all):
        sys.exit("error: a measurement failed")


def measure_attention(measurements: Measurements, shape: tuple[int, int, int, int]) -> None:
    """Times each kind of attention, `attention, KIND, BACKEND`, with all backends that can compute it."""
    arrays = [_normal(shape, seed) for seed in range(4)]
    segments, positions = _packed(*shape[:2])
    unpacked = make_mask(jnp.ones(shape[:2], jnp.int32), "both")
    packed = make_mask(segments, "both", positions)
    kinds = {"whole rows": unpacked, "packed rows": packed, f"packed rows, window {_WINDOW}": packed.within(_WINDOW)}
    for kind, mask in kinds.items():
        accurate = functools.cache(functools.partial(_accurate, _passes(xla), arrays, mask))
        for name, backend in backends.BACKENDS.items():
            obstacle = next(backend.obstacles(AttentionInputs(*arrays[:3], mask)), "")
            if obstacle:
                measurements.add(f"attention, {kind}, {name}", skipped=obstacle)
                continue
            passes = _passes(functools.partial(backends.dot_product_attention, name))
            measurements.time(f"attention, {kind}, {name}", passes, (*arrays, mask), wanted=accurate)


def _passes(attend: _Function) -> _Function:
    """Returns the function that computes the context and the gradients, forward and backward."""

    def passes(query: Any, key: Any, value: Any, gradient: Any, mask: Any) -> dict[str, Any]:
        def forward(*arrays: Any) -> Any:
            return attend(AttentionInputs(*arrays, mask))[0]

        context, pull = jax.vjp(forward, query, key, value)
        return {"context": context, **dict(zip(("query", "key", "value"), pull(gradient), strict=True))}

    return passes


def measure_norm(measurements: Measurements, shape: tuple[int, int, int, int]) -> None:
    """Times dropout, residual sum and layer norm with two uses, forward and backward, by the kernel and by XLA."""
    rows, length, heads, size = shape
    arrays = [_normal((rows, length, heads * size), seed) for seed in range(4)]
    params = {"scale": jnp.ones(heads * size), "bias": jnp.ones(heads * size)}
    others, moved = (params, jax.random.key(0)), float(_MOVED * arrays[0].nbytes)

    def passes(is_fused: bool, x: Any, products: Any, *rest: Any) -> dict[str, Any]:
        *gradients, (params, key) = rest

        def forward(x: Any, products: Any, bias: Any, params: Any) -> Any:
            norm, update = Norm(1e-12, x.dtype.name, is_fused=is_fused), Update(products, bias)
            return norm.apply({"params": params}, x, update, Draws(key, 0.1, None), num_norms=2, method="of_sum")

        results, pull = jax.vjp(forward, x, products, params["bias"].astype(x.dtype), params)
        of_x, of_products, of_bias, of_params = pull(gradients)
        return {"result": results[0], "x": of_x, "products": of_products, "update's bias": of_bias, **of_params}

    accurate = functools.partial(_accurate, functools.partial(passes, False), arrays, others)
    for name, is_fused in (("xla", False), ("triton", True)):
        if is_fused and not triton_norm.can_compute(arrays[0]):
            measurements.add(f"dropout, residual, norm, {name}", skipped="not an NVIDIA GPU")
            continue
        call = functools.partial(passes, is_fused)
        measurements.time(f"dropout, residual, norm, {name}", call, (*arrays, others), wanted=accurate, moved=moved)


def _accurate(passes: _Function, arrays: Any, other: Any) -> Any:
    with jax.default_matmul_precision("highest"):
        return jax.jit(passes)(*(array.astype(jnp.float32) for array in arrays), other)


def _packed(rows: int, length: int) -> tuple[jax.Array, jax.Array]:
    """The segments and positions of rows of several instances, whose lengths vary."""
    starts, places = np.zeros((rows, length), np.int32), np.arange(length, dtype=np.int32)
    chosen = 1 + np.random.default_rng(0).random((rows, length - 1)).argsort(axis=1)[:, 1:_INSTANCES]
    np.put_along_axis(starts, chosen, 1, axis=1)
    positions = places - np.maximum.accumulate(starts * places, axis=1)
    return jnp.asarray(1 + np.cumsum(starts, axis=1, dtype=np.int32)), jnp.asarray(positions)


def _normal(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def _error(result: jax.Array, accurate: jax.Array) -> float:
    return float(jnp.linalg.norm(result.astype(jnp.float32) - accurate) / jnp.linalg.norm(accurate))


def row(result: Mapping[str, Any]) -> list[str]:
    """Returns a table row."""
    if "microseconds" not in result:
        return [result["name"], turns.obstacle_of(result), "", ""]
    units = {"operations_per_second": "TFLOP/s", "moved_per_second": "TB/s"}
    rates = [f"{result[key] / 1e12:.3g} {unit}" for key, unit in units.items() if key in result]
    errors = [f"{name} {error:.1e}" for name, error in result["errors"].items()]
    return [result["name"], f"{result['microseconds']:,.0f}", *(rates or [""]), ", ".join(errors)]


if __name__ == "__main__":
    main()
