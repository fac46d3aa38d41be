"""The update rules of optimizers, and clipping, as gradient transformations of optax."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from bertjax import meshes
from bertjax.contract import Params
from bertjax.training.sharding import path_names

# The root mean square of AdamW's updates (Liu et al. 2025, section 2.2).
_ADAMW_RMS = 0.2


def clip_by_global_norm(max_norm: float, included: Params) -> optax.GradientTransformation:
    """Returns a transformation that scales gradients down to a maximum global norm.

    Unlike `optax.clip_by_global_norm`, it multiplies by one factor. optax's division and selection per element prevent
    the scaled gradients from being fused into the update, which costs a write and a read of all gradients.

    `update` accepts the norm of all gradients as `gradient_norm`, which the training step has computed already. It
    computes a norm itself if there is no such argument, or if `included` excludes elements.

    Args:
      max_norm: the maximum norm.
      included: a tree of Boolean arrays that broadcast to the gradients: which elements the norm includes. Frozen
        parameters are excluded.
    """
    includes_all = all(np.all(mask) for mask in jax.tree.leaves(included))

    def update(
        updates: Params,
        state: optax.EmptyState,
        params: Params | None = None,
        *,
        gradient_norm: Any = None,
        **others: Any,
    ) -> tuple[Params, Any]:
        del params, others
        norm = gradient_norm
        if norm is None or not includes_all:
            measured = jax.tree.map(lambda g, mask: g if np.all(mask) else g * mask, updates, included)
            norm = optax.global_norm(measured)
        factor = max_norm / jnp.maximum(norm, max_norm)
        return jax.tree.map(lambda g: g * factor, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


class AdamState(NamedTuple):
    """Adam's moments, and the number of their updates."""

    updates: jax.Array  # [] int32: the number, not the updates that optax passes to `update`
    mu: Params
    nu: Params


def scale_by_adam(beta1: float, beta2: float, eps: float, bias_correction: bool) -> optax.GradientTransformation:
    """Returns Adam (Kingma and Ba 2015). Without bias correction: `AdamWeightDecayOptimizer` of google-research/bert.

    Unlike `optax.scale_by_adam`, it computes the update from the stored new moments.
    """

    def init(params: Params) -> AdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(updates: Params, state: AdamState, params: Params | None = None) -> tuple[Params, AdamState]:
        del params
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state.nu, updates)
        # Without the barrier, the compiler for CPUs computes the new moments a second time inside the update, and
        # copies the old moments for this. The compilers for TPUs and GPUs compute moments and update in one pass, which
        # the barrier would prevent.
        if meshes.platform() == "cpu":
            mu, nu = jax.lax.optimization_barrier((mu, nu))
        count = state.updates + 1
        new_state = AdamState(count, mu, nu)
        mu_correction = jnp.ones(())
        nu_correction = jnp.ones(())
        if bias_correction:
            mu_correction = 1 / (1 - beta1**count)
            nu_correction = 1 / (1 - beta2**count)
        steps = jax.tree.map(lambda m, v: m * mu_correction / (jnp.sqrt(v * nu_correction) + eps), mu, nu)
        return steps, new_state

    return optax.GradientTransformation(init, update)


def scale_by_muon(beta: float, ns_steps: int) -> optax.GradientTransformation:
    """Returns Muon with Nesterov momentum (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

    It replaces the momentum of each matrix by a nearly orthogonal matrix. The axes of a matrix are the last two of a
    parameter, so each layer of a stacked parameter [L, I, O] is a matrix. The queries of all heads are one matrix
    together; so are the keys, and the values.

    Updates are multiplied by 0.2 sqrt(max(I, O)), which gives them the root mean square of AdamW's updates. The same
    learning rate and weight decay then suit both (Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2).

    Args:
      beta: decay rate of the momentum.
      ns_steps: Newton-Schulz iterations.
    """

    def matrix_axes(params: Params) -> Params:
        return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(-2, -1), params)

    def scale(update: jax.Array) -> jax.Array:
        return update * (_ADAMW_RMS * math.sqrt(max(update.shape[-2:])))

    return optax.chain(
        contrib.scale_by_muon(ns_steps=ns_steps, beta=beta, weight_dimension_numbers=matrix_axes),
        optax.stateless(lambda updates, _: jax.tree.map(scale, updates)),
    )


def scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """Returns LAMB's scaling by the ratio of the norms of parameter and update (You et al. 2020, algorithm 2).

    The parameters of all layers are stacked on axis 0 of one array; each layer has its own norm.
    """

    def scale(name: str, update: jax.Array, param: jax.Array) -> jax.Array:
        axes = tuple(range(1, param.ndim)) if "layers/" in name else None
        update_norm = jnp.sqrt(jnp.sum(update**2, axes, keepdims=True))
        param_norm = jnp.sqrt(jnp.sum(param**2, axes, keepdims=True))
        has_ratio = (update_norm > 0) & (param_norm > 0)
        divisor = jnp.where(has_ratio, update_norm, 1)  # not 0, even where the ratio is unused
        return update * jnp.where(has_ratio, param_norm / divisor, 1)

    def update(updates: Params, state: optax.EmptyState, params: Params | None = None) -> tuple[Params, Any]:
        return jax.tree.map(scale, path_names(updates), updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
