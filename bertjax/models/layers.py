"""Layers used by all models: an affine map, norms (Ba et al. 2016), dropout (Srivastava et al. 2014)."""

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float, Int, UInt16

from bertjax import meshes

LEVELS = 2**16  # of the random bits of an element
NORMS = "norms"  # the name, for rematerialization, of what the backward pass of a norm reads


class Dense(nn.Module):
    """Map of the last axis: `kernel` [I, O] and, if `use_bias`, `bias` [O], stored in float32, applied in `dtype`.

    Kernels are initialized by `kernel_init`, biases at zero.
    """

    features: int
    kernel_init: nn.initializers.Initializer
    dtype: str
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*rows I"]) -> Float[Array, "*rows O"]:
        """Maps the last axis from I to O = `features`."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        # Flat rows make the gradient one plain matrix product: up to 2x faster on CPU for H -> 4H.
        rows = x.reshape(-1, x.shape[-1]).astype(self.dtype)
        y = rows @ kernel.astype(self.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = _add_bias(y, jnp.asarray(bias, self.dtype))
        return y.reshape(*x.shape[:-1], self.features)


def _add_bias(y: Float[Array, "rows O"], bias: Float[Array, " O"]) -> Float[Array, "rows O"]:
    # On a TPU, the sum over rows for the bias's gradient is several times faster as a matrix product with ones.
    return _with_fast_gradient(y, bias) if meshes.platform() == "tpu" and y.dtype == jnp.bfloat16 else y + bias


@jax.custom_vjp
def _with_fast_gradient(y: Float[Array, "rows O"], bias: Float[Array, " O"]) -> Float[Array, "rows O"]:
    return y + bias


def _backward(_: None, gradient: Float[Array, "rows O"]) -> tuple[Float[Array, "rows O"], Float[Array, " O"]]:
    ones = jnp.ones((8, gradient.shape[0]), gradient.dtype)  # with one row, the compiler would turn it into a sum again
    return gradient, jnp.matmul(ones, gradient, preferred_element_type=jnp.float32)[0].astype(gradient.dtype)


_with_fast_gradient.defvjp(lambda y, bias: (y + bias, None), _backward)


@jax.custom_vjp
def word_logits(x: Float[Array, "rows W"], words: Float[Array, "V W"]) -> Float[Array, "rows V"]:
    """Returns the float32 logits of all words: the products of vectors and output embeddings.

    Products take their factors in the type of `x`, the gradient of the logits too, as under autocast of PyTorch.
    Differentiating the product would store that gradient in float32, the largest array of a step.
    """
    return jnp.einsum("rW,VW->rV", x, words.astype(x.dtype), preferred_element_type=jnp.float32)


def _logits_forward(x: Array, words: Array) -> tuple[Array, tuple[Array, Array]]:
    return word_logits(x, words), (x, words)


def _logits_backward(stored: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, words = stored
    gradient = gradient.astype(x.dtype)
    x_grad = jnp.einsum("rV,VW->rW", gradient, words.astype(x.dtype))
    words_grad = jnp.einsum("rV,rW->VW", gradient, x, preferred_element_type=jnp.float32)
    return x_grad, words_grad.astype(words.dtype)


word_logits.defvjp(_logits_forward, _logits_backward)


class Norm(nn.Module):
    """Normalization of the last axis, with parameters `scale` and, if `use_bias`, `bias` [H]. Its result has `dtype`.

    Parameters and statistics are float32. The variance takes two passes, because the one-pass formula is inaccurate if
    the mean is far from zero.
    """

    epsilon: float  # added to the variance
    dtype: str
    centered: bool = True  # layer normalization; if False, RMS normalization, which takes the mean for zero
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*rows H"]) -> Float[Array, "*rows H"]:
        """Normalizes, scales and shifts."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = jnp.asarray(self.param("bias", nn.initializers.zeros, (x.shape[-1],))) if self.use_bias else None
        return _normalize(self.epsilon, self.dtype, self.centered, x, jnp.asarray(scale), bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _normalize(
    epsilon: float,
    dtype: str,
    centered: bool,
    x: Float[Array, "*rows H"],
    scale: Float[Array, " H"],
    bias: Float[Array, " H"] | None,
) -> Float[Array, "*rows H"]:
    return _normalize_forward(epsilon, dtype, centered, x, scale, bias)[0]


def _normalize_forward(
    epsilon: float, dtype: str, centered: bool, x: Array, scale: Array, bias: Array | None
) -> tuple[Array, Any]:
    """The result, and what the backward pass reads: `x` in its own type, where differentiation would store float32."""
    x = checkpoint_name(x, NORMS)
    y = x.astype(jnp.float32)
    mean = checkpoint_name(jnp.mean(y, axis=-1, keepdims=True), NORMS) if centered else jnp.zeros(())
    variance = jnp.mean(jnp.square(y - mean), axis=-1, keepdims=True)
    inverse = checkpoint_name(jax.lax.rsqrt(variance + epsilon), NORMS)
    y = (y - mean) * (inverse * scale)
    return (y if bias is None else y + bias).astype(dtype), (x, mean, inverse, scale, bias)


def _normalize_backward(
    epsilon: float, dtype: str, centered: bool, stored: Any, gradient: Array
) -> tuple[Array, Array, Array | None]:
    x, mean, inverse, scale, bias = stored
    if meshes.platform() == "tpu":  # whose compiler would slow down the matrix product that computes the gradient
        gradient = jax.lax.optimization_barrier(gradient)

    def widened() -> tuple[Array, Array]:
        return (x.astype(jnp.float32) - mean) * inverse, gradient.astype(jnp.float32)

    normal, result_grad = widened()
    normal_grad = result_grad * scale
    along = normal * jnp.mean(normal_grad * normal, axis=-1, keepdims=True)
    if centered:
        normal_grad -= jnp.mean(normal_grad, axis=-1, keepdims=True)
    x_grad = inverse * (normal_grad - along)
    if meshes.platform() == "cuda":  # whose compiler would store the float32 arrays of the sums over rows
        x, gradient = jax.lax.optimization_barrier((x, gradient))
        normal, result_grad = widened()
    rows = tuple(range(x.ndim - 1))
    bias_grad = None if bias is None else jnp.sum(result_grad, axis=rows)
    return x_grad.astype(x.dtype), jnp.sum(result_grad * normal, axis=rows), bias_grad


_normalize.defvjp(_normalize_forward, _normalize_backward)


_ROWS: ContextVar[jax.Array | None] = ContextVar("rows", default=None)


@contextlib.contextmanager
def drawing_by_row(rows: Int[Array, " B"]) -> Iterator[None]:
    """Draws the dropout of each row by its number in `rows` instead of its place in the batch.

    The draws of a row then do not depend on the other rows of an array.
    """
    token = _ROWS.set(rows)
    try:
        yield
    finally:
        _ROWS.reset(token)


def row_numbers(count: int) -> Int[Array, " {count}"]:
    """Returns the numbers that dropout knows the rows by: by default 0, 1, ..."""
    rows = _ROWS.get()
    return jnp.arange(count) if rows is None else rows


class Dropout(nn.Module):
    """Sets a fraction `rate` of the elements to 0 and scales up the others to preserve the mean.

    Each element uses 16 random bits, half as many as in `flax.linen.Dropout`, because random bits are most of dropout's
    cost. The rate is exact to 2**-17; the scale uses the rounded rate.
    """

    rate: float
    by_row: bool = True  # whether axis 0 has the rows of a batch; see `drawing_by_row`

    @nn.compact
    def __call__(self, x: Float[Array, "*rows H"], *, deterministic: bool) -> Float[Array, "*rows H"]:
        """Drops elements, using the key of the collection "dropout", unless `deterministic`."""
        if deterministic or not self.rate:
            return x
        key, rows = self.make_rng("dropout"), _ROWS.get()
        if rows is None or not self.by_row:
            return drop(x, key, self.rate)
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(rows)
        return jax.vmap(functools.partial(drop, rate=self.rate))(x, keys)


def drop(x: Float[Array, "*rows H"], key: jax.Array, rate: float) -> Float[Array, "*rows H"]:
    """Drops elements; `rate` must be above 0. See `Dropout`."""
    kept = kept_levels(rate)
    return jnp.where(draw_levels(key, x.shape) < kept, x * (LEVELS / kept), 0).astype(x.dtype)


def draw_levels(key: jax.Array, shape: tuple[int, ...]) -> UInt16[Array, "*shape"]:
    """Draws one of `LEVELS` levels for each element, at least of one axis.

    With a key of "threefry2x32", the counter (i, j) gives four levels to row i, whose number counts all rows: the low
    and the high half of its first word, and those of its second, are the levels j of the four quarters of the row.
    `jax.random.bits` would add both words up, which takes twice the time.
    """
    *rows, size = shape
    if jax.random.key_impl(key) != "threefry2x32":
        words = jax.random.bits(key, (*rows, -(-size // 2)), jnp.uint32)
        return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*rows, -1)[..., :size]
    # Rows are not made one axis, for which the compiler for TPUs would rearrange the levels.
    counters = *rows, -(-size // 4)
    *numbers, place = (jax.lax.broadcasted_iota(jnp.uint32, counters, axis) for axis in range(len(counters)))
    row = jnp.zeros_like(place)
    for number, length in zip(numbers, rows, strict=True):
        row = row * length + number
    words = threefry2x32_p.bind(*jax.random.key_data(key), row, place)
    quarters = [half.astype(jnp.uint16) for word in words for half in (word, word >> 16)]
    levels = jnp.concatenate(quarters, axis=-1)[..., :size]
    if meshes.platform() != "cuda" or meshes.num_devices() > 1:
        return levels
    # The compiler for GPUs would transpose all activations. On several, the constraint would gather the levels.
    return with_layout_constraint(levels, Layout(tuple(range(len(shape)))))


def kept_levels(rate: float) -> int:
    """Returns the number of levels, of `LEVELS`, at which an element is kept."""
    return min(round((1 - rate) * LEVELS), LEVELS - 1)
