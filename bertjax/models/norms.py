"""Norms (Ba et al. 2016; Zhang and Sennrich 2019), alone and of a residual sum.

Shapes: H hidden size.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from bertjax import meshes
from bertjax.models import triton_norm
from bertjax.models.layers import Draws, Update

NORMS = "norms"  # the name, for rematerialization, of what the backward pass of a norm reads


class Norm(nn.Module):
    """Normalization of the last axis, with parameters `scale` and, if `use_bias`, `bias` [H]. Its result has `dtype`.

    Parameters and statistics are float32. The variance takes two passes, because the one-pass formula is inaccurate if
    the mean is far from zero.
    """

    epsilon: float  # added to the variance
    dtype: str
    centered: bool = True  # layer normalization; if False, RMS normalization, which takes the mean for zero
    use_bias: bool = True
    is_fused: bool = True  # whether NVIDIA GPUs compute it, with dropout and residual sum, by `triton_norm`

    def __call__(self, x: Float[Array, "*rows H"]) -> Float[Array, "*rows H"]:
        """Normalizes, scales and shifts."""
        return self.of_sum(x, None, None)[0]

    @nn.compact
    def of_sum(
        self,
        x: Float[Array, "*rows H"],
        update: Update | None,
        draws: Draws | None,
        num_sums: int = 0,
        num_norms: int = 1,
    ) -> list[Float[Array, "*rows H"]]:
        """Returns the sum of `x` and an update after dropout, and its norm, as often as each is used.

        The gradients of several uses are added up in one pass if each has its own result.

        Args:
          x: the residual stream.
          update: the result of a sub-layer; None for none.
          draws: the dropout of the update; None for none.
          num_sums: how often to return the sum, 0 or 1.
          num_norms: how often to return its norm.
        """
        scale = jnp.asarray(self.param("scale", nn.initializers.ones, (x.shape[-1],)))
        bias = jnp.asarray(self.param("bias", nn.initializers.zeros, (x.shape[-1],))) if self.use_bias else None
        if self.is_fused and not self.is_initializing() and triton_norm.can_compute(x):
            options = triton_norm.Options(self.epsilon, self.dtype, self.centered, num_sums, num_norms)
            return triton_norm.sum_and_norm(options, x, update, scale, bias, draws)
        x = x if update is None else add(x, update, draws)
        norm = _normalize(self.epsilon, self.dtype, self.centered, x, scale, bias)
        return [x] * num_sums + [norm] * num_norms


def add(x: Float[Array, "*rows H"], update: Update, draws: Draws | None) -> Float[Array, "*rows H"]:
    """Returns the sum of `x` and the update after dropout."""
    return x + (update.total() if draws is None else draws.drop(update.total()))


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
