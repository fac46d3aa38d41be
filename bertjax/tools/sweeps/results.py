"""Reads the metrics of a sweep's runs, and compares each row with the base row and the paper."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.runs import checkpoints
from bertjax.runs.run_folder import load_config
from bertjax.scoring.paired import Difference, difference
from bertjax.tools.reporting.runs import Run as Finished
from bertjax.tools.reporting.runs import read_run
from bertjax.tools.sweeps.definition import Metric, Row, Sweep
from bertjax.tools.sweeps.evaluations import Statistics, evaluation, statistics
from bertjax.tools.sweeps.expansion import Run, run_of

_FORMS: dict[str, Callable[[float], float]] = {
    "plain": lambda value: value,
    "percent": lambda value: 100 * value,
    "exponential": lambda value: math.inf if value >= 700 else math.exp(value),  # NaN stays NaN
    "milliseconds": lambda value: 1000 * value,
}


_ENDS = ("", "_low", "_high")


class _Score(NamedTuple):
    value: float
    interval: tuple[float, float] | None  # over the examples of the run


Scores = dict[tuple[str, str], dict[int, _Score]]  # by row and metric, and by seed


@dataclasses.dataclass(frozen=True)
class Cell:
    """The score of a row in a column.

    Attributes:
      score: the statistics over the seeds; None if no run has the metric.
      difference: the difference to the base row, over the seeds that both have; None for the base row or without such
        seeds.
      paper: the published score, or None.
      is_best: whether no row has a better mean.
      interval: the 95 % interval over examples that the run records, of a score of one seed; else None.
    """

    score: Statistics | None
    difference: Difference | None
    paper: float | None
    is_best: bool
    interval: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a row, on average over its seeds; None if its runs do not record it.

    Attributes:
      minutes: training time of all stages, without evaluation and saving.
      tokens: the number of training tokens without padding; for an encoder-decoder those of the target.
      parameters: the number of parameters of the last stage's model.
    """

    minutes: float | None
    tokens: float | None
    parameters: int | None


@dataclasses.dataclass(frozen=True)
class Line:
    """A row of the table."""

    name: str
    seeds: int  # the number of seeds that have a score
    cells: tuple[Cell, ...]  # in the order of the sweep's metrics
    cost: Cost


@dataclasses.dataclass(frozen=True)
class Results:
    """The table, and the missing entries.

    Attributes:
      lines: the rows of the table.
      problems: messages about unreadable runs and missing metrics.
    """

    lines: tuple[Line, ...]
    problems: tuple[str, ...]


def collect(sweep: Sweep, runs: Sequence[Run], seeds: Sequence[int], failed: frozenset[Path]) -> Results:
    """Reads the metrics of a sweep's runs.

    Args:
      sweep: the sweep.
      runs: its runs.
      seeds: their seeds.
      failed: the folders of failed runs, which are not read.
    """
    read: dict[Path, Finished] = {}
    problems = []
    for run in runs:
        try:
            if run.folder not in failed:
                read[run.folder] = _read(run.folder)
        except UserError as error:
            problems.append(f"{run.name}: {error}")
    scores: Scores = {}
    for metric in sweep.metrics:
        of_stage = seeds[:1] if sweep.stage(metric.stage).one_seed else seeds
        for row in sweep.rows:
            of_row = scores.setdefault((row.name, metric.name), {})
            for seed in of_stage:
                run = run_of(runs, row.name, metric.stage, seed)
                try:
                    if run.folder in read:
                        of_row[seed] = _score(metric, metric.figure_of(row), read[run.folder])
                except UserError as error:
                    problems.append(f"{run.name}: {error}")
    costs = {row.name: _cost(sweep, runs, row, seeds, read) for row in sweep.rows}
    return Results(tuple(_lines(sweep, scores, costs)), tuple(dict.fromkeys(problems)))


def _read(folder: Path) -> Finished:
    load_config(folder)  # raises UserError for an unreadable file
    return read_run(folder)


