"""Writes the report page of a run, of a sweep, or of several runs: one HTML file that needs no network.

python -m bertjax.tools.reporting.page runs/demo
python -m bertjax.tools.reporting.page --output=both.html small=runs/small large=runs/large
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from bertjax.errors import UserError, as_user_error
from bertjax.files import completed
from bertjax.tools.reporting import (
    comparison,
    configs,
    differences,
    drawing,
    errors,
    goodput,
    libraries,
    pairs,
    panels,
    results,
    samples,
    titles,
    tradeoff,
    verdict,
)
from bertjax.tools.reporting.runs import ROWS, Run, continued, named, read_object, read_run
from bertjax.tools.reporting.tables import row, table

NAME = "report.html"
_ENVIRONMENT = "environment.json"
_COLORS = 8  # in the style sheet; the colors of further runs are computed, as in the script
_MOST_COMPARED = 60  # runs in one page
_SECTIONS = {
    "predictions": "Predictions",
    "results": "Results",
    "comparison": "Final metrics",
    "curves": "Curves",
    "pairs": "Minimal pairs",
    "differences": "Different predictions",
    "errors": "Errors",
    "samples": "Samples",
    "attention": "Attention",
    "matrices": "Pictures",
    "metrics": "Metrics",
    "rows": "Rows",
    "goodput": "Time",
    "config": "Config",
    "environment": "Environment",
}


def write(folder: Path) -> Path:
    """Writes the page of a run, of a sweep or of several seeds into its folder, and returns the path.

    Raises:
      UserError: if the folder is none of these, a file in it cannot be read, or the extra `report` is not installed.
    """
    path = folder / NAME
    if (folder / "config.json").exists() or (folder / "metrics.jsonl").exists():
        text = of_run(folder)
    elif results.has(folder):
        text = of_sweep(folder)
    else:
        raise UserError(
            f"--workdir={folder}",
            got="neither config.json with metrics.jsonl nor sweep.json nor seeds"
            if folder.exists()
            else "no such folder",
            expected="the folder of a run, of a sweep or of several seeds",
            fix="correct the path, or train first",
        )
    with completed(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def of_run(folder: Path) -> str:
    """Returns the page of a run. It includes the curves of runs of the same experiment that the run starts from."""
    run = read_run(folder)
    chain = continued(run)
    names = [one.folder.resolve().name for one in chain]
    runs = {
        f"{n}. {name}" if len(chain) > 1 else name: phase
        for n, (name, phase) in enumerate(zip(names, panels.phases(chain), strict=True), 1)
    }
    environment = _environment(folder)
    defaults = environment.get("defaults")
    sides = {"this run": run.config, **({"default": defaults} if defaults else {})}
    return _rendered(
        title=f"{run.config.get('experiment', 'run')}: {folder.resolve().name}",
        verdict=verdict.of_run(run, environment),
        runs=runs,
        errors=errors.read(folder),
        samples=samples.read(folder),
        pairs=pairs.bars(run.final_metrics()),
        metrics=_metrics(run),
        rows=_rows(folder),
        goodput=goodput.breakdown(run),
        config=_config(sides, "Keys that differ from the config's file", environment.get("command", ())),
        environment=environment,
    )


def of_sweep(folder: Path) -> str:
    """Returns the page of a sweep or of several seeds: its table and a comparison of its runs."""
    sweep = results.read(folder)
    runs = {name: read_run(folder / place) for name, place in sweep.runs.items()}
    pages = {name: place for name, place in sweep.runs.items() if (folder / place / NAME).exists()}
    return _compared(
        runs,
        title=f"{sweep.title}: {folder.resolve().name}",
        table=sweep.table and {**sweep.table, "charts": list(map(tradeoff.chart, sweep.table["charts"]))},
        summary=sweep.summary,
        places=sweep.places,
        links={name: f"{quote(place.as_posix())}/{NAME}" for name, place in pages.items()},
        missing=sweep.missing,
    )


def of_evaluation(
    model: Path, record: Mapping[str, Any], predictions: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    """Returns the page of an evaluation: its metrics, and the error analysis of its last split.

    Args:
      model: the folder of the run or of the published weights.
      record: the metrics, as "SPLIT/NAME".
      predictions: the predictions of each split, by descending loss; empty for a task without training.
    """
    metrics = {name: value for name, value in record.items() if isinstance(value, float | int)}
    rows = []
    for name, value in metrics.items():
        split, _, metric = name.partition("/")
        rows.append(row((titles.title(metric), split, f"{value:.6g}", name), (None, None, value, None)))
    split, examples = list(predictions.items())[-1] if predictions else ("", ())
    return _rendered(
        title=f"Evaluation of {model.resolve().name}",
        verdict={"status": f"{len(metrics)} metrics", "is_finished": True},
        runs={},
        metrics=table(("metric", "split", "value", "key"), rows),
        errors=errors.analysis(examples, split) if examples else None,
        environment={},
    )


def of_predictions(records: Mapping[str, Any], count: int, notices: Sequence[str]) -> str:
    """Returns the page of predictions: a table of their records."""
    status = {"status": f"{count:,} predictions", "is_finished": True}
    return _rendered(title="Predictions", verdict=status, notices=notices, runs={}, predictions=records, environment={})


def of_runs(runs: Mapping[str, Path]) -> str:
    """Returns the page that compares several runs; of two, also the examples on which their predictions differ."""
    unlike = differences.of_runs(runs) if len(runs) == 2 else None
    read = {name: read_run(folder) for name, folder in runs.items()}
    return _compared(read, title=" and ".join(runs), unlike=unlike)


def _compared(
    runs: Mapping[str, Run],
    *,
    title: str,
    table: Mapping[str, Any] | None = None,
    summary: results.Summary | None = None,
    places: Mapping[str, results.Place] = MappingProxyType({}),
    links: Mapping[str, str] = MappingProxyType({}),
    missing: Sequence[str] = (),
    unlike: Mapping[str, Any] | None = None,
) -> str:
    """Returns the page of several runs: final metrics, curves by row and stage, and differing config keys."""
    chosen = dict(list(runs.items())[:_MOST_COMPARED])
    notices = [f"No metrics yet: {', '.join(missing)}."] if missing else []
    if len(runs) > len(chosen):
        notices.append(f"The curves and configs are those of the first {_MOST_COMPARED} runs.")
    row_of_all = ("seeds",) if summary else ()  # of which the charts draw the mean
    environments = [environment for run in runs.values() if (environment := _environment(run.folder))]
    return _rendered(
        title=title,
        verdict=verdict.of_runs(runs, environments, summary, places, len(missing)),
        notices=notices,
        results=table,
        differences=unlike,
        comparison=[_of_seeds(runs, summary, links)] if summary else list(_of_stages(runs, places, links)),
        runs={name: panels.Phase(run, (0.0, 0.0, 0.0), *places.get(name, row_of_all)) for name, run in chosen.items()},
        config=_config({name: run.config for name, run in chosen.items()}, "Keys that differ between the runs"),
        environment=_shared(environments),
    )


def _of_seeds(runs: Mapping[str, Run], summary: results.Summary, links: Mapping[str, str]) -> dict[str, Any]:
    """Returns the final metrics of seeds, with differences to their mean."""
    main = verdict.main_metric(next(iter(runs.values())))
    metrics = comparison.table(summary.seeds, summary.means, main=main, links=links, deviations=summary.deviations)
    return {**metrics, "id": "final-0", "note": f"Differences are to the mean. {summary.note}"}


def _of_stages(
    runs: Mapping[str, Run], places: Mapping[str, results.Place], links: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yields the final metrics of the runs of each stage, with differences to the first run."""
    stages: dict[str, dict[str, Run]] = {}
    for name, run in runs.items():
        stages.setdefault(places[name].stage if name in places else "", {})[name] = run
    for number, (stage, members) in enumerate(stages.items()):
        first = next(iter(members))
        rows = {name: run.final_metrics() for name, run in members.items()}
        metrics = comparison.table(rows, rows[first], main=verdict.main_metric(members[first]), links=links)
        note = f"Differences are to {first}. Those of single runs include the variation between seeds."
        note = note if len(members) > 1 else ""
        yield {**metrics, "id": f"final-{number}", "stage": stage, "note": note}


