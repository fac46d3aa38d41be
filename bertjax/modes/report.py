"""`--mode=report`, and the page at the end of a training."""

import logging
from collections.abc import Callable
from pathlib import Path

from bertjax import distributed
from bertjax.contract import Data, TrainingTask
from bertjax.errors import UserError
from bertjax.modes import samples, streams
from bertjax.modes.prepare import prepare_data
from bertjax.modes.stages import Resolved
from bertjax.modes.tools import tool
from bertjax.runs.checkpoints import has_checkpoint
from bertjax.training.config import InferenceConfig

_log = logging.getLogger(__name__)


def report(workdir: Path, output: str, resolve: Callable[[], Resolved]) -> None:
    """Writes the page of a run or a sweep, and its path to `output`.

    Args:
      workdir: the folder of the run or the sweep.
      output: a file, or "-".
      resolve: returns the run's experiment, to make samples if the folder has none.
    """

    def trained() -> tuple[TrainingTask, Data, InferenceConfig]:
        resolved = resolve()
        data = resolved.data(workdir / "data")
        prepare_data(data, workdir, is_of_run=True)
        complete = resolved.to_score(data)
        return complete.task, data, complete.settings

    if has_checkpoint(workdir):
        write_samples(workdir, trained)

    def write() -> None:
        path = tool("run page")(workdir)
        with streams.open_output(output, is_writer=True) as file:
            file.write(f"{path}\n")

    distributed.on_first_process(write)


def write_samples(workdir: Path, trained: Callable[[], tuple[TrainingTask, Data, InferenceConfig]]) -> None:
    """Writes the samples that a run's page shows, unless the folder has those of its final checkpoint.

    A page does not need samples, so errors such as missing text or outputs that are not finite are logged.

    Args:
      workdir: the run's folder.
      trained: returns the task, its data and its settings.
    """
    if samples.are_current(workdir):
        return
    try:
        samples.write(*trained(), workdir)
    except (UserError, OSError) as error:
        _log.warning("report without samples: %s", error)


def write_page(workdir: Path) -> None:
    """Writes the page of a finished run or sweep; an error is logged."""

    def write() -> None:
        try:
            page = tool("run page")(workdir)
            result = tool("run result")(workdir)
            _log.info("%sreport: %s", f"{result}; " if result else "", page)
        except (UserError, OSError) as error:
            _log.warning("no report: %s", error)

    distributed.on_first_process(write)
