"""Extends a run to more updates than it was started with."""

from collections.abc import Mapping
from pathlib import Path

from flax import traverse_util

from bertjax.contract import ConfigTree
from bertjax.errors import UserError
from bertjax.runs import run_folder
from bertjax.runs.checkpoints import latest_step
from bertjax.training.optimizers import decay_of

_LENGTHS = frozenset({"num_steps", "optimizer.schedule_steps", "budget.tokens", "budget.flops"})
_BEFORE_DECAY = _LENGTHS | {"optimizer.decay_fraction"}
# Keys that make an update depend on its position between the first and the last one, with the flag that turns each off.
BY_PROGRESS = {
    "masking.final_rate": "--config.masking.final_rate=0.0",
    "masking.causal_stages": "--config.masking.causal_stages='()'",
    "data.stages": "--config.data.stages='()'",
    "data.phases": "--config.data.phases='()'",
}


def free_keys(workdir: Path, config: ConfigTree) -> frozenset[str]:
    """Returns the dotted keys that may differ from those of the run in the folder because `num_steps` grows.

    Args:
      workdir: the run's folder.
      config: the new config. A `num_steps` of None, which rows determine later, may be a larger one.
    Raises:
      UserError: if `num_steps` grows and this would change the learning rate or the batches of updates that were
        already made.
    """
    if not run_folder.has_begun(workdir):
        return frozenset()
    before = run_folder.load_config(workdir)
    if _has_hours(before) and _has_hours(config):
        return frozenset({"num_steps", "budget.hours"})
    if config["num_steps"] is None:
        return _BEFORE_DECAY
    try:
        is_longer = config["num_steps"] > before["num_steps"]
        old, new = (decay_of(tree["optimizer"], tree["num_steps"]) for tree in (before, config))
    except (KeyError, TypeError, ValueError, AttributeError):  # a damaged config.json: `check_config` names the keys
        return frozenset()
    if not is_longer:
        return frozenset()
    is_before_decay = bool(old and new and 0 < latest_step(workdir) <= min(old.start, new.start))
    if old and new and old.length != new.length and not is_before_decay:
        raise UserError(
            "config key num_steps",
            got=f"{config['num_steps']}, in a run of {before['num_steps']} with a schedule over {old.length} updates",
            expected="the schedule that the run was started with",
            fix=f"start another run with --config.init_from={workdir}; or set --config.optimizer.schedule_steps="
            f"{old.length}, after which the rate keeps its last value (0 with schedule=linear)",
        )
    _check_progress(workdir, config, before["num_steps"])
    _check_warmup(before["optimizer"].get("warmup_steps"), config["optimizer"]["warmup_steps"])
    return _BEFORE_DECAY if is_before_decay else _LENGTHS  # another kind of schedule is another config


def _check_progress(workdir: Path, config: ConfigTree, num_steps: int) -> None:
    values = traverse_util.flatten_dict(config, sep=".")
    keys = [key for key in BY_PROGRESS if values.get(key)]
    if keys:
        raise UserError(
            "config key num_steps",
            got=f"{config['num_steps']}, in a run of {num_steps} updates with {keys[0]}={values[keys[0]]}",
            expected=f"{num_steps}, because the batches of its updates depend on it",
            fix=f"start another run with --config.init_from={workdir}",
        )


def _has_hours(config: ConfigTree) -> bool:
    """Whether the length of a run is a time."""
    budget = config.get("budget")
    return isinstance(budget, Mapping) and bool(budget.get("hours"))


def _check_warmup(old: int | None, new: int | None) -> None:
    if None not in (old, new) and old != new:
        raise UserError(
            "config key optimizer.warmup_steps",
            got=f"{new}, in a run that had {old} and is extended",
            expected="the warm-up that the run was started with",
            fix=f"set --config.optimizer.warmup_steps={old}",
        )
