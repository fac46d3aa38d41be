"""The header of a page: the status of a run, its main metric with the baseline, and its duration and devices."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.progress import amount
from bertjax.reporting import goodput, panels, titles
from bertjax.reporting.comparison import difference, number
from bertjax.reporting.results import Summary
from bertjax.reporting.runs import Run

_TILES = 5
_USED = "train/used_"
_REPEATED = re.compile(r"^(.+) \(\1\)$")


class _Main(NamedTuple):
    """The main metric of a run, with its baseline if there is one."""

    name: str
    baseline: tuple[str, float] | None


def main_metric(run: Run) -> _Main | None:
    """Returns the main metric of a run; None if it has no metrics.

    Metrics with a baseline come first, and among these `checkpoint.best_metric`.
    """
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
    """Returns the header of a run's page."""
    steps, planned = run.num_steps, run.config.get("num_steps") or 0
    spent = goodput.breakdown(run)
    total = "" if (run.config.get("budget") or {}).get("hours") else f" of {planned:,}"
    status = f"Finished: {steps:,} steps" if run.is_finished else f"Not finished: {steps:,}{total} steps"
    metrics, main = run.final_metrics(), main_metric(run)
    return {
        "status": status,
        "is_finished": run.is_finished,
        "main": main and _described(main, metrics[main.name]),
        "tiles": _tiles(metrics, main),
        "facts": [*_facts([spent["seconds"]] if spent else [], [environment]), *_used(run)],
    }


def of_runs(
    runs: Mapping[str, Run], environments: Sequence[Mapping[str, Any]], summary: Summary | None, rest: int
) -> dict[str, Any]:
    """Returns the header of the page of several runs: the main metric as the mean over seeds, or else the best run's.

    Args:
      runs: the runs, by name.
      environments: the environments of the runs that have one.
      summary: the summary of several seeds; None for other runs.
      rest: the number of runs without metrics.
    """
    done, total = sum(run.is_finished for run in runs.values()), len(runs) + rest
    main = next(filter(None, map(main_metric, reversed([*runs.values()]))), None)
    spent = [each["seconds"] for each in map(goodput.breakdown, runs.values()) if each]
    return {
        "status": f"{done} of {total} runs finished" if done < total else f"All {total} runs finished",
        "is_finished": done == total,
        "main": main and _of_several(main, runs, summary),
        "tiles": [],
        "facts": _facts(spent, environments),
    }


def _of_several(main: _Main, runs: Mapping[str, Run], summary: Summary | None) -> dict[str, Any]:
    if summary and (mean := summary.means.get(main.name)) is not None:
        return {**_described(main, mean), "of": f"mean of {len(summary.seeds)} seeds"}
    values = {name: run.final_metrics().get(main.name, math.nan) for name, run in runs.items()}
    gains = {name: _sign(main) * value for name, value in values.items() if math.isfinite(value)}
    best = max(gains or values, key=lambda name: gains.get(name, 0.0))
    return {**_described(main, values[best]), "of": f"best run: {best}"}


def _described(main: _Main, value: float) -> dict[str, Any]:
    """Returns the title and value of the main metric, compared with its baseline if there is one."""
    described = {**titles.of(main.name), "value": number(value)}
    if main.baseline is None or not math.isfinite(value):
        return described
    name, level = main.baseline
    against = f"{difference(value, level)} against the {name} ({number(level)})"
    return {**described, "against": against, "is_better": _sign(main) * (value - level) > 0}


def _sign(main: _Main) -> int:
    return -1 if titles.direction(main.name) == "lower" else 1


def _tiles(metrics: Mapping[str, float], main: _Main | None) -> list[dict[str, str]]:
    """Returns the final metrics other than the main metric."""
    names = [name for name in metrics if panels.is_primary(name) and not (main and name == main.name)]
    return [{**titles.of(name), "value": number(metrics[name])} for name in names[:_TILES]]


def _facts(seconds: Sequence[float], environments: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns duration, devices, parameters and commit, if known. Equal values of several runs appear once."""
    known = {
        "Duration": [goodput.duration(sum(seconds))] if seconds else [],
        "Device": [devices(one["devices"]) for one in environments if one.get("devices")],
        "Parameters": [f"{one['parameters']:,}" for one in environments if one.get("parameters")],
        "Commit": [one["commit"] for one in environments if one.get("commit")],
    }
    return [(name, ", ".join(dict.fromkeys(values))) for name, values in known.items() if values]


def _used(run: Run) -> list[tuple[str, str]]:
    """Returns what a run with a budget has used, and the budget."""
    used = {
        name.removeprefix(_USED): value for name, (_, value) in run.last_metrics().items() if name.startswith(_USED)
    }
    budget = {name: value for name, value in (run.config.get("budget") or {}).items() if value}
    listed = (", ".join(amount(*each) for each in values.items()) for values in (used, budget))
    return list(zip(("Used", "Budget"), listed, strict=True)) if used else []


def devices(counts: Mapping[str, int]) -> str:
    """Formats the devices of a run. A platform equal to the kind of device is omitted.

    >>> devices({"TPU v5e (tpu)": 8}), devices({"cpu (cpu)": 1})
    ('8 × TPU v5e (tpu)', '1 × cpu')
    """
    kinds = {_REPEATED.sub(r"\1", kind): count for kind, count in counts.items()}
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
