"""Optimizers as values: AdamW in BERT's form and the standard one, LAMB, schedules, parameter groups."""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config import Constrained, Count, at_least, one_of
from bertjax.contract import Params
from bertjax.errors import UserError

Schedule = Callable[[Any], jax.Array]

# The schedules that reach their end with a number of updates.
_DECAYING = ("linear", "sqrt_decay", "cosine")
# What the lowest layer of an encoder reads: BERT's tables, or those of an encoder-decoder that are not the decoder's.
_ENCODER_INPUT = re.compile(r"(^|/)(embeddings(/|$)|source_)")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Constrained, prefix="optimizer"):
    """How parameters are updated.

    Attributes:
      name: "adamw" or "lamb".
      learning_rate: the peak of the schedule.
      schedule: "linear" (BERT's), "sqrt_decay" (its square root), "inverse_sqrt" (Noam's), "cosine" or "constant",
        after `warmup_steps`.
      warmup_steps: updates of linear warm-up; in fine-tuning those of `warmup_fraction` where it is not set.
      weight_decay: decoupled decay, times the learning rate.
      no_decay: parameters whose path matches this pattern do not decay.
      beta1, beta2, eps: Adam's.
      bias_correction: Adam's and LAMB's; BERT has none ("mostly an oversight", its author says).
      clip_norm: largest norm of the whole gradient but for what is frozen; 0 to leave it.
      layer_decay: what the learning rate of an encoder's layer is multiplied by for each layer above it, and once more
        for what is on top of it; of its embeddings, as if they were the layer below all (Howard and Ruder 2018,
        section 3.2). 1 for none.
      frozen_layers: how many layers of the encoder, from the first, stay as they are, and its embeddings with them; 0
        for none.
      groups: ordered (path pattern, overrides): a parameter belongs to the first group whose pattern is found
        in its path ("bert/encoder/layers/attention/query/kernel"). Overrides are any keys of `optimizer` but
        `groups`, `clip_norm`, `layer_decay`, `frozen_layers` and `schedule_steps`, or {"frozen": True} alone:
        `--config.optimizer.groups="(('embeddings', {'learning_rate': 1e-5}),)"`.
      schedule_steps: updates over which "linear", "sqrt_decay" and "cosine" decay; None for `num_steps`. The rate stays
        at its last value after them. Where it is set, `num_steps` of a run may be raised later.
    """

    name: Annotated[str, one_of("adamw", "lamb")]
    learning_rate: Annotated[float, at_least(0)]
    schedule: Annotated[str, one_of("linear", "sqrt_decay", "inverse_sqrt", "cosine", "constant")]
    warmup_steps: Count
    weight_decay: Annotated[float, at_least(0)]
    no_decay: str
    beta1: Annotated[float, at_least(0, below=1)]
    beta2: Annotated[float, at_least(0, below=1)]
    eps: Annotated[float, at_least(0, below=math.inf)]
    bias_correction: bool
    clip_norm: Annotated[float, at_least(0)]
    layer_decay: Annotated[float, at_least(0)]
    frozen_layers: Count
    groups: tuple[Any, ...]
    schedule_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.schedule_steps is None or self.schedule_steps >= 1, "schedule_steps", "at least 1, or None")
        _check_pattern(self.no_decay, "optimizer.no_decay")
        for i, group in enumerate(self.groups):
            where = f"optimizer.groups[{i}]"
            if not (isinstance(group, (tuple, list)) and len(group) == 2 and isinstance(group[1], Mapping)):
                raise UserError(
                    f"config key {where}",
                    got=repr(group),
                    expected="a pair of a path pattern and overrides",
                    fix="write groups=(('embeddings', {'learning_rate': 1e-5}),), with a comma after each group",
                )
            _check_pattern(group[0], where)


