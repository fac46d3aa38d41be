"""Where a run's time went: from its ledger, `goodput.jsonl`, or as far as its figures tell."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.reporting.runs import Run, read_lines
from bertjax.runs import goodput

_USEFUL = "step"


def told(run: Run) -> dict[str, Any] | None:
    """Seconds by what they were for, and the share of them that made updates; None if nothing tells.

    Raises:
      UserError: a line of the ledger that was not written by a run.
    """
    path = run.folder / goodput.FILE
    ledger = _of_ledger(path) if path.exists() else {}
    seconds, source = (ledger, f"From {path.name}.") if ledger else (_of_figures(run), "From metrics.jsonl: training.")
    total = sum(seconds.values())
    if not total > 0:
        return None
    parts = [
        {"kind": name.replace("_", " "), "seconds": round(spent, 3), "percent": f"{100 * spent / total:.1f}"}
        for name, spent in seconds.items()
    ]
    said = f"{100 * seconds.get(_USEFUL, 0.0) / total:.1f} % of {duration(total)} went into updates."
    return {"parts": parts, "said": said, "source": source, "seconds": total}


def duration(seconds: float) -> str:
    """In the unit that fits.

    >>> duration(90), duration(9000)
    ('90.0 seconds', '2.5 hours')
    """
    size, unit = next(
        (s, u) for s, u in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if seconds > 2 * s or s == 1
    )
    return f"{seconds / size:.1f} {unit}"


def _of_ledger(path: Path) -> dict[str, float]:
    list(read_lines(path, numbers=("step", "seconds"), names=("kind",)))  # tells what is wrong with a line
    return {kind: seconds for kind, seconds in goodput.summary(path.parent).items() if seconds}


def _of_figures(run: Run) -> Mapping[str, float]:
    """What the pace of each window tells; a run that was started again has waited for saves in each of its parts."""
    before, total, waited = 0, 0.0, 0.0
    fractions = dict(run.series("train/data_wait_fraction"))
    for step, seconds in run.series("train/step_seconds"):
        total += (step - before) * seconds
        waited += (step - before) * seconds * fractions.get(step, 0.0)
        before = step
    saves = [value for _, value in run.series("train/save_wait_seconds")]
    restarts = [a for a, b in itertools.pairwise([*saves, 0.0]) if b < a]
    return {_USEFUL: total - waited, "data_wait": waited, "checkpoint": sum(restarts)}
