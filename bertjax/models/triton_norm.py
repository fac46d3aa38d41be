"""Dropout, residual sum and norm on NVIDIA GPUs by one kernel, and all their gradients by another.

XLA would read each array several times, and store the random bits of all layers for the whole step. The kernels,
written in Pallas and compiled by Triton, draw the bits where they need them: those of `layers.draw_levels`, so that all
devices drop the same elements. A result with several uses is returned several times, so that the kernel adds up its
gradients.

Shapes: R rows, H hidden size, T rows of a tile, C columns of a chunk, k programs.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, UInt32

from bertjax import meshes
from bertjax.models.layers import LEVELS, Draws, Update, kept_levels

_TILE = 2**12  # elements: the registers hold no more with the sums of the gradients
_MAX_PROGRAMS = 2**9  # of a backward pass
_MAX_WIDTH = 1024
_MIN_CHUNK = 16
_MAX_CHUNKS = 12
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of threefry
_PARITY = 0x1BD11BDA  # of its third key


class Options(NamedTuple):
    """What the kernels compute."""

    epsilon: float  # added to the variance
    dtype: str  # of the norm
    centered: bool  # whether the mean is subtracted
    num_sums: int  # how often the residual sum is returned, 0 or 1
    num_norms: int  # how often its norm is returned
    rate: float = 0.0  # of dropout


# Fields of these are arrays, their shapes, or references inside kernels.


class _Inputs(NamedTuple):
    x: Any  # [R, H]; None in a backward pass
    update: Update | None  # [R, H] and [H]; without products in a backward pass
    scale: Any  # [H]
    shift: Any  # [H]; None for none
    key: Any  # [2] uint32; None without dropout
    numbers: Any  # [R, 1] uint32: the numbers of the rows; None without dropout


class _Stored(NamedTuple):
    """What the backward pass reads."""

    total: Any  # [R, H]: the residual sum
    mean: Any  # [R, 1] float32; None if it is not subtracted
    inverse: Any  # [R, 1] float32: 1 / standard deviation


class _Gradients(NamedTuple):
    x: Any  # [R, H]
    products: Any  # [R, H]; None without dropout, when they are those of x
    sums: Any  # [k, 1 to 3, H] float32: of scale, shift and the update's bias, each over the rows of a program


def can_compute(x: Float[Array, "*rows H"]) -> bool:
    """Returns whether the kernels can compute the norm of `x` on the devices of the program."""
    width = x.shape[-1]
    size = _chunk_size(x.shape[-1])
    fits = x.ndim <= 3 and width <= _MAX_WIDTH and size >= _MIN_CHUNK and width // size <= _MAX_CHUNKS
    return meshes.platform() == "cuda" and meshes.is_ampere_or_newer() and fits and meshes.divides(len(x), 0)


def sum_and_norm(
    options: Options,
    x: Float[Array, "*rows H"],
    update: Update | None,
    scale: Float[Array, " H"],
    shift: Float[Array, " H"] | None,
    draws: Draws | None,
) -> list[Float[Array, "*rows H"]]:
    """Returns the sum of `x` and the update after dropout, and its norm, each as often as the options say.

    XLA does not partition the kernels, so each device calls them on its own rows.
    """
    key = numbers = None
    if update is not None and draws is not None:
        if draws.rows is None and jax.random.key_impl(draws.key) == "threefry2x32":
            key = jax.random.key_data(draws.key)
            numbers = jnp.arange(x.size // x.shape[-1], dtype=jnp.uint32)[:, None]
            options = options._replace(rate=draws.rate)
        else:
            update = Update(draws.drop(update.total()), None)
    if update is not None:
        update = update._replace(products=_flat(update.products))
    results = _sum_and_norm(options, _Inputs(_flat(x), update, scale, shift, key, numbers))
    return [result.reshape(x.shape) for result in results]


def _flat(x: Float[Array, "*rows H"]) -> Float[Array, "R H"]:
    return x.reshape(-1, x.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_and_norm(options: Options, inputs: _Inputs) -> list[Array]:
    return _forward(options, inputs, stores=False)[0]


def _forward(options: Options, inputs: _Inputs, stores: bool = True) -> tuple[list[Array], Any]:
    """The results, and what `_backward` needs."""

    def of_device(inputs: _Inputs) -> tuple[Any, _Stored]:
        x = inputs.x
        column = _like(inputs.x[:, :1], "float32") if stores else None
        total = _like(x, x.dtype) if inputs.update is not None and (stores or options.num_sums) else None
        results = _like(x, options.dtype), _Stored(total, column if options.centered else None, column)
        return _call(_forward_kernel, options, len(x) // _tile_rows(x), (inputs,), results)

    norm, stored = _on_each_device(of_device, inputs)
    update = None if inputs.update is None else inputs.update._replace(products=None)
    stored = stored._replace(total=inputs.x) if update is None else stored
    results = [stored.total] * options.num_sums + [norm] * options.num_norms
    return results, (inputs._replace(x=None, update=update), stored)


def _backward(options: Options, residuals: tuple[_Inputs, _Stored], gradients: Sequence[Array]) -> tuple[_Inputs]:
    def of_device(inputs: _Inputs, stored: _Stored, gradients: list[Array]) -> _Gradients:
        x = stored.total
        programs = min(_MAX_PROGRAMS, len(stored.total) // _tile_rows(stored.total))
        num_sums = len(jax.tree.leaves((inputs.scale, inputs.shift, inputs.update)))
        sums = jax.ShapeDtypeStruct((programs, num_sums, x.shape[1]), jnp.float32)
        results = _Gradients(_like(x, x.dtype), _like(x, x.dtype) if options.rate else None, sums)
        return _call(_backward_kernel, options, programs, (inputs, stored, gradients), (results,))[0]

    inputs, stored = residuals
    results = _on_each_device(of_device, inputs, stored, list(gradients))
    sums = iter(results.sums.sum(0))
    of_scale, of_shift, of_update = jax.tree.map(
        lambda parameter: next(sums).astype(parameter.dtype), (inputs.scale, inputs.shift, inputs.update)
    )
    if of_update is not None:
        products = results.x if results.products is None else results.products
        of_update = of_update._replace(products=products)
    return (_Inputs(results.x, of_update, of_scale, of_shift, None, None),)


_sum_and_norm.defvjp(_forward, _backward)


def _on_each_device(function: Any, *arguments: Any) -> Any:
    """Calls a function whose arguments and results have rows if they have two axes."""
    specs = jax.tree.map(lambda leaf: meshes.OF_ROWS if leaf.ndim == 2 else PartitionSpec(), arguments)
    return meshes.on_each_device(function, specs, meshes.OF_ROWS)(*arguments)


def _call(kernel: Any, options: Options, programs: int, arguments: tuple[Any, ...], results: Any) -> Any:
    with jax.named_scope("flops=0"):  # for the plan, which counts those of matrix products
        return pl.pallas_call(
            functools.partial(kernel, options),
            grid=(programs,),
            out_shape=results,
            compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=1),
            interpret=meshes.platform() == "cpu",
        )(*arguments)


def _like(x: Array, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, dtype)


def _tile_rows(x: Any) -> int:
    """The rows of a tile: a power of two that divides R."""
    rows, width = x.shape
    return math.gcd(rows, 2 ** int(math.log2(_TILE // width)))


def _forward_kernel(options: Options, inputs: _Inputs, norm: Any, stored: _Stored) -> None:
    """Writes the residual sum of a tile, its statistics and its norm."""
    columns = _chunks(inputs.x)
    rows = _rows_of(pl.program_id(0), inputs.x)
    keeps = _kept(options, inputs, rows, columns)
    totals = []
    for chunk, keep in zip(columns, keeps, strict=True):
        total = inputs.x[rows, chunk].astype(jnp.float32)
        if inputs.update is not None:
            update = inputs.update.products[rows, chunk].astype(jnp.float32)
            if inputs.update.bias is not None:
                update += inputs.update.bias[chunk].astype(jnp.float32)
            total += _dropped(options, update, keep)
        total = total.astype(inputs.x.dtype)
        if stored.total is not None:
            stored.total[rows, chunk] = total
        totals.append(total.astype(jnp.float32))
    mean = _mean(totals) if options.centered else 0.0
    totals = [total - mean for total in totals]
    inverse = jax.lax.rsqrt(_mean([total * total for total in totals]) + options.epsilon)
    for column, value in ((stored.mean, mean), (stored.inverse, inverse)):
        if column is not None:
            column[rows, :] = value
    for chunk, total in zip(columns, totals, strict=True):
        y = total * inverse * inputs.scale[chunk]
        norm[rows, chunk] = (y if inputs.shift is None else y + inputs.shift[chunk]).astype(norm.dtype)


def _backward_kernel(
    options: Options, inputs: _Inputs, stored: _Stored, gradients: list[Any], results: _Gradients
) -> None:
    """Writes the gradients of each k-th tile, and their sums over rows."""
    columns = _chunks(stored.total)
    program = pl.program_id(0)
    rows = _tile_rows(stored.total)
    programs, num_sums = results.sums.shape[:2]
    of_sums = gradients[: options.num_sums]
    of_norms = gradients[options.num_sums :]

    def tile(turn: Array, totals: list[list[Array]]) -> list[list[Array]]:
        tile_rows = _rows_of(program + turn * programs, stored.total)
        keep = _kept(options, inputs, tile_rows, columns)
        inverse = stored.inverse[tile_rows, :]
        mean = 0.0 if stored.mean is None else stored.mean[tile_rows, :]
        normal = [(stored.total[tile_rows, chunk].astype(jnp.float32) - mean) * inverse for chunk in columns]
        result_grad = [sum(grad[tile_rows, chunk].astype(jnp.float32) for grad in of_norms) for chunk in columns]
        normal_grad = [grad * inputs.scale[chunk] for grad, chunk in zip(result_grad, columns, strict=True)]
        along = _mean([grad * x for grad, x in zip(normal_grad, normal, strict=True)])
        shared = _mean(normal_grad) if options.centered else 0.0
        added = []
        for number, chunk in enumerate(columns):
            x_grad = (normal_grad[number] - shared - normal[number] * along) * inverse
            for grad in of_sums:
                x_grad += grad[tile_rows, chunk].astype(jnp.float32)
            results.x[tile_rows, chunk] = x_grad.astype(results.x.dtype)
            update_grad = _dropped(options, x_grad, keep[number])
            if results.products is not None:
                results.products[tile_rows, chunk] = update_grad.astype(results.products.dtype)
            grads = [result_grad[number] * normal[number]]
            if inputs.shift is not None:
                grads.append(result_grad[number])
            added.append([*grads, update_grad][:num_sums])
        return jax.tree.map(jnp.add, totals, added)

    zeros = [[jnp.zeros((rows, chunk.size), jnp.float32)] * num_sums for chunk in columns]
    tiles = stored.total.shape[0] // rows
    totals = jax.lax.fori_loop(0, (tiles - program + programs - 1) // programs, tile, zeros)
    for chunk, sums in zip(columns, totals, strict=True):
        for number, total in enumerate(sums):
            results.sums[program, number, chunk] = jnp.sum(total, axis=0)


def _rows_of(tile: Any, x: Any) -> Any:
    rows = _tile_rows(x)
    return pl.ds(tile * rows, rows)


def _chunks(x: Any) -> list[Any]:
    """The columns of each chunk."""
    size = _chunk_size(x.shape[1])
    return [pl.ds(start, size) for start in range(0, x.shape[1], size)]


def _chunk_size(width: int) -> int:
    """The largest power of two, as sizes of Triton's arrays are, that divides a quarter of a row."""
    return width // 4 & -(width // 4)


