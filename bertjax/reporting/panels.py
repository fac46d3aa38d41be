"""Metrics of runs as panels: which curves share one, at which points, and with which baselines."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.reporting import titles
from bertjax.reporting.runs import Run

_POINTS, _FEWEST, _MOST = 60_000, 40, 1500  # of all curves together, of one at least, and at most
_DIGITS = 5
# What is half right by guessing.
_CHANCE = {"next_sentence_accuracy": 0.5}
# Figures of how a run went, and ends of intervals: not what one looks at first.
_ASIDE = (
    "_low",
    "_high",
    "_p",
    "_thresh",
    "total",
    "_seconds",
    "_fraction",
    "tokens_per_second",
    "gradient_norm",
    "learning_rate",
)
_ASIDE_PREFIXES = ("over_lead", "loss_spikes", "gradient_norm_spikes", "recompilations")


@dataclasses.dataclass(frozen=True)
class Phase:
    """A run, and where it begins if it goes on from another one.

    Attributes:
      run: the run.
      offset: steps, tokens and seconds before it.
      row: runs of one row have one color, and are shown or not together; "" if it is one by itself.
      stage: only runs of one stage share a panel.
    """

    run: Run
    offset: tuple[float, float, float]
    row: str = ""
    stage: str = ""


def phases(chain: Sequence[Run]) -> list[Phase]:
    """The runs of a chain, each after the one that it goes on from."""
    found, before = [], (0.0, 0.0, 0.0)
    for run in chain:
        found.append(Phase(run, before))
        ends = run.num_steps, run.tokens_seen()[-1][1], run.seconds_trained()[-1][1]
        before = (before[0] + ends[0], before[1] + ends[1], before[2] + ends[2])
    return found


def panels(runs: Mapping[str, Phase]) -> dict[str, Any]:
    """What the page's script draws: `rows`, `runs`, with tokens and hours at their steps, and `panels`.

    A panel has the curves of one metric in all splits and runs of a stage. Levels known before training, which are
    logged at step 0 alone, are `lines` in the panel of the figure that they are to be compared with: "lead_rouge1" in
    that of "rouge1".
    """
    rows = list(dict.fromkeys(phase.row or name for name, phase in runs.items()))
    stages: dict[str, dict[int, Run]] = {}
    for number, phase in enumerate(runs.values()):
        stages.setdefault(phase.stage, {})[number] = phase.run
    allowed = _allowed(sum(len(list(_series(phase.run))) for phase in runs.values()))
    return {
        "rows": rows,
        "runs": [_run(name, phase, rows.index(phase.row or name)) for name, phase in runs.items()],
        "panels": [panel for stage, members in stages.items() for panel in _of_stage(stage, members, allowed)],
    }


def _of_stage(stage: str, runs: Mapping[int, Run], allowed: int) -> Iterator[dict[str, Any]]:
    """The panels of a stage's runs, which have these numbers."""
    curves: dict[str, list[dict[str, Any]]] = {}
    levels: list[tuple[int, str, float]] = []
    for number, run in runs.items():
        known = run.levels()
        levels += [(number, name, value) for name, value in known.items()]
        for name, points in _series(run):
            split, _, metric = name.partition("/")
            if split != "valid" or metric not in known:
                curves.setdefault(metric, []).append({"run": number, "split": split, "points": points})
    names = sorted(curves, key=lambda metric: _rank(metric, curves[metric]))
    found = {metric: _panel(stage, metric, curves[metric], allowed) for metric in names}
    for (name, value), numbers in _shared(levels).items():
        place = titles.baseline(name, found)
        if place:
            metric, label = place
            of_runs = numbers if len(numbers) < len(runs) else [None]
            line = {"name": label, "value": _rounded(value), "is_bound": label == titles.BOUND}
            found[metric]["lines"] += [{"run": run, **line} for run in of_runs]
    yield from found.values()


def _shared(levels: Sequence[tuple[int, str, float]]) -> dict[tuple[str, float], list[int | None]]:
    """The runs that have each level; most often it is that of the data, and so of all."""
    found: dict[tuple[str, float], list[int | None]] = {}
    for number, name, value in levels:
        found.setdefault((name, value), []).append(number)
    return found


def _series(run: Run) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    names = dict.fromkeys(name for record in run.records for name in record)
    for name in (name for name in names if name.partition("/")[0] in titles.SPLITS):
        yield name, run.series(name)


def _rank(metric: str, curves: Sequence[Mapping[str, Any]]) -> tuple[bool, bool, str]:
    """What is held out comes first, and of that the losses."""
    return not any(curve["split"] == "valid" for curve in curves), not metric.endswith("loss"), metric


def _panel(stage: str, metric: str, curves: Sequence[Mapping[str, Any]], allowed: int) -> dict[str, Any]:
    series = [{**curve, "points": [[x, _rounded(y)] for x, y in thinned(curve["points"], allowed)]} for curve in curves]
    lines = [{"run": None, "name": "chance", "value": _CHANCE[metric], "is_bound": False}] if metric in _CHANCE else []
    return {
        "stage": stage,
        "title": titles.title(metric),
        "better": titles.better(metric),
        "primary": is_primary(metric),
        "series": series,
        "lines": lines,
    }


def is_primary(metric: str) -> bool:
    """Whether a metric, with or without its split, is of the model, and not of the pace or the end of an interval."""
    return not (metric.endswith(_ASIDE) or metric.rpartition("/")[2].startswith(_ASIDE_PREFIXES))


def _allowed(curves: int) -> int:
    return max(_FEWEST, min(_MOST, _POINTS // max(1, curves)))


def thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """About `most` of a curve's points at most: the lowest and the highest of each stretch, and the ends."""
    if len(points) <= most:
        return list(points)
    kept = {0, len(points) - 1}
    for part in np.array_split(np.arange(len(points)), max(1, most // 2)):
        values = np.array([points[i][1] for i in part], float)
        if np.isfinite(values).any():
            kept |= {int(part[np.nanargmin(values)]), int(part[np.nanargmax(values)])}
    return [points[i] for i in sorted(kept)]


def _rounded(value: float) -> float | None:
    """With as many digits as can be seen; None, which breaks the curve, for what is not finite."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _run(name: str, phase: Phase, row: int) -> dict[str, Any]:
    """A run's name and row, and what the horizontal axis may count in place of its steps, at these."""
    run, offset = phase.run, phase.offset
    paces = {"tokens": (run.tokens_seen(), offset[1], 1.0), "hours": (run.seconds_trained(), offset[2], 3600.0)}
    axes = {
        axis: [[step, _rounded((before + value) / unit)] for step, value in thinned(points, _MOST // 4)]
        for axis, (points, before, unit) in paces.items()
        if len(points) > 1
    }
    return {"name": name, "row": row, "offset": offset[0], "axes": axes}
