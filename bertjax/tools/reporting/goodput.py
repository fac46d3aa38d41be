"""The time of a run by kind of work, from `goodput.jsonl`."""

from typing import Any

from bertjax.runs import goodput
from bertjax.tools.reporting.runs import Run, read_lines


def breakdown(run: Run) -> dict[str, Any] | None:
    """Returns the time of each kind of work, and the share of training updates; None if the run has no ledger.

    Raises:
      UserError: if a line of `goodput.jsonl` is malformed.
    """
    path = run.folder / goodput.FILE
    if path.exists():
        list(read_lines(path, numbers=("step", "seconds"), names=("kind",)))  # raises UserError for a malformed line
    seconds = {kind: spent for kind, spent in goodput.summary(run.folder).items() if spent}
    total = sum(seconds.values())
    if not total > 0:
        return None
    parts = [
        {"kind": name.replace("_", " "), "duration": duration(spent), "percent": f"{100 * spent / total:.1f}"}
        for name, spent in seconds.items()
    ]
    summary = f"{100 * seconds.get('step', 0.0) / total:.1f} % of {duration(total)} was spent on training updates."
    return {"parts": parts, "summary": summary, "seconds": total}


def duration(seconds: float) -> str:
    """Formats a time in seconds, minutes or hours.

    >>> duration(90), duration(9000)
    ('90.0 seconds', '2.5 hours')
    """
    size, unit = next(
        (s, u) for s, u in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if seconds > 2 * s or s == 1
    )
    return f"{seconds / size:.1f} {unit}"
