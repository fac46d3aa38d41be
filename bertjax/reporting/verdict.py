"""The head of a page: how a run ended, its main metric against a baseline, and what it took."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.reporting import goodput, panels, titles
from bertjax.reporting.comparison import difference, number
from bertjax.reporting.results import Summary
from bertjax.reporting.runs import Run

_TILES = 5
_REPEATED = re.compile(r"^(.+) \(\1\)$")


class _Main(NamedTuple):
    """The main metric of a run, with its baseline if there is one."""

    name: str
    baseline: tuple[str, float] | None


def main_metric(run: Run) -> _Main | None:
    """The first of these that a run has: `checkpoint.best_metric` with a baseline, any metric with one, any metric."""
    metrics = [name for name in run.final_metrics() if panels.is_primary(name)]
    if not metrics:
        return None
    names = {name.removeprefix("valid/") for name in metrics}
    found: dict[str, tuple[str, float]] = {}
    for level, value in run.levels().items():
        place = titles.baseline(level, names)
        if place and place[1] != titles.BOUND:
            found.setdefault(f"valid/{place[0]}", (place[1], value))
    best = (run.config.get("checkpoint") or {}).get("best_metric")
    name = min(metrics, key=lambda name: (name not in found, name != best))
    return _Main(name, found.get(name))


def of_run(run: Run, environment: Mapping[str, Any]) -> dict[str, Any]:
    """The head of a run's page."""
    steps, planned, spent = run.num_steps, run.config.get("num_steps") or 0, goodput.told(run)
    status = f"Finished: {steps:,} steps" if run.is_finished else f"Not finished: {steps:,} of {planned:,} steps"
    metrics, main = run.final_metrics(), main_metric(run)
    return {
        "status": status,
        "is_finished": run.is_finished,
        "main": main and _told(main, metrics[main.name]),
        "tiles": _tiles(metrics, main),
        "facts": _facts([spent["seconds"]] if spent else [], [environment]),
    }


def of_runs(
    runs: Mapping[str, Run], environments: Sequence[Mapping[str, Any]], summary: Summary | None, rest: int
) -> dict[str, Any]:
    """The head of a page of several runs: the mean of their main metric if they are seeds, else its best value.

    Args:
      runs: by their names.
      environments: of those that have one.
      summary: of several seeds; None for other runs.
      rest: the number of runs that have no metrics yet.
    """
    done, total = sum(run.is_finished for run in runs.values()), len(runs) + rest
    main = next(filter(None, map(main_metric, reversed([*runs.values()]))), None)
    spent = [told["seconds"] for told in map(goodput.told, runs.values()) if told]
    return {
        "status": f"{done} of {total} runs finished" if done < total else f"All {total} runs finished",
        "is_finished": done == total,
        "main": main and _of_several(main, runs, summary),
        "tiles": [],
        "facts": _facts(spent, environments),
    }


def _of_several(main: _Main, runs: Mapping[str, Run], summary: Summary | None) -> dict[str, Any]:
    if summary and (mean := summary.means.get(main.name)) is not None:
        return {**_told(main, mean), "of": f"mean of {len(summary.seeds)} seeds"}
    values = {name: run.final_metrics().get(main.name, math.nan) for name, run in runs.items()}
    gains = {name: _sign(main) * value for name, value in values.items() if math.isfinite(value)}
    best = max(gains or values, key=lambda name: gains.get(name, 0.0))
    return {**_told(main, values[best]), "of": f"best run: {best}"}


def _told(main: _Main, value: float) -> dict[str, Any]:
    """The main metric in words."""
    told = {**titles.of(main.name), "value": number(value)}
    if main.baseline is None or not math.isfinite(value):
        return told
    name, level = main.baseline
    against = f"{difference(value, level)} against the {name} ({number(level)})"
    return {**told, "against": against, "is_better": _sign(main) * (value - level) > 0}


def _sign(main: _Main) -> int:
    return -1 if titles.direction(main.name) == "lower" else 1


def _tiles(metrics: Mapping[str, float], main: _Main | None) -> list[dict[str, str]]:
    """The other final metrics."""
    names = [name for name in metrics if panels.is_primary(name) and not (main and name == main.name)]
    return [{**titles.of(name), "value": number(metrics[name])} for name in names[:_TILES]]


def _facts(seconds: Sequence[float], environments: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Duration, devices, parameters and commit, as far as they are known; of several runs, each value once."""
    known = {
        "Duration": [goodput.duration(sum(seconds))] if seconds else [],
        "Device": [devices(one["devices"]) for one in environments if one.get("devices")],
        "Parameters": [f"{one['parameters']:,}" for one in environments if one.get("parameters")],
        "Commit": [one["commit"] for one in environments if one.get("commit")],
    }
    return [(name, ", ".join(dict.fromkeys(values))) for name, values in known.items() if values]


def devices(counts: Mapping[str, int]) -> str:
    """The devices of a run, without a platform that repeats their kind.

    >>> devices({"TPU v5e (tpu)": 8}), devices({"cpu (cpu)": 1})
    ('8 × TPU v5e (tpu)', '1 × cpu')
    """
    kinds = {_REPEATED.sub(r"\1", kind): count for kind, count in counts.items()}
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
