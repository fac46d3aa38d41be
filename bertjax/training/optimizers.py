"""Optimizers: their config, learning rate schedules and parameter groups. `update_rules` has AdamW, LAMB and Muon."""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config import Constrained, Count, Size, above, always, at_least, one_of
from bertjax.contract import Params
from bertjax.errors import UserError
from bertjax.training import update_rules
from bertjax.training.sharding import path_names

Schedule = Callable[[int | float], float]

# The schedules whose decay depends on the number of updates.
_DECAYING = ("linear", "sqrt_decay", "cosine", "trapezoidal")
# The input embeddings of an encoder: those of BERT, or those of an encoder-decoder except the decoder's.
_ENCODER_INPUT = re.compile(r"(^|/)((relative_)?embeddings(/|$)|source_)")
# The matrices from hidden states to hidden states: all kernels of Transformer layers, which are stacked on the first
# axis, BERT's pooler, and the transforms of the masked language model and of other heads.
_HIDDEN_MATRIX = re.compile(r"(^|/)(layers/.*|pooler/|transform/)kernel$")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Constrained, prefix="optimizer"):
    """Settings of the optimizer.

    Attributes:
      name: "adamw", "lamb", or "muon" (Jordan et al. 2024) for hidden matrices with AdamW for all other parameters; see
        `scale_by_muon`.
      learning_rate: peak of the schedule.
      schedule: schedule after the warm-up: "linear" (as in BERT), "sqrt_decay" (its square root), "inverse_sqrt"
        (Vaswani et al. 2017), "cosine", "constant", or "trapezoidal": constant, then linear to 0 (Hägele et al. 2024).
      warmup_steps: updates of linear warm-up. Default in fine-tuning: `warmup_fraction` of all updates.
      weight_decay: decoupled weight decay, multiplied by the learning rate.
      no_decay: pattern of parameter paths without weight decay.
      beta1, beta2, eps: hyperparameters of Adam.
      bias_correction: whether Adam and LAMB correct the bias of their moments. BERT does not; Muon always does.
      clip_norm: maximum global norm of the gradient, excluding frozen parameters; 0 for no clipping.
      layer_decay: factor of the learning rate for each encoder layer above, and for the parameters on top of the
        encoder; embeddings are the lowest layer (Howard and Ruder 2018, section 3.2). 1 for no decay.
      frozen_layers: number of frozen encoder layers, from the first; embeddings are then frozen too. 0 for none.
      groups: ordered pairs (path pattern, overrides). A parameter belongs to the first group whose pattern is found in
        its path ("bert/encoder/layers/attention/query/kernel"). Overrides are {"frozen": True} alone, or keys of
        `optimizer` except `groups`, `clip_norm`, `layer_decay`, `frozen_layers` and `schedule_steps`. Example:
        `(("embeddings", {"learning_rate": 1e-5}),)`.
      schedule_steps: updates after which "linear", "sqrt_decay", "cosine" and "trapezoidal" have decayed, and the
        learning rate stays constant; None for `num_steps`. If it is set, `num_steps` of a run may be raised later.
      decay_fraction: length of the decay of "trapezoidal", as a fraction of `schedule_steps`, or of `num_steps` if that
        is not set.
      muon_beta: decay rate of Muon's momentum.
      muon_ns_steps: Newton-Schulz iterations of an update by Muon.
    """

    name: Annotated[str, one_of("adamw", "lamb", "muon")] = always("adamw")
    learning_rate: Annotated[float, at_least(0)] = always(1e-4)
    schedule: Annotated[str, one_of("linear", "sqrt_decay", "inverse_sqrt", "cosine", "constant", "trapezoidal")] = (
        always("linear")
    )
    warmup_steps: Count = always(10_000)
    weight_decay: Annotated[float, at_least(0)] = always(0.01)
    no_decay: str = always("bias|norm")
    beta1: Annotated[float, at_least(0, below=1)] = always(0.9)
    beta2: Annotated[float, at_least(0, below=1)] = always(0.999)
    eps: Annotated[float, at_least(0, below=math.inf)] = always(1e-6)
    bias_correction: bool = always(False)
    clip_norm: Annotated[float, at_least(0)] = always(1.0)
    layer_decay: Annotated[float, at_least(0)] = always(1.0)
    frozen_layers: Count = always(0)
    groups: tuple[Any, ...] = always(())
    schedule_steps: int | None = None
    decay_fraction: Annotated[float, above(0, at_most=1)] = 0.2
    muon_beta: Annotated[float, at_least(0, below=1)] = 0.95
    muon_ns_steps: Size = 5

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
            fix="correct it; for example, use a part of a parameter's path",
        ) from error


