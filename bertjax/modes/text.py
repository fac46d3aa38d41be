"""Checks and prepares the data that a task is trained or scored on."""

from pathlib import Path

from bertjax import distributed
from bertjax.contract import Data
from bertjax.modes.resolved import Complete, Resolved
from bertjax.runs import run_folder


def checked(resolved: Resolved, workdir: Path) -> tuple[Data, Complete]:
    """Returns the data and the task of a run. The task has stand-in facts unless `Data.is_prepared`.

    Raises:
      UserError: for every error that can be found before anything is written.
    """
    complete = resolved.rehearsed()
    data = resolved.data(workdir / "data")
    if data.is_prepared:
        complete = resolved.complete(data.facts, data)
        complete.settings.check_final()
    return data, complete


def prepare(data: Data, workdir: Path, *, is_of_run: bool) -> None:
    """Prepares the data of a run.

    Args:
      data: the data.
      workdir: the run's folder.
      is_of_run: whether the data must be the same as when the run began.
    Raises:
      UserError: for bad text, or text that has changed since the run began.
    """
    distributed.agree(data.fingerprint, "the text to prepare")
    if is_of_run:
        distributed.on_first_process(lambda: run_folder.check_text(workdir, data.fingerprint))
    distributed.on_first_process(data.prepare)
