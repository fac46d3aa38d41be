"""Runs a list of runs in order. After a failure, only the runs that start from the failed run are skipped."""

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax import distributed, modes
from bertjax.errors import as_user_error
from bertjax.files import read_records
from bertjax.runs import checkpoints
from bertjax.runs.early_stopping import find_stop
from bertjax.tools.sweeps.expansion import Run

_log = logging.getLogger(__name__)


class Ended(NamedTuple):
    """A run that has ended."""

    run: Run
    error: str  # "" for success


class StoppedError(Exception):
    """SIGTERM or Ctrl-C stopped the sweep; repeating the command resumes it."""


def log_failures(ended: Sequence[Ended]) -> bool:
    """Logs the runs that failed. Returns whether there are any."""
    failed = [one for one in ended if one.error]
    for one in failed:
        _log.error("run %s failed: %s", one.run.name, one.error)
    if failed:
        _log.error("%d of %d runs failed; repeat the command to retry them", len(failed), len(ended))
    return bool(failed)


def log_problems(problems: Sequence[str]) -> None:
    """Logs what is missing in the table of runs that did not fail."""
    for problem in problems:
        _log.error("not in the table: %s", problem)


def is_trained(folder: Path) -> bool:
    """Returns whether a run has its last checkpoint and its last validation metrics."""
    try:
        config = json.loads((folder / "config.json").read_text())
        stop = find_stop(config, _records(folder))
        last = stop.step if stop else config["num_steps"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    scored = any(record.get("step") == last and _is_scored(record) for record in _records(folder))
    return scored and checkpoints.latest_step(folder) == last


def is_finished(run: Run) -> bool:
    """Returns whether a run is trained and has all metrics that the table shows."""
    if run.metrics is None:
        return False
    names = {name for record in _records(run.folder) for name in record}
    return names.issuperset(run.metrics) and is_trained(run.folder)


def _records(folder: Path) -> Iterator[dict[str, object]]:
    return read_records(folder / "metrics.jsonl")


def _is_scored(record: dict[str, object]) -> bool:
    return any(name.startswith("valid/") for name in record)


def in_this_process(
    runs: Sequence[Run], request: modes.Request, find: Callable[[str], modes.Experiment]
) -> Generator[Ended]:
    """Trains the runs one after another in this process; on a cluster, in all processes together.

    Args:
      runs: the runs, each after the one that it starts from.
      request: the request, in mode train.
      find: returns the experiment of a name.
    Raises:
      StoppedError: after SIGTERM or Ctrl-C.
    """
    finished = [run.name for run in runs if is_finished(run)]
    distributed.agree(hashlib.sha256(json.dumps(finished).encode()).hexdigest(), "the runs that are finished")
    failed: dict[Path, str] = {}
    for number, run in enumerate(runs, start=1):
        error = ""
        if run.needs in failed:
            error = dependency_failed(run)
        elif run.name not in finished:
            _log.info("run %d of %d: %s", number, len(runs), run.folder)
            error = _trained(run, request, find)
        if error:
            failed[run.folder] = error
        yield Ended(run, error)


def dependency_failed(run: Run) -> str:
    """Returns the error of a run that cannot start because the run that it starts from failed."""
    assert run.needs
    return f"not started, because {run.needs.name} failed"


def _trained(run: Run, request: modes.Request, find: Callable[[str], modes.Experiment]) -> str:
    """Trains a run. Returns its error, or ""."""
    try:
        # Each run records a command that starts it alone, if such a command exists.
        started = {"command": modes.command(request.program, run.command)} if run.arguments else request.started
        began = time.perf_counter()
        run_request = dataclasses.replace(request, workdir=str(run.folder), started=started, began=began)
        outcome = modes.run(run_request, dict(run.config), find)
    except Exception as error:  # the other runs continue
        user_error = as_user_error(error, str(run.folder))
        if user_error is None:
            _log.exception("run %s failed", run.name)
        return str(user_error or f"{type(error).__name__}: {error}")
    if outcome is modes.Outcome.STOPPED:
        raise StoppedError
    return ""
