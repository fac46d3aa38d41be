"""Early stopping. Whether a run has ended depends only on its config and its metrics, so a resumed run ends alike."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Stop(NamedTuple):
    """The end of a run whose metric no longer improves.

    Attributes:
      step: the step of the last evaluation, after which the run ends.
      metric: `checkpoint.best_metric`.
      evaluations: the number of evaluations after the best one.
      best: the best value; NaN if no value was finite.
      best_step: its step; 0 if no value was finite.
    """

    step: int
    metric: str
    evaluations: int
    best: float
    best_step: int

    @property
    def reason(self) -> str:
        """Why the run ends."""
        best = f"best: {self.best:.4g} after step {self.best_step}" if self.best_step else "no value was finite"
        return f"{self.metric} has not improved in {self.evaluations} evaluations ({best})"


def find_stop(config: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> Stop | None:
    """Returns the stop of a run if the last `evaluate_patience` evaluations brought no improvement, otherwise None.

    Equal values, NaN and infinity are no improvement. The first finite value is one.

    Args:
      config: the run's config.
      records: the lines of its `metrics.jsonl`.
    """
    patience = config.get("evaluate_patience") or 0
    checkpoint = config.get("checkpoint") or {}
    metric = checkpoint.get("best_metric") or ""
    sign = 1 if checkpoint.get("best_mode") == "min" else -1
    if not patience:
        return None
    steps = (record for record in records if isinstance(record.get("step"), int) and record["step"] > 0)
    scores = {record["step"]: record[metric] for record in steps if isinstance(record.get(metric), int | float)}
    best = math.nan
    best_step = 0
    waited = 0
    for step, score in sorted(scores.items()):
        if math.isfinite(score) and not sign * score >= sign * best:
            best = score
            best_step = step
            waited = 0
        else:
            waited += 1
    return Stop(max(scores), metric, waited, best, best_step) if waited >= patience else None