def _mean(chunks: Sequence[Float[Array, "T C"]]) -> Float[Array, "T 1"]:
    total: Any = sum(jnp.sum(chunk, axis=1, keepdims=True) for chunk in chunks)
    return total / sum(chunk.shape[1] for chunk in chunks)


def _dropped(options: Options, x: Float[Array, "T C"], keep: Bool[Array, "T C"] | None) -> Float[Array, "T C"]:
    return x if keep is None else jnp.where(keep, x * (LEVELS / kept_levels(options.rate)), 0)


def _kept(options: Options, inputs: _Inputs, rows: Any, columns: Sequence[Any]) -> Sequence[Bool[Array, "T C"] | None]:
    """Which elements of a tile dropout keeps, by chunk; see `layers.draw_levels`."""
    if not options.rate:
        return [None] * len(columns)
    kept_elements: dict[int, Array] = {}
    low = jnp.uint32(LEVELS - 1)
    limit = jnp.uint32(kept_levels(options.rate))
    apart = len(columns) // 4
    for number, chunk in enumerate(columns[:apart]):
        shape = rows.size, chunk.size
        row = jnp.broadcast_to(inputs.numbers[rows, :], shape)
        place = jax.lax.broadcasted_iota(jnp.uint32, shape, 1) + jnp.uint32(chunk.start)
        draws = [half for word in _threefry(inputs.key, row, place) for half in (word & low, word >> jnp.uint32(16))]
        kept_elements |= {number + quarter * apart: draw < limit for quarter, draw in enumerate(draws)}
    return [kept_elements[number] for number in range(len(columns))]


def _threefry(key: Any, x: UInt32[Array, "T C"], y: UInt32[Array, "T C"]) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), as in `jax.random`, which Triton cannot compile."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
    x = x + keys[0]
    y = y + keys[1]
    for group in range(1, 6):
        for bits in _ROTATIONS[1 - group % 2]:
            x += y
            y = x ^ ((y << jnp.uint32(bits)) | (y >> jnp.uint32(32 - bits)))
        x = x + keys[group % 3]
        y = y + keys[(group + 1) % 3] + jnp.uint32(group)
    return x, y
