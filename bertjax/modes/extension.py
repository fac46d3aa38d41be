"""A run that goes on for longer than it was begun for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config import build
from bertjax.errors import UserError
from bertjax.runs import run_folder
from bertjax.training.optimizers import OptimizerConfig, schedule_length

_LENGTHS = frozenset({"num_steps", "optimizer.schedule_steps"})


def free_keys(workdir: Path, config: Mapping[str, Any]) -> frozenset[str]:
    """Returns the dotted keys that may differ from those of the run in a folder because this one goes on for longer.

    Args:
      workdir: the folder.
      config: the config; `num_steps` may be open.
    Raises:
      UserError: more updates than the run was begun for, by another schedule of the learning rate than it has had.
    """
    if not run_folder.has_begun(workdir):
        return frozenset()
    before = run_folder.load_config(workdir)
    steps, wanted = before["num_steps"], config["num_steps"]
    if wanted is None or wanted <= steps:
        return frozenset()
    old, new = (
        schedule_length(build(OptimizerConfig, each["optimizer"], "optimizer"), each["num_steps"])
        for each in (before, config)
    )
    if old != new:
        raise UserError(
            "config key num_steps",
            got=f"{wanted}, in a run of {steps} whose learning rate has been scheduled over {old} updates",
            expected="the schedule that the run was begun with",
            fix=f"set --config.optimizer.schedule_steps={old}, after which the rate stays at its end; or begin another "
            f"run with --config.init_from={workdir}",
        )
    return _LENGTHS
