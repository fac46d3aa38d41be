"""Runs of a list, each when the one that it begins with is there; one that fails stops only those that need it."""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax import distributed, modes
from bertjax.errors import as_user_error
from bertjax.files import read_records
from bertjax.runs import checkpoints
from bertjax.sweeps.expansion import Run

_log = logging.getLogger(__name__)


class Ended(NamedTuple):
    """A run that is over."""

    run: Run
    error: str  # what went wrong; "" for nothing


class StoppedError(Exception):
    """SIGTERM came; the same command goes on."""


def tell_failures(ended: Sequence[Ended]) -> bool:
    """Lists the runs that have failed; whether there are any."""
    failed = [one for one in ended if one.error]
    for one in failed:
        _log.error("failed: %s: %s", one.run.name, one.error)
    if failed:
        _log.error("%d of %d runs failed; the same command tries them again", len(failed), len(ended))
    return bool(failed)


def tell_problems(problems: Sequence[str]) -> None:
    """Lists what the table lacks although its run has not failed."""
    for problem in problems:
        _log.error("not in the table: %s", problem)


def is_trained(folder: Path) -> bool:
    """Whether a run has its last checkpoint and what that scored."""
    try:
        num_steps = json.loads((folder / "config.json").read_text())["num_steps"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    scored = any(record.get("step") == num_steps and _is_scored(record) for record in _records(folder))
    return scored and checkpoints.has_checkpoint(folder) and checkpoints.find_steps(folder, "latest") == [num_steps]


def is_finished(run: Run) -> bool:
    """Whether a run is trained and has all figures that the table shows, so that nothing is left to do."""
    if run.figures is None:
        return False
    names = {name for record in _records(run.folder) for name in record}
    return names.issuperset(run.figures) and is_trained(run.folder)


def _records(folder: Path) -> Iterator[dict[str, object]]:
    return read_records(folder / "metrics.jsonl")


def _is_scored(record: dict[str, object]) -> bool:
    return any(name.startswith("valid/") for name in record)


def in_this_process(
    runs: Sequence[Run], request: modes.Request, find: Callable[[str], modes.Experiment]
) -> Generator[Ended]:
    """Trains one after another; all processes of a cluster together.

    Args:
      runs: each after what it needs.
      request: of a training.
      find: the experiment of a name.
    Raises:
      StoppedError: SIGTERM came.
    """
    finished = [run.name for run in runs if is_finished(run)]
    distributed.agree(hashlib.sha256(json.dumps(finished).encode()).hexdigest(), "the runs that are finished")
    failed: dict[Path, str] = {}
    for number, run in enumerate(runs, start=1):
        error = ""
        if run.needs in failed:
            error = needs_failed(run)
        elif run.name not in finished:
            _log.info("run %d of %d: %s", number, len(runs), run.folder)
            error = _trained(run, request, find)
        if error:
            failed[run.folder] = error
        yield Ended(run, error)


def needs_failed(run: Run) -> str:
    """What to say of a run that cannot begin."""
    assert run.needs
    return f"not begun, as {run.needs.name} has failed"


def _trained(run: Run, request: modes.Request, find: Callable[[str], modes.Experiment]) -> str:
    """Trains; returns what went wrong, or ""."""
    try:
        # Each says how it is started alone, where it could be.
        started = {"command": modes.command(request.program, run.command)} if run.arguments else request.started
        own = dataclasses.replace(request, workdir=str(run.folder), started=started)
        outcome = modes.run(own, dict(run.config), find)
    except Exception as error:  # the other runs go on
        told = as_user_error(error, str(run.folder))
        if told is None:
            _log.exception("%s", run.name)
        return str(told or f"{type(error).__name__}: {error}")
    if outcome is modes.Outcome.STOPPED:
        raise StoppedError
    return ""
