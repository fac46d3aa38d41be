"""`--mode=plan`."""

import tempfile
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
    """Returns the memory and time that training on TPUs or GPUs would take; see `planner.run`.

    Args:
      resolved: the experiment.
      topology, is_search: see `Request`.
      draw: draws the plan; None for no picture.
    """

    def build(config: Mapping[str, Any]) -> tuple[Task, TrainingConfig]:
        planned = Resolved(resolved.module, dict(config))
        complete = planned.rehearsed()
        is_by_rows = "num_epochs" in config or complete.task.stage(0, 1) is None
        if config["num_steps"] is None and config["data"]["source"] and is_by_rows:
            # The number of updates depends on the rows.
            with tempfile.TemporaryDirectory() as folder:
                data = planned.data(Path(folder))
                data.prepare()
                complete = planned.complete(data.facts, data)
        return complete.task, complete.settings

    record = planner.run(topology, is_search, resolved.config, build)
    if draw:
        draw(record)
    return record