class Rates(NamedTuple):
    """The numbers of a parameter group in an update. Runs that differ in them share a compiled program."""

    learning_rate: np.float32
    weight_decay: np.float32


def make_rates(config: OptimizerConfig) -> Callable[[int, int | float], dict[str, Rates]]:
    """Returns a function of (index of the update, updates of the run) that computes the rates of each group."""
    rules = {label: rule for label, rule in _rules(config).items() if rule}

    def rates(index: int, num_steps: int | float) -> dict[str, Rates]:
        return {
            label: Rates(np.float32(make_schedule(rule, num_steps)(index)), np.float32(rule.weight_decay))
            for label, rule in rules.items()
        }

    return rates


class TimedState(NamedTuple):
    """The state of `timed`."""

    num_steps: jax.Array  # float32, not used
    inner: Any  # the state of the optimizer


def timed(optimizer: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer with the state that checkpoints of runs with `budget.hours` have."""

    def init(params: Params) -> TimedState:
        return TimedState(jnp.float32(math.inf), optimizer.init(params))

    def update(updates: Params, state: TimedState, params: Params | None = None, **others: Any) -> tuple[Params, Any]:
        updates, inner = optimizer.update(updates, state.inner, params, **others)
        return updates, TimedState(state.num_steps, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def make_optimizer(config: OptimizerConfig, params: Params) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer of a run. Its update takes the result of `make_rates` as the argument `rates`.

    Args:
      config: the settings.
      params: the parameters or their shapes. Group patterns are matched with their paths.
    Raises:
      UserError: if a group matches no parameter or has an invalid override, if `frozen_layers` exceeds the number of
        layers, or if the optimizer is "muon" and the model has no matrices for it.
    """
    if config.name == "muon":
        _check_has_matrices(jax.tree.leaves(path_names(params)), "optimizer.name")
    labels = _labels(config, params)
    optimizers = {
        label: _update_rule(rule, label) if rule else optax.set_to_zero() for label, rule in _rules(config).items()
    }
    for i, (_, overrides) in enumerate(config.groups):
        if overrides.get("name") == "muon":
            pairs = zip(*map(jax.tree.leaves, (path_names(params), labels)), strict=True)
            names = [name for name, label in pairs if label == f"group {i}"]
            _check_has_matrices(names, f"optimizer.groups[{i}]")
    factors = _depth_factors(config, params)
    trained = _not_frozen(config, labels, factors)
    clip = update_rules.clip_by_global_norm(config.clip_norm, trained) if config.clip_norm else optax.identity()
    chain = [clip, optax.partition(optimizers, labels)]
    if config.layer_decay != 1 or config.frozen_layers:
        chain.append(optax.stateless(lambda updates, _: jax.tree.map(operator.mul, updates, factors)))
    return optax.with_extra_args_support(optax.chain(*chain))


def _depth_factors(config: OptimizerConfig, params: Params) -> Params:
    """The factors of `layer_decay` and `frozen_layers`: for each parameter an array that broadcasts to it."""
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
            expected=f"at most {num_layers}, the number of the model's layers",
            fix="lower it",
        )
    factors = config.layer_decay ** np.arange(num_layers + 1, -1, -1.0)  # embeddings, each layer, all other parameters
    factors[: config.frozen_layers + 1 if config.frozen_layers else 0] = 0

    def factor(name: str, param: Any) -> Any:
        if _is_encoder_layer(name):
            return factors[1:-1].astype(np.float32).reshape(-1, *[1] * (param.ndim - 1))
        return np.float32(factors[0] if _ENCODER_INPUT.search(name) else factors[-1])

    return jax.tree.map(factor, names, params)


