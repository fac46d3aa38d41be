"""Extends a run to more updates than it was started with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config import build
from bertjax.errors import UserError
from bertjax.runs import run_folder
from bertjax.training.optimizers import OptimizerConfig, schedule_length

_LENGTHS = frozenset({"num_steps", "optimizer.schedule_steps"})


def free_keys(workdir: Path, config: Mapping[str, Any]) -> frozenset[str]:
    """Returns the dotted keys that may differ from those of the run in the folder; none unless `num_steps` grows.

    Args:
      workdir: the run's folder.
      config: the new config; `num_steps` may be None.
    Raises:
      UserError: if `num_steps` grows and this would change the learning rate of updates that were already made.
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
            got=f"{wanted}, in a run of {steps} whose learning rate is scheduled over {old} updates",
            expected="the schedule that the run was begun with",
            fix=f"set --config.optimizer.schedule_steps={old}, after which the rate keeps its final value; or start "
            f"another run with --config.init_from={workdir}",
        )
    return _LENGTHS
