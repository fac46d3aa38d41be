"""The text that a task is trained or scored on, prepared."""

from pathlib import Path

from bertjax import distributed
from bertjax.contract import Task
from bertjax.modes.resolved import Resolved
from bertjax.runs import run_folder


def prepare(resolved: Resolved, workdir: Path, *, is_of_run: bool) -> Path:
    """Prepares the text and returns its folder.

    Args:
      resolved: the experiment.
      workdir: the run's folder.
      is_of_run: whether it has to be the text that the run began with.
    Raises:
      UserError: bad text, or text that has changed since the run began.
    """
    found = resolved.module.preparation(resolved.experiment, workdir)
    distributed.agree(found.fingerprint, "the text to prepare")
    if is_of_run:
        distributed.on_first_process(lambda: run_folder.check_text(workdir, found.fingerprint))
    distributed.on_first_process(found.run)
    return Path(found.folder)


def prepared_task(resolved: Resolved, workdir: Path, *, is_of_run: bool) -> Task:
    """Prepares the text and returns the task with it; see `prepare`."""
    folder = prepare(resolved, workdir, is_of_run=is_of_run)
    task: Task = resolved.module.make(resolved.experiment, folder, folder)
    return task