def _score(metric: Metric, figure: str, run: Finished) -> _Score:
    """Returns a run's score in the form that the table shows."""
    metrics = _FIGURES[figure.partition("/")[0]](run)
    if figure not in metrics:
        raise UserError(
            f"metric {metric.name!r}",
            got=f"no {figure} in {run.folder / 'metrics.jsonl'}",
            expected="one of " + ", ".join(sorted(metrics)) if metrics else "at least one metric of this split",
            fix="correct the sweep's metrics, or resume the run",
        )
    value, *ends = (_FORMS[metric.form](metrics[name]) for name in map(figure.__add__, _ENDS) if name in metrics)
    return _Score(value, (ends[0], ends[1]) if len(ends) == 2 else None)


def _tested(run: Finished) -> Mapping[str, float]:
    return {name: value for name, (_, value) in run.last_metrics().items() if name.startswith("test/")}


def _logged(run: Finished) -> Mapping[str, float]:
    """Returns the median of each training metric, over its log lines."""
    values: dict[str, list[float]] = {}
    for record in run.records:
        for name in filter(lambda name: name.startswith("train/"), record):
            values.setdefault(name, []).append(record[name])
    return {name: float(np.median(logged)) for name, logged in values.items()}


_FIGURES: dict[str, Callable[[Finished], Mapping[str, float]]] = {
    "valid": lambda run: evaluation(run).metrics,
    "test": _tested,
    "train": _logged,
}


def _lines(sweep: Sweep, scores: Scores, costs: Mapping[str, Cost]) -> Iterator[Line]:
    values = {key: {seed: score.value for seed, score in seeds.items()} for key, seeds in scores.items()}
    metrics = {key: statistics(of_key) for key, of_key in values.items() if of_key}
    best = {metric.name: _best(metric, sweep, metrics) for metric in sweep.metrics}
    for row in sweep.rows:
        cells = []
        for metric in sweep.metrics:
            score = metrics.get((row.name, metric.name))
            base = values[sweep.base, metric.name] if row.name != sweep.base else {}
            is_best = score is not None and score.mean == best[metric.name]
            intervals = [one.interval for one in scores[row.name, metric.name].values()]
            interval = intervals[0] if len(intervals) == 1 else None
            cells.append(Cell(score, _difference(score, base), row.paper.get(metric.name), is_best, interval))
        seeds = max((len(cell.score.seeds) for cell in cells if cell.score), default=0)
        yield Line(row.name, seeds, tuple(cells), costs[row.name])


def _best(metric: Metric, sweep: Sweep, metrics: Mapping[tuple[str, str], Statistics]) -> float | None:
    means = [metrics[row.name, metric.name].mean for row in sweep.rows if (row.name, metric.name) in metrics]
    numbers = [mean for mean in means if not math.isnan(mean)]
    return (min if metric.is_lower_better else max)(numbers) if numbers else None


def _difference(score: Statistics | None, base: Mapping[int, float]) -> Difference | None:
    """Returns the difference to the base row, over the seeds that both rows have."""
    both = [seed for seed in score.seeds if seed in base] if score else []
    if not score or not both:
        return None
    return difference(np.array([score.seeds[seed] for seed in both]), np.array([base[seed] for seed in both]))


def _cost(sweep: Sweep, runs: Sequence[Run], row: Row, seeds: Sequence[int], read: Mapping[Path, Finished]) -> Cost:
    """Returns the cost of a row; none of a baseline."""
    minutes = []
    tokens = []
    parameters = None
    for seed in () if row.baseline else seeds:
        folders = [run_of(runs, row.name, stage.name, seed).folder for stage in sweep.stages]
        finished = [read[folder] for folder in folders if folder in read]
        if len(finished) < len(folders):
            continue
        minutes.append(sum(run.seconds_trained()[-1][1] for run in finished) / 60)
        tokens.append(sum(run.tokens_seen()[-1][1] for run in finished))
        with contextlib.suppress(UserError):  # checkpoints may have been deleted
            parameters = checkpoints.num_parameters(folders[-1]) if parameters is None else parameters
    if not minutes:
        return Cost(None, None, None)
    return Cost(sum(minutes) / len(minutes), sum(tokens) / len(tokens), parameters)
