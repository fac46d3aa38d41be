"""Validation metrics of runs, and their statistics over several seeds."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.runs import checkpoints
from bertjax.tools.reporting.runs import Run


class Evaluation(NamedTuple):
    """The validation metrics of a run."""

    step: int  # of the best checkpoint, or of the last evaluation if no metric selects the best
    metrics: Mapping[str, float]  # "valid/NAME"


@dataclasses.dataclass(frozen=True)
class Statistics:
    """The statistics of a metric over several seeds.

    Attributes:
      seeds: the value of each seed that has the metric.
      mean: the mean of these values.
      std: their sample standard deviation (n - 1); None for a single value.
    """

    seeds: Mapping[int, float]
    mean: float
    std: float | None


def evaluation(run: Run) -> Evaluation:
    """Returns the validation metrics of a run's best checkpoint, or else of its last evaluation.

    Raises:
      UserError: if the run has not been evaluated.
    """
    evaluated = [record for record in run.records if record["step"] > 0 and _held_out(record)]
    if not evaluated:
        expected = "an evaluation"
        fix = "resume the run"
        raise UserError(f"run {run.folder}", got="no validation metrics", expected=expected, fix=fix)
    best = checkpoints.best_step(run.folder)
    step = int(evaluated[-1]["step"]) if best is None else best
    metrics = {name: value for record in evaluated if record["step"] == step for name, value in _held_out(record)}
    return Evaluation(step, metrics)


def _held_out(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in record.items() if name.startswith("valid/")]


def summarize(evaluations: Mapping[int, Evaluation]) -> dict[str, Statistics]:
    """Returns the statistics of each validation metric over the seeds.

    >>> summarize({0: Evaluation(9, {"valid/f1": 0.5}), 1: Evaluation(6, {"valid/f1": 1.0})})["valid/f1"].mean
    0.75
    """
    summary = {}
    for name in dict.fromkeys(name for one in evaluations.values() for name in one.metrics):
        seeds = {seed: one.metrics[name] for seed, one in evaluations.items() if name in one.metrics}
        summary[name] = statistics(seeds)
    return summary


def statistics(seeds: Mapping[int, float]) -> Statistics:
    """Returns the mean and the sample standard deviation of a metric over one or more seeds."""
    values = np.array(list(seeds.values()))
    return Statistics(seeds, float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None)
