"""`--mode=plan`."""

import logging
import tempfile
from pathlib import Path

from bertjax.contract import ConfigTree, Record, TrainingTask
from bertjax.interruption import interruptible
from bertjax.modes.stages import Resolved
from bertjax.modes.tools import tool
from bertjax.progress import signs_of_life
from bertjax.training.config import TrainingConfig
from bertjax.training.flops import stage_of

_log = logging.getLogger(__name__)


def plan(resolved: Resolved, topology: str, is_search: bool, plot: str) -> Record:
    """Returns the memory and time that training on TPUs or GPUs would take; see `planning.planner.run`.

    Args:
      resolved: the experiment.
      topology, is_search, plot: see `Request`.
    """
    draw = tool("plan figure")(Path(plot)) if plot else None  # raises UserError before the long work

    def build(config: ConfigTree) -> tuple[TrainingTask, TrainingConfig]:
        planned = resolved._replace(config=config)
        complete = planned.example()
        is_by_rows = "num_epochs" in config or stage_of(complete.task, 0, 1) is None
        if config["num_steps"] is None and config["data"]["source"] and is_by_rows:
            # The number of updates depends on the rows.
            with tempfile.TemporaryDirectory() as folder:
                data = planned.data(Path(folder))
                data.prepare()
                complete = planned.complete(data)
        return complete.task, complete.settings

    _log.info("planning for %s", topology)
    with interruptible(), signs_of_life():
        record: Record = tool("planner")(topology, is_search, resolved.config, build)
        if draw:
            draw(record)
    return record
