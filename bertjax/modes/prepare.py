"""`--mode=prepare`, and what other modes share with it."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bertjax import distributed
from bertjax.contract import Data, Evaluation, TaughtTask, TrainingTask
from bertjax.interop.published import Published
from bertjax.modes.stages import Complete, Resolved
from bertjax.runs import run_folder
from bertjax.training import loop, step
from bertjax.training.config import TrainingConfig


def prepare(resolved: Resolved, workdir: Path) -> tuple[Data, Complete]:
    """Prepares the data of a new run and writes `rows.json`, unless a run has begun in the folder.

    Raises:
      UserError: for every error that training finds before its first update; see `checked_data` and `prepare_data`.
    """
    data, complete = checked_data(resolved, workdir)
    prepare_data(data, workdir, is_of_run=False)
    complete = complete or resolved.complete(data)
    complete.settings.check_final()
    check_rows(resolved.evaluations(complete.task))
    rows = np.arange(resolved.config["batch_size"])
    for first in (*(data.batches(split, 0, rows) for split in ("train", "valid")), data.test_examples()):
        next(iter(first), None)
    # The run in the folder may have other rows. There is no folder if `data.prepared_dir` has them all.
    if not run_folder.has_begun(workdir):
        distributed.on_first_process(data.review)
    if workdir.exists() and not run_folder.has_begun(workdir):
        distributed.on_first_process(lambda: run_folder.save_rows(workdir, data.report()))
    return data, complete


def checked_data(resolved: Resolved, workdir: Path) -> tuple[Data, Complete | None]:
    """Returns the data of a run and, if they are prepared, its task.

    Raises:
      UserError: for every error that can be found before anything is written. If the data are not prepared, an example
        of the values that depend on rows takes part in the checks.
    """
    data = resolved.data(workdir / "data")
    if data.is_prepared:
        _ = data.fingerprint  # raises UserError without rows to train on
        complete = resolved.complete(data)
        complete.settings.check_final()
        task = complete
    else:
        complete = None
        task = resolved.example()
    loop.check(task.task, task.settings, task.config, resolved.evaluations(task.task))
    return data, complete


def check_rows(evaluations: Iterable[Evaluation]) -> None:
    """Reads and checks the rows of evaluations. Raises UserError for bad ones."""
    for evaluation in evaluations:
        next(evaluation.examples(), None)


def prepare_data(data: Data, workdir: Path, *, is_of_run: bool) -> None:
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


def prepare_teacher(task: TrainingTask, data: Data, settings: TrainingConfig, workdir: Path) -> Published | None:
    """Stores the outputs of a teacher, if the task has one that stores them. Returns the weights to start from, if any.

    Raises:
      UserError: see `step.store_targets`.
    """
    if not isinstance(task, TaughtTask):
        return None
    if task.stores:
        step.store_targets(task, data, settings, workdir / "data")
    return task.start