def _not_frozen(config: OptimizerConfig, labels: Params, factors: Params) -> Params:
    """Which parameters are not frozen: for each parameter a Boolean array that broadcasts to it."""
    frozen = {f"group {i}" for i, (_, overrides) in enumerate(config.groups) if overrides.get("frozen")}
    return jax.tree.map(lambda label, factor: (factor != 0) & (label not in frozen), labels, factors)


def _is_encoder_layer(name: str) -> bool:
    """Whether an array stacks the parameters of all encoder layers along its first axis."""
    return "encoder/layers/" in name


def make_schedule(config: OptimizerConfig, num_steps: int | float) -> Schedule:
    """Returns the learning rate as a function of the number of previous updates, in a run of `num_steps` updates.

    "linear" matches `create_optimizer` of google-research/bert: the decay spans all steps, including the warm-up, so
    the rate drops slightly when the warm-up ends. The first update has rate 0. "sqrt_decay" is `PolyWarmUpScheduler` of
    NVIDIA's BERT (degree 0.5), which also spans all steps. "inverse_sqrt" is the schedule of Vaswani et al. 2017,
    section 5.3, with `learning_rate` as its peak, which is d_model**-0.5 * warmup_steps**-0.5 in the paper.
    "trapezoidal" is constant until `decay_fraction` of all steps are left, or until the warm-up ends if that is later,
    and then falls linearly to 0.
    """
    warmup = config.warmup_steps
    peak = config.learning_rate
    num_steps = config.schedule_steps or num_steps

    def schedule(step: int | float) -> float:
        fraction_left = max(1 - step / num_steps, 0)
        if config.schedule == "inverse_sqrt":
            step += 1  # the paper counts updates from 1
        if step < warmup:
            return peak * step / warmup
        if config.schedule == "linear":
            return peak * fraction_left
        if config.schedule == "sqrt_decay":
            return peak * math.sqrt(fraction_left)
        if config.schedule == "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * min((step - warmup) / max(num_steps - warmup, 1), 1)))
        if config.schedule == "trapezoidal":
            after_warmup = max(1 - warmup / num_steps, 1e-38)
            return peak * min(fraction_left / min(config.decay_fraction, after_warmup), 1)
        if config.schedule == "inverse_sqrt":
            return peak * math.sqrt(max(warmup, 1) / step)
        return peak

    return schedule


class Decay(NamedTuple):
    """How learning rates of a run depend on its length.

    Attributes:
      length: the number of updates after which they no longer change.
      start: the number of first updates whose rates do not depend on the length.
    """

    length: int
    start: float


def decay_of(optimizer: Mapping[str, Any], num_steps: int) -> Decay | None:
    """Returns how the learning rates of a run decay, or None if none depends on the length.

    Args:
      optimizer: the config subtree of `OptimizerConfig`; keys may be missing.
      num_steps: updates of the run.
    """
    length = optimizer.get("schedule_steps") or num_steps
    rules = [{**optimizer, **dict(overrides)} for _, overrides in (("", {}), *optimizer.get("groups", ()))]
    starts = [
        (1 - rule.get("decay_fraction", 1)) * length if rule["schedule"] == "trapezoidal" else 0
        for rule in rules
        if rule.get("schedule") in _DECAYING
    ]
    return Decay(length, min(starts)) if starts else None