def _check_pattern(pattern: Any, where: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise UserError(
            f"config key {where}",
            got=f"{pattern!r} ({error})",
            expected="a regular expression",
            fix="correct it; a plain part of a parameter's path is one",
        ) from error


def make_optimizer(config: OptimizerConfig, params: Params, num_steps: int) -> optax.GradientTransformation:
    """The optimizer of a run.

    Args:
      config: its settings.
      params: the parameters, or their shapes: group patterns are looked up in their paths.
      num_steps: updates of the run, over which the schedule decays unless the config says otherwise.
    Raises:
      UserError: a group that matches nothing or overrides what cannot be overridden.
    """
    labels, optimizers = _labels(config, params), {"default": _update_rule(config, num_steps)}
    for i, (_, overrides) in enumerate(config.groups):
        optimizers[f"group {i}"] = _group_rule(config, dict(overrides), i, num_steps)
    factors = _depth_factors(config, params)
    trained = _trained(config, labels, factors)
    clip = clip_by_global_norm(config.clip_norm, trained) if config.clip_norm else optax.identity()
    chain = [clip, optax.partition(optimizers, labels)]
    if config.layer_decay != 1 or config.frozen_layers:
        chain.append(optax.stateless(lambda updates, _: jax.tree.map(operator.mul, updates, factors)))
    return optax.chain(*chain)


def _depth_factors(config: OptimizerConfig, params: Params) -> Params:
    """What `layer_decay` and `frozen_layers` multiply updates by: for each parameter an array that broadcasts to it."""
    names = path_names(params)
    depths = {
        leaf.shape[0]
        for name, leaf in zip(jax.tree.leaves(names), jax.tree.leaves(params), strict=True)
        if _is_encoder_layer(name)
    }
    num_layers = max(depths, default=0)
    if config.frozen_layers > num_layers:
        raise UserError(
            "config key optimizer.frozen_layers",
            got=config.frozen_layers,
            expected=f"at most {num_layers}, which the model has",
            fix="lower it",
        )
    factors = config.layer_decay ** np.arange(num_layers + 1, -1, -1.0)  # embeddings, each layer, the rest
    factors[: config.frozen_layers + 1 if config.frozen_layers else 0] = 0

    def factor(name: str, param: Any) -> Any:
        if _is_encoder_layer(name):
            return factors[1:-1].astype(np.float32).reshape(-1, *[1] * (param.ndim - 1))
        return np.float32(factors[0] if _ENCODER_INPUT.search(name) else factors[-1])

    return jax.tree.map(factor, names, params)


def _trained(config: OptimizerConfig, labels: Params, factors: Params) -> Params:
    """Where parameters are updated, and not frozen: for each a Boolean array that broadcasts to it."""
    frozen = {f"group {i}" for i, (_, overrides) in enumerate(config.groups) if overrides.get("frozen")}
    return jax.tree.map(lambda label, factor: (factor != 0) & (label not in frozen), labels, factors)


def _is_encoder_layer(name: str) -> bool:
    """Whether a parameter holds those of all layers of the encoder, along its first axis."""
    return "encoder/layers/" in name


def make_schedule(config: OptimizerConfig, num_steps: int) -> Schedule:
    """The learning rate by number of updates done.

    BERT's "linear" matches `create_optimizer` of google-research/bert: the decay spans all steps, not those
    after the warm-up, so that the rate drops a little as the warm-up ends; the first update has rate 0.
    "sqrt_decay" is `PolyWarmUpScheduler` of NVIDIA's BERT (degree 0.5), which likewise spans all steps.
    "inverse_sqrt" is the schedule of Vaswani et al. 2017, section 5.3, with its peak as `learning_rate`:
    their factor d_model**-0.5 * warmup_steps**-0.5.
    """
    warmup, peak, num_steps = config.warmup_steps, config.learning_rate, config.schedule_steps or num_steps

    def schedule(count: Any) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        if config.schedule == "linear":
            after = 1 - step / num_steps
        elif config.schedule == "sqrt_decay":
            after = jnp.sqrt(jnp.maximum(1 - step / num_steps, 0))
        elif config.schedule == "cosine":
            after = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip((step - warmup) / max(num_steps - warmup, 1), 0, 1)))
        elif config.schedule == "inverse_sqrt":
            # Counts updates from 1, as the paper does.
            step = step + 1
            after = jnp.sqrt(max(warmup, 1) / step)
        else:
            after = jnp.ones(())
        return peak * jnp.where(step < warmup, step / max(warmup, 1), jnp.maximum(after, 0))

    return schedule


def schedule_length(optimizer: Mapping[str, Any], num_steps: int) -> int | None:
    """Returns the number of updates over which any learning rate of a run decays, or None if none decays.

    Args:
      optimizer: the config subtree of `OptimizerConfig`; keys may be missing.
      num_steps: updates of the run.
    """
    overrides = [dict(each) for _, each in optimizer.get("groups", ())]
    schedules = [each.get("schedule") for each in (optimizer, *overrides)]
    decays = any(schedule in _DECAYING for schedule in schedules)
    return (optimizer.get("schedule_steps") or num_steps) if decays else None


