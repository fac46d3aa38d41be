"""The header of a page: the status of a run, its main metric with the baseline, and its duration and devices."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.progress import amount
from bertjax.scoring import paired
from bertjax.tools.reporting import goodput, panels, titles
from bertjax.tools.reporting.comparison import difference, number
from bertjax.tools.reporting.results import Place, Summary
from bertjax.tools.reporting.runs import Run, read_run

_TILES = 5
_USED = "train/used_"
_REPEATED = re.compile(r"^(.+) \(\1\)$")


class _Baseline(NamedTuple):
    title: str
    value: float


def main_metric(run: Run) -> str | None:
    """Returns the name of the main metric of a run; None if it has no metrics.

    It is `checkpoint.best_metric`, or else the first metric with a baseline, or else the first metric.
    """
    metrics, compared = list(filter(panels.is_primary, run.final_metrics())), _baselines(run)
    best = (run.config.get("checkpoint") or {}).get("best_metric")
    return min(metrics, key=lambda name: (name != best, name not in compared), default=None)


def _baselines(run: Run) -> dict[str, _Baseline]:
    """Returns the baseline of each final metric that has one."""
    names = {name.removeprefix("valid/") for name in filter(panels.is_primary, run.final_metrics())}
    baselines: dict[str, _Baseline] = {}
    for level, value in run.levels().items():
        place = titles.baseline(level, names)
        if place and place[1] != titles.BOUND:
            baselines.setdefault(f"valid/{place[0]}", _Baseline(place[1], value))
    return baselines


def _compared(run: Run) -> dict[str, _Baseline]:
    """Returns what each final metric is compared with: its value before training, or else its baseline."""
    initial = {name: _Baseline("weights before training", value) for name, value in run.initial_scores().items()}
    return _baselines(run) | initial


def of_run(run: Run, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the header of a run's page."""
    steps, planned = run.num_steps, run.config.get("num_steps") or 0
    spent = goodput.breakdown(run)
    total = "" if (run.config.get("budget") or {}).get("hours") else f" of {planned:,}"
    status = f"Finished: {steps:,} steps" if run.is_finished else f"Not finished: {steps:,}{total} steps"
    if run.stopped_early and steps < planned:
        status = f"Stopped early: {steps:,} of {planned:,} steps"
    metrics, main, baselines = run.final_metrics(), main_metric(run), _compared(run)
    evaluation = run.final_evaluation()
    evaluated = [("Evaluated", f"step {evaluation['step']:,} of {steps:,}")] if evaluation else []
    others = [name for name in filter(panels.is_primary, metrics) if name != main]
    return {
        "status": status,
        "is_finished": run.is_finished,
        "main": main and _described(main, metrics[main], baselines.get(main)),
        "tiles": [_described(name, metrics[name], baselines.get(name)) for name in others[:_TILES]],
        "facts": [*evaluated, *_facts([spent["seconds"]] if spent else [], [environment]), *_used(run)],
    }


def result(folder: Path) -> str:
    """Returns the main metric of a run in its folder, with its baseline, for the log; "" if there is none."""
    if not (folder / "config.json").exists():
        return ""
    run = read_run(folder)
    main = main_metric(run)
    if main is None:
        return ""
    metric = _described(main, run.final_metrics()[main], _compared(run).get(main))
    return f"{main} {metric['value']}" + (f" ({metric['against']})" if "against" in metric else "")


def of_runs(
    runs: Mapping[str, Run],
    environments: Sequence[Mapping[str, Any]],
    summary: Summary | None,
    places: Mapping[str, Place],
    rest: int,
) -> dict[str, Any]:
    """Returns the header of the page of several runs: the main metric as the best mean over seeds.

    Args:
      runs: the runs, by name.
      environments: the environments of the runs that have one.
      summary: the summary of several seeds; None for other runs.
      places: the position of each run in a sweep. Runs with the same position differ in their seeds.
      rest: the number of runs without metrics.
    """
    done, total = sum(run.is_finished for run in runs.values()), len(runs) + rest
    main = next(filter(None, map(main_metric, reversed([*runs.values()]))), None)
    spent = [breakdown["seconds"] for breakdown in map(goodput.breakdown, runs.values()) if breakdown]
    return {
        "status": f"{done} of {total} runs finished" if done < total else f"All {total} runs finished",
        "is_finished": done == total,
        "main": main and _of_several(main, runs, summary, places),
        "tiles": [],
        "facts": _facts(spent, environments),
    }