def _rendered(*, runs: Mapping[str, panels.Phase], **parts: Any) -> str:
    """Returns the page, with a link to each section."""
    drawn = panels.panels(runs)
    context = {**parts, "curves": _curves(drawn)}
    data: dict[str, Any] = {"themes": {"light": drawing.config(drawing.LIGHT), "dark": drawing.config(drawing.DARK)}}
    data |= {"curves": drawn} if drawn["panels"] else {}
    data |= {"tradeoffs": charts} if (charts := (parts.get("results") or {}).get("charts")) else {}
    data |= {"records": more} if (more := (parts.get("predictions") or {}).get("more")) else {}
    if content := parts.get("samples"):
        context |= {"samples": content.examples, "checkpoint": content.checkpoint, "attention": bool(content.attention)}
        context["matrices"] = [{**matrix, "ends": _ends(matrix["values"])} for matrix in content.matrices]
        data |= {"attention": list(content.attention)} if content.attention else {}
        matrices = [{**matrix["values"], "ends": _ends(matrix["values"])} for matrix in content.matrices]
        data |= {"matrices": matrices} if matrices else {}
    environment = parts["environment"]
    context["command"] = shlex.join(environment.get("command", ()))
    context["environment"] = _environment_facts(environment)
    return str(
        libraries.template("page.html").render(
            **context,
            sections={name: title for name, title in _SECTIONS.items() if context.get(name)},
            data={name: libraries.trusted(samples.as_script(value)) for name, value in data.items()},
            style=libraries.source("page.css"),
            script=libraries.source("page.js"),
            library=libraries.vega(),
        )
    )


