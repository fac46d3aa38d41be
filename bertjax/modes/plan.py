"""`--mode=plan`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax.contract import Task
from bertjax.modes.resolved import Resolved
from bertjax.planning import planner
from bertjax.training.config import TrainingConfig


def plan(
    resolved: Resolved, topology: str, is_search: bool, draw: Callable[[Mapping[str, Any]], None] | None
) -> dict[str, Any]:
    """Returns what training on a slice would need and take; see `planner.run`.

    Args:
      resolved: the experiment.
      topology, is_search: see `Request`.
      draw: draws the plan; None for no picture.
    """

    def build(config: Mapping[str, Any]) -> tuple[Task, TrainingConfig]:
        planned = Resolved(resolved.module, dict(config))
        # How long fine-tuning takes depends on its rows.
        is_open = config["num_steps"] is None and config["data"]["source"]
        complete = planned.complete(planned.data(Path()).facts) if is_open else planned.rehearsed()
        return complete.task, complete.settings

    record = planner.run(topology, is_search, resolved.config, build)
    if draw:
        draw(record)
    return record
