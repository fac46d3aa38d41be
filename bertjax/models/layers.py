"""Layers used by all models: an affine map and dropout (Srivastava et al. 2014)."""

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float, Int, UInt16

from bertjax import meshes
from bertjax.models.threefry import fold_in, threefry

LEVELS = 2**16  # of the random bits of an element


class Update(NamedTuple):
    """The result of a `Dense` layer whose bias is still to be added."""

    products: Any  # [*rows, O]
    bias: Array | None  # [O]

    def total(self) -> Float[Array, "*rows O"]:
        """Returns the result."""
        return self.products if self.bias is None else _add_bias(self.products, self.bias)


class Dense(nn.Module):
    """Map of the last axis: `kernel` [I, O] and, if `use_bias`, `bias` [O], stored in float32, applied in `dtype`.

    Kernels are initialized by `kernel_init`, biases at zero.
    """

    features: int
    kernel_init: nn.initializers.Initializer
    dtype: str
    use_bias: bool = True

    def __call__(self, x: Float[Array, "*rows I"]) -> Float[Array, "*rows O"]:
        """Maps the last axis from I to O = `features`."""
        return self.update(x).total()

    @nn.compact
    def update(self, x: Float[Array, "*rows I"]) -> Update:
        """Returns the result with the bias apart, for a kernel that adds it."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        # Flat rows make the gradient one plain matrix product: up to 2x faster on CPU for H -> 4H.
        rows = x.reshape(-1, x.shape[-1]).astype(self.dtype)
        y = (rows @ kernel.astype(self.dtype)).reshape(*x.shape[:-1], self.features)
        bias = self.param("bias", nn.initializers.zeros, (self.features,)) if self.use_bias else None
        return Update(y, None if bias is None else jnp.asarray(bias, self.dtype))


def _add_bias(y: Float[Array, "*rows O"], bias: Float[Array, " O"]) -> Float[Array, "*rows O"]:
    # On a TPU, the sum over rows for the bias's gradient is several times faster as a matrix product with ones.
    return _with_fast_gradient(y, bias) if meshes.platform() == "tpu" and y.dtype == jnp.bfloat16 else y + bias


@jax.custom_vjp
def _with_fast_gradient(y: Float[Array, "*rows O"], bias: Float[Array, " O"]) -> Float[Array, "*rows O"]:
    return y + bias


def _backward(_: None, gradient: Float[Array, "*rows O"]) -> tuple[Float[Array, "*rows O"], Float[Array, " O"]]:
    rows = gradient.reshape(-1, gradient.shape[-1])
    ones = jnp.ones((8, len(rows)), rows.dtype)  # with one row, the compiler would turn it into a sum again
    return gradient, jnp.matmul(ones, rows, preferred_element_type=jnp.float32)[0].astype(gradient.dtype)


_with_fast_gradient.defvjp(lambda y, bias: (y + bias, None), _backward)


@jax.custom_vjp
def word_logits(
    x: Float[Array, "rows W"], words: Float[Array, "V W"], bias: Float[Array, " V"] | None = None
) -> Float[Array, "rows V"]:
    """Returns the float32 logits of all words: the products of vectors and output embeddings, and the bias.

    Products take their factors in the type of `x`, the gradient of the logits too, as under autocast of PyTorch.
    Differentiating the product would store that gradient in float32, the largest array of a step.
    """
    logits = jnp.einsum("rW,VW->rV", x, words.astype(x.dtype), preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias


def _logits_forward(x: Array, words: Array, bias: Array | None) -> tuple[Array, tuple[Array | None, ...]]:
    return word_logits(x, words, bias), (x, words, bias)


def _logits_backward(stored: tuple[Array, Array, Array | None], gradient: Array) -> tuple[Array | None, ...]:
    x, words, bias = stored
    gradient = gradient.astype(x.dtype)
    x_grad = jnp.einsum("rV,VW->rW", gradient, words.astype(x.dtype))
    words_grad = jnp.einsum("rV,rW->VW", gradient, x, preferred_element_type=jnp.float32)
    bias_grad = None if bias is None else jnp.sum(gradient, axis=0, dtype=jnp.float32).astype(bias.dtype)
    return x_grad, words_grad.astype(words.dtype), bias_grad


word_logits.defvjp(_logits_forward, _logits_backward)


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


class Draws(NamedTuple):
    """The random bits of dropout, before they are drawn."""

    key: jax.Array
    rate: float
    rows: Array | None  # [B]: the numbers of rows of which each has its own key; None if all have `key`

    def drop(self, x: Float[Array, "*rows H"]) -> Float[Array, "*rows H"]:
        """Drops elements."""
        if self.rows is None:
            return drop(x, self.key, self.rate)
        keys = fold_in(self.key, self.rows.astype(jnp.uint32))
        return jax.vmap(functools.partial(drop, rate=self.rate))(x, keys)


class Dropout(nn.Module):
    """Sets a fraction `rate` of the elements to 0 and scales up the others to preserve the mean.

    Each element uses 16 random bits, half as many as in `flax.linen.Dropout`, because random bits are most of dropout's
    cost. The rate is exact to 2**-17; the scale uses the rounded rate.
    """

    rate: float
    by_row: bool = True  # whether axis 0 has the rows of a batch; see `drawing_by_row`

    def __call__(self, x: Float[Array, "*rows H"], *, deterministic: bool) -> Float[Array, "*rows H"]:
        """Drops elements, using the key of the collection "dropout", unless `deterministic`."""
        draws = self.draws(deterministic=deterministic)
        return x if draws is None else draws.drop(x)

    @nn.compact
    def draws(self, *, deterministic: bool) -> Draws | None:
        """Returns how elements are dropped; None if none is."""
        if deterministic or not self.rate:
            return None
        return Draws(self.make_rng("dropout"), self.rate, _ROWS.get() if self.by_row else None)


def drop(x: Float[Array, "*rows H"], key: jax.Array, rate: float) -> Float[Array, "*rows H"]:
    """Drops elements; `rate` must be above 0. See `Dropout`."""
    kept_count = kept_levels(rate)
    return jnp.where(draw_levels(key, x.shape) < kept_count, x * (LEVELS / kept_count), 0).astype(x.dtype)


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
    generator = threefry if meshes.platform() == "cpu" else threefry2x32_p.bind
    words = generator(*jax.random.key_data(key), row, place)
    quarters = [half.astype(jnp.uint16) for word in words for half in (word, word >> 16)]
    levels = jnp.concatenate(quarters, axis=-1)[..., :size]
    if meshes.platform() != "cuda" or meshes.num_devices() > 1:
        return levels
    # The compiler for GPUs would transpose all activations. On several, the constraint would gather the levels.
    return with_layout_constraint(levels, Layout(tuple(range(len(shape)))))


def kept_levels(rate: float) -> int:
    """Returns the number of levels, of `LEVELS`, at which an element is kept."""
    return min(round((1 - rate) * LEVELS), LEVELS - 1)