def _ends(values: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the ends of the colors of a matrix. Those of values of both signs are symmetric, so that 0 is blank."""
    low, high = values["low"], values["high"]
    farthest = max(-low, high)
    return (-farthest, farthest) if low < 0 < high else (low, high)


def _curves(drawn: Mapping[str, Any]) -> dict[str, Any] | None:
    if not drawn["panels"]:
        return None
    numbered = list(enumerate(drawn["panels"]))
    return {
        "rows": _colored(drawn["rows"]),
        "several": len(drawn["runs"]) > 1,
        "axes": [axis for axis in ("tokens", "hours") if any(axis in run["axes"] for run in drawn["runs"])],
        "stages": [
            {
                "name": stage,
                "primary": [number for number, panel in numbered if panel["stage"] == stage and panel["primary"]],
                "others": sorted(
                    (number for number, panel in numbered if panel["stage"] == stage and not panel["primary"]),
                    key=lambda number: drawn["panels"][number]["title"] != titles.title("learning_rate"),
                ),
            }
            for stage in dict.fromkeys(panel["stage"] for panel in drawn["panels"])
        ],
        "has_test": any(one["split"] == "test" for panel in drawn["panels"] for one in panel["series"]),
    }


def _colored(names: Sequence[str]) -> list[dict[str, str]]:
    """Returns each name with its color, which equals the color in the charts."""
    return [
        {"name": name, "color": f"var(--c{n})" if n < _COLORS else f"hsl({n * 137.5 % 360} 55% 55%)"}
        for n, name in enumerate(names)
    ]


def _metrics(run: Run) -> dict[str, Any]:
    """Returns the first and the last value of each metric."""
    last = run.last_metrics()
    rows = []
    metrics = {name.partition("/")[2] for name in last}
    levels = run.levels()
    for name, (step, value) in sorted(last.items()):
        split, _, metric = name.partition("/")
        first = run.series(name)[0][1]
        level = titles.baseline(metric, metrics) if metric in levels else None
        title = f"{titles.title(level[0])}, {level[1]}" if level else titles.title(metric)
        texts = [title, titles.SPLITS.get(split, split), f"{value:.6g}", f"{step:,}", f"{first:.6g}", name]
        rows.append(row(texts, (None, None, value, step, first, None)))
    return table(("metric", "split", "last", "at step", "first", "key"), rows)


def _rows(folder: Path) -> dict[str, Any] | None:
    """Returns the counts of the prepared rows; None if the run has none."""
    path = folder / ROWS
    if not path.exists():
        return None
    rows = []
    for name, value in _leaves(read_object(path)):
        if isinstance(value, (int, float)):
            rows.append(row([name, f"{value:,}"], (None, value)))
        elif isinstance(value, list):
            rows += [row([name, str(sample)], (None, None)) for sample in value]
    return table(("what", "number"), rows)


def _leaves(tree: Mapping[str, Any], names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields the values of a nested mapping, each with its keys."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*names, name))
        else:
            yield ": ".join((*names, name)), value


def _config(sides: Mapping[str, Mapping[str, Any]], note: str, command: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the keys that differ between configs, those that the `command` does not set apart, and all keys."""
    keys = configs.compared(sides)
    by_command = set(configs.set_keys(command))
    differing = [key for key in keys if key.differs]
    derived = [key for key in differing if by_command and key.key not in by_command]
    note = f"{note}: {len(differing)} of {len(keys)}." if len(sides) > 1 else ""
    lists = {"rows": keys, "differing": [key for key in differing if key not in derived], "derived": derived}
    tables_of = {name: [row((key.key, *key.values)) for key in members] for name, members in lists.items()}
    return {**table(("key", *sides), ()), **tables_of, "note": note}


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / _ENVIRONMENT
    return read_object(path) if path.exists() else {}


def _shared(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the values that all environments share."""
    first = environments[0] if environments else {}
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in environments)}


def _environment_facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the names and values of an environment, without those that other parts of the page show."""
    facts = {name: value for name, value in environment.items() if name not in ("command", "defaults", "usage")}
    if isinstance(facts.get("devices"), Mapping):
        facts["devices"] = verdict.devices(facts["devices"])
    return [
        (name, ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value))
        for name, value in facts.items()
    ]


def main(arguments: Sequence[str]) -> None:
    """Writes the page that the command line requests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--output", type=Path, help="output file of a comparison; by default, each folder gets its own page"
    )
    parser.add_argument("folders", nargs="+", metavar="[NAME=]FOLDER")
    args = parser.parse_args(arguments)
    try:
        if args.output is None:
            for folder in args.folders:
                print(write(Path(folder)))
            return
        text = of_runs(named(args.folders))
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with completed(args.output) as partial:
            partial.write_text(text, encoding="utf-8")
    except (UserError, OSError) as error:
        sys.exit(f"error: {as_user_error(error, str(args.output)) or error}")


if __name__ == "__main__":
    main(sys.argv[1:])