def _labels(config: OptimizerConfig, params: Params) -> Params:
    """The name of each parameter's group."""
    names = path_names(params)
    patterns = [pattern for pattern, _ in config.groups]

    def label(name: str) -> str:
        matches = (f"group {i}" for i, pattern in enumerate(patterns) if re.search(pattern, name))
        return next(matches, "default")

    labels = jax.tree.map(label, names)
    nonempty_groups = set(jax.tree.leaves(labels))
    for i, pattern in enumerate(patterns):
        if f"group {i}" not in nonempty_groups:
            raise UserError(
                f"config key optimizer.groups[{i}]",
                got=f"pattern {pattern!r}, which matches no parameter outside the earlier groups",
                expected="a pattern found in the path of such a parameter; paths are for example "
                + ", ".join(jax.tree.leaves(names)[:3]),
                fix="correct the pattern, or move the group to the front",
            )
    return labels


def _rules(config: OptimizerConfig) -> dict[str, OptimizerConfig | None]:
    """The settings of each group, by its label; None if it is frozen."""
    groups = {f"group {i}": _group_rule(config, dict(group), i) for i, (_, group) in enumerate(config.groups)}
    return {"default": config, **groups}


def _group_rule(config: OptimizerConfig, overrides: dict[str, Any], index: int) -> OptimizerConfig | None:
    if overrides == {"frozen": True}:
        return None
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
    return dataclasses.replace(config, **overrides)


def _update_rule(config: OptimizerConfig, label: str) -> optax.GradientTransformation:
    def decays(params: Params) -> Params:
        return jax.tree.map(lambda name: not re.search(config.no_decay, name), path_names(params))

    rule = update_rules.scale_by_adam(config.beta1, config.beta2, config.eps, config.bias_correction)
    if config.name == "muon":
        muon = update_rules.scale_by_muon(config.muon_beta, config.muon_ns_steps)
        rule = optax.partition({"muon": muon, "adamw": rule}, _muon_labels)
    return optax.chain(
        rule,
        optax.masked(_add_decayed_weights(label) if config.weight_decay else optax.identity(), decays),
        # As in Google's code, parameters without decay are not scaled either: a bias initialized at 0 would stay at 0.
        optax.masked(update_rules.scale_by_layer_trust_ratio(), decays) if config.name == "lamb" else optax.identity(),
        _scale_by_learning_rate(label),
    )


def _add_decayed_weights(label: str) -> optax.GradientTransformationExtraArgs:
    def update(
        updates: Params, state: optax.EmptyState, params: Params | None = None, *, rates: Any, **others: Any
    ) -> tuple[Params, optax.EmptyState]:
        del others
        return jax.tree.map(lambda u, p: u + rates[label].weight_decay * p, updates, params), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _scale_by_learning_rate(label: str) -> optax.GradientTransformationExtraArgs:
    """Multiplies by the negative learning rate. Its state is that of `optax.scale_by_learning_rate`."""

    def update(
        updates: Params, state: optax.ScaleByScheduleState, params: Params | None = None, *, rates: Any, **others: Any
    ) -> tuple[Params, optax.ScaleByScheduleState]:
        del params, others
        scaled = jax.tree.map(lambda u: -rates[label].learning_rate * u, updates)
        return scaled, optax.ScaleByScheduleState(state.count + 1)

    count = jnp.zeros((), jnp.int32)
    return optax.GradientTransformationExtraArgs(lambda params: optax.ScaleByScheduleState(count), update)


def _muon_labels(params: Params) -> Params:
    """The rule of each parameter with the optimizer "muon"."""
    return jax.tree.map(lambda name: "muon" if _HIDDEN_MATRIX.search(name) else "adamw", path_names(params))


def _check_has_matrices(names: Sequence[str], where: str) -> None:
    if not any(map(_HIDDEN_MATRIX.search, names)):
        raise UserError(
            f"config key {where}",
            got="'muon', for parameters without matrices that it would update",
            expected="parameters of Transformer layers",
            fix="use adamw",
        )