def path_names(params: Params) -> Params:
    """The tree of `params` with each leaf replaced by its path, "encoder/layers/output/kernel"."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), params
    )


def _labels(config: OptimizerConfig, params: Params) -> Params:
    """Which group each parameter belongs to."""
    names = path_names(params)
    patterns = [pattern for pattern, _ in config.groups]

    def label(name: str) -> str:
        matches = (f"group {i}" for i, pattern in enumerate(patterns) if re.search(pattern, name))
        return next(matches, "default")

    labels = jax.tree.map(label, names)
    used = set(jax.tree.leaves(labels))
    for i, pattern in enumerate(patterns):
        if f"group {i}" not in used:
            raise UserError(
                f"config key optimizer.groups[{i}]",
                got=f"pattern {pattern!r}, which no parameter is left to match",
                expected="a pattern found in at least one path that no earlier group takes, such as "
                + ", ".join(jax.tree.leaves(names)[:3]),
                fix="correct the pattern, or move the group forward",
            )
    return labels


def _group_rule(
    config: OptimizerConfig, overrides: dict[str, Any], index: int, num_steps: int
) -> optax.GradientTransformation:
    if overrides == {"frozen": True}:
        return optax.set_to_zero()
    allowed = {field.name: type(getattr(config, field.name)) for field in dataclasses.fields(config)}
    for key in ("groups", "clip_norm", "layer_decay", "frozen_layers", "schedule_steps"):
        del allowed[key]
    for key, value in overrides.items():
        if key not in allowed or not isinstance(value, (float, int) if allowed[key] is float else allowed[key]):
            raise UserError(
                f"config key optimizer.groups[{index}]",
                got=f"{key}={value!r}",
                expected="frozen=True alone, or overrides of "
                + ", ".join(f"{k} ({t.__name__})" for k, t in allowed.items()),
                fix="correct the name or the value",
            )
    return _update_rule(dataclasses.replace(config, **overrides), num_steps)


def _update_rule(config: OptimizerConfig, num_steps: int) -> optax.GradientTransformation:
    def decays(params: Params) -> Params:
        return jax.tree.map(lambda name: not re.search(config.no_decay, name), path_names(params))

    return optax.chain(
        scale_by_adam(config.beta1, config.beta2, config.eps, config.bias_correction),
        optax.add_decayed_weights(config.weight_decay, mask=decays),
        # As in Google's code, what does not decay is not scaled either: a bias that starts at 0 would stay there.
        optax.masked(scale_by_layer_trust_ratio(), decays) if config.name == "lamb" else optax.identity(),
        optax.scale_by_learning_rate(make_schedule(config, num_steps)),
    )


def clip_by_global_norm(largest: float, counted: Params) -> optax.GradientTransformation:
    """Scales gradients down to a largest norm of all that counts, which Boolean arrays that broadcast to them say.

    As `optax.clip_by_global_norm`, but by one factor: a division and a selection for each element would keep the
    scaled gradients from being fused into the update, a write and a read of all of them.
    """

    def update(updates: Params, state: optax.EmptyState, params: Params | None = None) -> tuple[Params, Any]:
        del params
        counting = jax.tree.map(lambda g, counts: g if np.all(counts) else g * counts, updates, counted)
        factor = largest / jnp.maximum(optax.global_norm(counting), largest)
        return jax.tree.map(lambda g: g * factor, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class AdamState(NamedTuple):
    """Adam's moments, and how often they were updated."""

    updates: jax.Array  # int32
    mu: Params
    nu: Params


def scale_by_adam(beta1: float, beta2: float, eps: float, bias_correction: bool) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015), or without its bias correction: `AdamWeightDecayOptimizer` of google-research/bert.

    As `optax.scale_by_adam`, but the update is computed from the new moments as they are stored. Left to itself the
    compiler fuses their computation into the update again, and since that needs the old ones, copies those first.
    """

    def init(params: Params) -> AdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(updates: Params, state: AdamState, params: Params | None = None) -> tuple[Params, AdamState]:
        del params
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state.nu, updates)
        mu, nu = jax.lax.optimization_barrier((mu, nu))
        done = state.updates + 1
        new_state = AdamState(done, mu, nu)
        first, second = jnp.ones(()), jnp.ones(())
        if bias_correction:
            first, second = 1 / (1 - beta1**done), 1 / (1 - beta2**done)
        return jax.tree.map(lambda m, v: m * first / (jnp.sqrt(v * second) + eps), mu, nu), new_state

    return optax.GradientTransformation(init, update)


def scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """LAMB's ratio of the norms of parameter and update (You et al. 2020, algorithm 2), layer by layer.

    Our layers are stacked on axis 0 of one array, and each of them has a norm of its own.
    """

    def scale(name: str, update: jax.Array, param: jax.Array) -> jax.Array:
        axes = tuple(range(1, param.ndim)) if "layers/" in name else None
        update_norm = jnp.sqrt(jnp.sum(update**2, axes, keepdims=True))
        param_norm = jnp.sqrt(jnp.sum(param**2, axes, keepdims=True))
        defined = (update_norm > 0) & (param_norm > 0)
        return update * jnp.where(defined, param_norm / jnp.where(defined, update_norm, 1), 1)

    def update(updates: Params, state: optax.EmptyState, params: Params | None = None) -> tuple[Params, Any]:
        return jax.tree.map(scale, path_names(updates), updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