def _of_several(
    main: str, runs: Mapping[str, Run], summary: Summary | None, places: Mapping[str, Place]
) -> dict[str, Any]:
    """Returns the main metric of the runs with the best mean, compared with their mean baseline if all have one."""
    values = {name: run.final_metrics().get(main, math.nan) for name, run in runs.items()}
    if summary:
        values |= {name: value for name, one in summary.seeds.items() if (value := one.get(main)) is not None}
    finite = {name: value for name, value in values.items() if math.isfinite(value)} or values
    groups: dict[Place | str, dict[str, float]] = {}
    for name, value in finite.items():
        groups.setdefault("seeds" if summary else places.get(name, name), {})[name] = value
    means = {place: sum(of_seeds.values()) / len(of_seeds) for place, of_seeds in groups.items()}
    best = max(means, key=lambda place: _sign(main) * means[place])
    names = list(groups[best])
    levels = [baselines[main] for baselines in (_compared(runs[name]) for name in names) if main in baselines]
    level = sum(baseline.value for baseline in levels) / max(len(levels), 1)
    baseline = _Baseline(levels[0].title, level) if len(levels) == len(names) else None
    return {**_described(main, means[best], baseline), "of": _source(best, groups[best])}


def _source(place: Place | str, values: Mapping[str, float]) -> str:
    """Returns the source of the mean of the runs at a place, with its interval."""
    if len(values) == 1:
        return f"best run: {next(iter(values))}"
    mean = paired.difference(np.array([*values.values()]), np.zeros(len(values)))
    row = f"best row: {place.row}, " if isinstance(place, Place) else ""
    interval = f"{paired.CONFIDENCE} % interval {number(mean.low)} to {number(mean.high)}"
    return f"{row}mean of {len(values)} seeds, {interval}"


def _described(name: str, value: float, baseline: _Baseline | None) -> dict[str, Any]:
    """Returns the title and value of a metric, compared with its baseline if there is one."""
    described = {**titles.of(name), "value": number(value)}
    if baseline is None or not math.isfinite(value):
        return described
    level = f"the {baseline.title} ({number(baseline.value)})"
    if number(value) == number(baseline.value):  # a difference of rounding is none
        return {**described, "against": f"equal to {level}", "is_better": False}
    against = f"{difference(value, baseline.value)} against {level}"
    return {**described, "against": against, "is_better": _sign(name) * (value - baseline.value) > 0}


def _sign(metric: str) -> int:
    return -1 if titles.direction(metric) == "lower" else 1


def _facts(seconds: Sequence[float], environments: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns duration, memory, devices, parameters and commit, if known. Equal values of several runs appear once."""
    usages = [one["usage"] for one in environments if one.get("usage")]
    training = [goodput.duration(sum(seconds))] if seconds else []
    if usages and len(usages) == len(seconds):
        total = goodput.duration(sum(one["seconds"] for one in usages))
        training = [f"{text} of training, {total} in all" for text in training]
    facts = {
        "Duration": training,
        "Memory": _memory(usages),
        "Device": [devices(one["devices"]) for one in environments if one.get("devices")],
        "Parameters": [f"{one['parameters']:,}" for one in environments if one.get("parameters")],
        "Commit": [one["commit"] for one in environments if one.get("commit")],
    }
    return [(name, ", ".join(dict.fromkeys(values))) for name, values in facts.items() if values]


def _memory(usages: Sequence[Mapping[str, int | float]]) -> list[str]:
    """Returns the largest peak memory of the processes and of the devices of runs."""
    peaks = {key: max((one.get(key, 0) for one in usages), default=0) for key in ("memory", "device_memory")}
    names = {"memory": "process", "device_memory": "device"}
    return [f"{peak / 2**30:.2f} GiB ({names[key]})" for key, peak in peaks.items() if peak]


def _used(run: Run) -> list[tuple[str, str]]:
    """Returns what a run with a budget has used, and the budget."""
    metrics = run.last_metrics()
    spent = {name.removeprefix(_USED): metrics[name][1] for name in metrics if name.startswith(_USED)}
    budget = {name: value for name, value in (run.config.get("budget") or {}).items() if value}
    texts = (", ".join(amount(name, values[name]) for name in values) for values in (spent, budget))
    return list(zip(("Used", "Budget"), texts, strict=True)) if spent else []


def devices(counts: Mapping[str, int]) -> str:
    """Formats the devices of a run. A platform equal to the kind of device is omitted.

    >>> devices({"TPU v5e (tpu)": 8}), devices({"cpu (cpu)": 1})
    ('8 × TPU v5e (tpu)', '1 × cpu')
    """
    kinds = {_REPEATED.sub(r"\1", kind): count for kind, count in counts.items()}
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
