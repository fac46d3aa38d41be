"""The time of a run by kind of work, from `goodput.jsonl` or, without this file, from its metrics."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.runs import goodput
from bertjax.tools.reporting.runs import Run, read_lines

_USEFUL = "step"


def breakdown(run: Run) -> dict[str, Any] | None:
    """Returns the seconds of each kind of work, and the share of training updates; None if no file records times.

    Raises:
      UserError: if a line of `goodput.jsonl` is malformed.
    """
    path = run.folder / goodput.FILE
    ledger = _of_ledger(path) if path.exists() else {}
    seconds, source = (ledger, f"From {path.name}.") if ledger else (_of_metrics(run), "From metrics.jsonl: training.")
    total = sum(seconds.values())
    if not total > 0:
        return None
    parts = [
        {"kind": name.replace("_", " "), "duration": duration(spent), "percent": f"{100 * spent / total:.1f}"}
        for name, spent in seconds.items()
    ]
    summary = f"{100 * seconds.get(_USEFUL, 0.0) / total:.1f} % of {duration(total)} was spent on training updates."
    return {"parts": parts, "summary": summary, "source": source, "seconds": total}


def duration(seconds: float) -> str:
    """Formats a time in seconds, minutes or hours.

    >>> duration(90), duration(9000)
    ('90.0 seconds', '2.5 hours')
    """
    size, unit = next(
        (s, u) for s, u in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if seconds > 2 * s or s == 1
    )
    return f"{seconds / size:.1f} {unit}"


def _of_ledger(path: Path) -> dict[str, float]:
    list(read_lines(path, numbers=("step", "seconds"), names=("kind",)))  # raises UserError for a malformed line
    return {kind: seconds for kind, seconds in goodput.summary(path.parent).items() if seconds}


def _of_metrics(run: Run) -> Mapping[str, float]:
    """Returns the seconds of each kind, from the step times. The time of saves starts at 0 after each resumption."""
    before = 0
    total, waited = 0.0, 0.0
    fractions = dict(run.series("train/data_wait_fraction"))
    for step, seconds in run.series("train/step_seconds"):
        total += (step - before) * seconds
        waited += (step - before) * seconds * fractions.get(step, 0.0)
        before = step
    saves = [value for _, value in run.series("train/save_wait_seconds")]
    restarts = [a for a, b in itertools.pairwise([*saves, 0.0]) if b < a]
    return {_USEFUL: total - waited, "data_wait": waited, "checkpoint": sum(restarts)}
