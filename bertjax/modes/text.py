"""The data that a task is trained or scored on, prepared."""

from pathlib import Path

from bertjax import distributed
from bertjax.contract import Data
from bertjax.modes.resolved import Resolved
from bertjax.runs import run_folder


def prepared(resolved: Resolved, workdir: Path, *, is_of_run: bool) -> Data:
    """Prepares the data of a run, and returns them.

    Args:
      resolved: the experiment.
      workdir: the run's folder.
      is_of_run: whether they have to be the data that the run began with.
    Raises:
      UserError: bad text, or text that has changed since the run began.
    """
    data = resolved.data(workdir / "data")
    distributed.agree(data.fingerprint, "the text to prepare")
    if is_of_run:
        distributed.on_first_process(lambda: run_folder.check_text(workdir, data.fingerprint))
    distributed.on_first_process(data.prepare)
    return data
