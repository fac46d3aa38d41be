"""Lays out the metrics of runs as panels: the curves, their points, and the baselines of each panel."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tools.reporting import pairs, titles
from bertjax.tools.reporting.runs import Run

_POINTS, _FEWEST, _MOST = 60_000, 40, 1500  # maximum in total; minimum and maximum per curve
_DIGITS = 5
# Metrics with a known chance level. That of others depends on the data, and is logged with them.
_CHANCE = {"pairs/per_token_accuracy": 0.5}
# Secondary metrics: speed, optimizer, ends of intervals, and the F1 of single classes.
_SECONDARY = (
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
_SECONDARY_PREFIXES = (
    *("over_lead", "loss_spikes", "gradient_norm_spikes", "recompilations", "used_"),
    *("shorter_accuracy", "f1_"),
)


@dataclasses.dataclass(frozen=True)
class Phase:
    """A run with its position in the curves.

    Attributes:
      run: the run.
      offset: the steps, tokens and seconds of the runs that it starts from; 0 if there are none.
      row: the row of a sweep; "" for none. Runs of a row have the same color, and are shown or hidden together.
      stage: the stage of a sweep. Only runs of the same stage share a panel.
    """

    run: Run
    offset: tuple[float, float, float]
    row: str = ""
    stage: str = ""


def phases(chain: Sequence[Run]) -> list[Phase]:
    """Returns the runs of a chain. Each begins at the end of the run that it starts from."""
    result = []
    offset = (0.0, 0.0, 0.0)
    for run in chain:
        result.append(Phase(run, offset))
        ends = run.num_steps, run.tokens_seen()[-1][1], run.seconds_trained()[-1][1]
        offset = (offset[0] + ends[0], offset[1] + ends[1], offset[2] + ends[2])
    return result


def panels(runs: Mapping[str, Phase]) -> dict[str, Any]:
    """Returns the data of the page's charts: `rows`, `runs` with their tokens and hours at each step, and `panels`.

    A panel has the curves of one metric, for all splits and runs of a stage. Training losses have a panel of their own
    if those of a run do not compare with its validation losses. Baselines, which are logged only at step
    0, are `lines` in the panel of the metric that they are compared with. For example, "lead_rouge1" is a line in the
    panel of "rouge1".
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
    """Yields the panels of a stage. `runs` are its runs by number."""
    curves: dict[str, list[dict[str, Any]]] = {}
    levels: list[tuple[int, str, float]] = []
    by_split = set() if all(run.losses_compare for run in runs.values()) else {"train/loss"}
    for number, run in runs.items():
        baselines = run.levels()
        levels += [(number, name, value) for name, value in baselines.items()]
        for name, points in _series(run):
            split, _, metric = name.partition("/")
            if split != "valid" or metric not in baselines:
                curve = {"run": number, "split": split, "points": points}
                curves.setdefault(name if name in by_split else metric, []).append(curve)
    names = sorted(curves, key=lambda metric: _rank(metric, curves[metric]))
    by_metric = {metric: _panel(stage, metric, curves[metric], allowed) for metric in names}
    for (name, value), numbers in _shared(levels).items():
        if place := titles.baseline(name, by_metric):
            metric, label = place
            of_runs = numbers if len(numbers) < len(runs) else [None]
            line = {"name": label, "value": _rounded(value), "is_bound": label == titles.BOUND}
            by_metric[metric]["lines"] += [{"run": run, **line} for run in of_runs]
    yield from by_metric.values()


def _shared(levels: Sequence[tuple[int, str, float]]) -> dict[tuple[str, float], list[int | None]]:
    """Returns the runs that have each baseline. Most baselines depend only on the data, so all runs share them."""
    runs_of_level: dict[tuple[str, float], list[int | None]] = {}
    for number, name, value in levels:
        runs_of_level.setdefault((name, value), []).append(number)
    return runs_of_level


def _series(run: Run) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    names = dict.fromkeys(name for record in run.records for name in record)
    for name in (name for name in names if name.partition("/")[0] in titles.SPLITS):
        yield name, run.series(name)


def _rank(metric: str, curves: Sequence[Mapping[str, Any]]) -> tuple[bool, bool, bool, str]:
    """Returns the sort key of a metric: validation metrics first, losses first among these, those of parts last."""
    is_validated = any(curve["split"] == "valid" for curve in curves)
    return not is_validated, not metric.endswith("loss"), "/" in metric, metric


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
    """Returns whether a metric measures the whole model, unlike speed, ends of intervals, and single classes or pairs.

    The split may be omitted.
    """
    is_secondary = metric.endswith(_SECONDARY) or metric.rpartition("/")[2].startswith(_SECONDARY_PREFIXES)
    return not (is_secondary or pairs.is_detail(metric))


def _allowed(curves: int) -> int:
    return max(_FEWEST, min(_MOST, _POINTS // max(1, curves)))


def thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Returns about `most` points of a curve: its ends, and the lowest and highest point of each section."""
    if len(points) <= most:
        return list(points)
    indices = {0, len(points) - 1}
    for part in np.array_split(np.arange(len(points)), max(1, most // 2)):
        values = np.array([points[i][1] for i in part], float)
        if np.isfinite(values).any():
            indices |= {int(part[np.nanargmin(values)]), int(part[np.nanargmax(values)])}
    return [points[i] for i in sorted(indices)]


def _rounded(value: float) -> float | None:
    """Rounds a value to five digits. Returns None, a gap in the curve, for NaN and infinity."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _run(name: str, phase: Phase, row: int) -> dict[str, Any]:
    """Returns the name and the row of a run, and its tokens and hours at each step."""
    run, offset = phase.run, phase.offset
    paces = {"tokens": (run.tokens_seen(), offset[1], 1.0), "hours": (run.seconds_trained(), offset[2], 3600.0)}
    axes = {
        axis: [[step, _rounded((before + value) / unit)] for step, value in thinned(points, _MOST // 4)]
        for axis, (points, before, unit) in paces.items()
        if len(points) > 1
    }
    return {"name": name, "row": row, "offset": offset[0], "axes": axes, "stages": list(_stages(run))}


def _stages(run: Run) -> Iterator[tuple[int, str]]:
    """Yields the update at which each phase but the first begins, with its length of rows; see `data.phases`."""
    data = run.config.get("data") or {}
    stages = [(share, {"seq_len": length}) for share, length in data.get("stages") or ()]
    begin = 0.0
    for (share, _), (_, values) in itertools.pairwise([*(data.get("phases") or stages), (0.0, {})]):
        begin += share
        yield round(begin * (run.config.get("num_steps") or 0)), f"{values.get('seq_len', data.get('seq_len'))} tokens"
