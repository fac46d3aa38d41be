"""What the runs of a sweep say: the figures of each row, beside those of the base row and of the paper."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bertjax.errors import UserError
from bertjax.reporting.runs import Run as Finished
from bertjax.reporting.runs import read_run
from bertjax.runs import checkpoints
from bertjax.runs.run_folder import load_config
from bertjax.scoring.paired import Difference, difference
from bertjax.sweeps.definition import Metric, Sweep
from bertjax.sweeps.expansion import Run, run_of
from bertjax.sweeps.figures import Figure, evaluation, figure_of

_FORMS: dict[str, Callable[[float], float]] = {
    "plain": lambda value: value,
    "percent": lambda value: 100 * value,
    "exponential": lambda value: math.inf if value >= 700 else math.exp(value),  # and of NaN, NaN
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A figure of a row.

    Attributes:
      figure: over the seeds; None if no run has it.
      apart: from the base row, over the seeds that both have; None for the base row, and where there are none.
      paper: the published figure, if there is one.
      is_best: whether no row has a better mean.
    """

    figure: Figure | None
    apart: Difference | None
    paper: float | None
    is_best: bool


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a row took, on average over its seeds; None where its runs do not tell.

    Attributes:
      minutes: of training, all stages together, evaluation and saving aside.
      tokens: that it was trained on, padding aside; of an encoder-decoder, the target's.
      parameters: of the model of the last stage.
    """

    minutes: float | None
    tokens: float | None
    parameters: int | None


@dataclasses.dataclass(frozen=True)
class Line:
    """A row of the table."""

    name: str
    seeds: int  # how many have a figure
    cells: tuple[Cell, ...]  # in the order of the sweep's metrics
    cost: Cost


@dataclasses.dataclass(frozen=True)
class Results:
    """The table, and what is missing in it.

    Attributes:
      lines: its rows.
      problems: runs that cannot be read, and figures that they do not have, in words.
    """

    lines: tuple[Line, ...]
    problems: tuple[str, ...]


def collect(sweep: Sweep, runs: Sequence[Run], seeds: Sequence[int], failed: frozenset[Path]) -> Results:
    """Reads the runs of a sweep.

    Args:
      sweep: whose rows and metrics.
      runs: those of it.
      seeds: of these.
      failed: the folders of runs that there is nothing to read of.
    """
    read: dict[Path, Finished] = {}
    problems = []
    for run in runs:
        try:
            if run.folder not in failed:
                read[run.folder] = _read(run.folder)
        except UserError as error:
            problems.append(f"{run.name}: {error}")
    values: dict[tuple[str, str], dict[int, float]] = {}
    for metric in sweep.metrics:
        of_stage = seeds[:1] if sweep.stage(metric.stage).one_seed else seeds
        found: dict[Path, float] = {}
        for run in (run for run in runs if run.folder in read and run.keys[0].stage == metric.stage):
            try:
                found[run.folder] = _value(metric, read[run.folder])
            except UserError as error:
                problems.append(f"{run.name}: {error}")
        for row in sweep.rows:
            folders = {seed: run_of(runs, row.name, metric.stage, seed).folder for seed in of_stage}
            values[row.name, metric.name] = {seed: found[folder] for seed, folder in folders.items() if folder in found}
    costs = {row.name: _cost(sweep, runs, row.name, seeds, read) for row in sweep.rows}
    return Results(tuple(_lines(sweep, values, costs)), tuple(problems))


def _read(folder: Path) -> Finished:
    load_config(folder)  # tells of a file that cannot be read
    return read_run(folder)


def _value(metric: Metric, run: Finished) -> float:
    """A run's figure, as the table has it."""
    figures = evaluation(run).figures if metric.figure.startswith("valid/") else _tested(run)
    if metric.figure not in figures:
        raise UserError(
            f"metric {metric.name!r}",
            got=f"no {metric.figure} in {run.folder / 'metrics.jsonl'}",
            expected="one of " + ", ".join(sorted(figures)) if figures else "figures of that kind",
            fix="correct the sweep's metrics, or go on with the run",
        )
    return _FORMS[metric.form](figures[metric.figure])


def _tested(run: Finished) -> Mapping[str, float]:
    return {name: value for name, (_, value) in run.last_figures().items() if name.startswith("test/")}


def _lines(
    sweep: Sweep, values: Mapping[tuple[str, str], Mapping[int, float]], costs: Mapping[str, Cost]
) -> Iterator[Line]:
    figures = {key: figure_of(of_key) for key, of_key in values.items() if of_key}
    best = {metric.name: _best(metric, sweep, figures) for metric in sweep.metrics}
    for row in sweep.rows:
        cells = []
        for metric in sweep.metrics:
            figure = figures.get((row.name, metric.name))
            base = values[sweep.base, metric.name] if row.name != sweep.base else {}
            is_best = figure is not None and figure.mean == best[metric.name]
            cells.append(Cell(figure, _apart(figure, base), row.paper.get(metric.name), is_best))
        seeds = max((len(cell.figure.seeds) for cell in cells if cell.figure), default=0)
        yield Line(row.name, seeds, tuple(cells), costs[row.name])


def _best(metric: Metric, sweep: Sweep, figures: Mapping[tuple[str, str], Figure]) -> float | None:
    found = [figures[row.name, metric.name].mean for row in sweep.rows if (row.name, metric.name) in figures]
    known = [mean for mean in found if not math.isnan(mean)]
    return (max if metric.direction == "max" else min)(known) if known else None


def _apart(figure: Figure | None, base: Mapping[int, float]) -> Difference | None:
    """How far a figure is from the base row's, over the seeds that both have."""
    both = [seed for seed in figure.seeds if seed in base] if figure else []
    if not figure or not both:
        return None
    return difference(np.array([figure.seeds[seed] for seed in both]), np.array([base[seed] for seed in both]))


def _cost(sweep: Sweep, runs: Sequence[Run], row: str, seeds: Sequence[int], read: Mapping[Path, Finished]) -> Cost:
    minutes, tokens, parameters = [], [], None
    for seed in seeds:
        folders = [run_of(runs, row, stage.name, seed).folder for stage in sweep.stages]
        found = [read[folder] for folder in folders if folder in read]
        if len(found) < len(folders):
            continue
        minutes.append(sum(run.seconds_trained()[-1][1] for run in found) / 60)
        tokens.append(sum(run.tokens_seen()[-1][1] for run in found))
        with contextlib.suppress(UserError):  # checkpoints may have been deleted since
            parameters = checkpoints.num_parameters(folders[-1]) if parameters is None else parameters
    if not minutes:
        return Cost(None, None, None)
    return Cost(sum(minutes) / len(minutes), sum(tokens) / len(tokens), parameters)
