"""What runs are judged by: the figures of each, and of several seeds together."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.reporting.runs import Run
from bertjax.runs import checkpoints


class Evaluation(NamedTuple):
    """What a run is judged by."""

    step: int  # of its best checkpoint, or of its last evaluation where nothing tells the best
    figures: Mapping[str, float]  # "valid/NAME"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure over several seeds.

    Attributes:
      seeds: the value of each seed that has it.
      mean: of these.
      std: their sample standard deviation (n - 1); None for a single one.
    """

    seeds: Mapping[int, float]
    mean: float
    std: float | None


def evaluation(run: Run) -> Evaluation:
    """The held-out figures of a run's best checkpoint, or else its last ones.

    Raises:
      UserError: a run that has not been evaluated.
    """
    evaluated = [record for record in run.records if record["step"] > 0 and _held_out(record)]
    if not evaluated:
        expected, fix = "an evaluation", "go on with the run"
        raise UserError(f"run {run.folder}", got="no held-out figures", expected=expected, fix=fix)
    best = checkpoints.best_step(run.folder)
    step = int(evaluated[-1]["step"]) if best is None else best
    figures = {name: value for record in evaluated if record["step"] == step for name, value in _held_out(record)}
    return Evaluation(step, figures)


def _held_out(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in record.items() if name.startswith("valid/")]


def summarize(evaluations: Mapping[int, Evaluation]) -> dict[str, Figure]:
    """Each held-out figure over the seeds.

    >>> summarize({0: Evaluation(9, {"valid/f1": 0.5}), 1: Evaluation(6, {"valid/f1": 1.0})})["valid/f1"].mean
    0.75
    """
    summary = {}
    for name in dict.fromkeys(name for one in evaluations.values() for name in one.figures):
        seeds = {seed: one.figures[name] for seed, one in evaluations.items() if name in one.figures}
        summary[name] = figure_of(seeds)
    return summary


def figure_of(seeds: Mapping[int, float]) -> Figure:
    """The mean and the sample standard deviation of a figure that one or more seeds have."""
    values = np.array(list(seeds.values()))
    return Figure(seeds, float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None)
