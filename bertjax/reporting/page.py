"""A page of a run, of a sweep, or of several runs side by side; folders in, one file of HTML out that needs no network.

python -m bertjax.reporting.page runs/demo
python -m bertjax.reporting.page --output=both.html small=runs/small large=runs/large
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bertjax.errors import UserError, as_user_error
from bertjax.files import completed
from bertjax.reporting import configs, goodput, lengths, libraries, panels, results, samples
from bertjax.reporting.runs import Run, continued, named, read_object, read_run

NAME = "report.html"
_ENVIRONMENT, _ROWS = "environment.json", "rows.json"
_COLORS = 8  # of the style sheet; further runs get colors by a formula, as in the script
_TILES = 6
_MOST_COMPARED = 60  # runs in one page
_CUT = f"Of the runs the first {_MOST_COMPARED} are drawn and compared."


def write(folder: Path) -> Path:
    """Writes the page of a run, of a sweep or of several seeds into its folder, and returns where it is.

    Raises:
      UserError: a folder of neither, files in it that cannot be read, or the libraries of reports are not there.
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
    """The page of a run, with those of its own kind that it goes on from."""
    run = read_run(folder)
    chain = [one for one in continued(run) if one.config.get("experiment") == run.config.get("experiment")]
    names = [one.folder.resolve().name for one in chain]
    runs = {
        f"{n}. {name}" if len(chain) > 1 else name: phase
        for n, (name, phase) in enumerate(zip(names, panels.phases(chain), strict=True), 1)
    }
    shown, environment = samples.read(folder), _environment(folder)
    defaults = environment.get("defaults")
    sides = {"this run": run.config, **({"default": defaults} if defaults else {})}
    return _rendered(
        title=f"{run.config.get('experiment', 'run')}: {folder.resolve().name}",
        subtitle=f"{run.num_steps:,} of {run.config.get('num_steps') or 0:,} steps.",
        tiles=_tiles(run),
        runs=runs,
        shown=shown,
        figures=_figures(run),
        rows=_rows(folder),
        goodput=goodput.told(run),
        lengths=lengths.read(folder),
        config=_config(sides, "Marked: what is not as in the config's file." if defaults else "", only=False),
        environment=environment,
    )


def of_sweep(folder: Path) -> str:
    """The page of a sweep or of several seeds: its table, and its runs side by side."""
    found = results.read(folder)
    runs = {name: read_run(folder / place) for name, place in found.runs.items()}
    environments = [_environment(run.folder) for run in runs.values()]
    return _rendered(
        title=f"{found.title}: {folder.resolve().name}",
        subtitle=f"{len(runs)} runs with figures.",
        notices=[*found.notices, *([_CUT] if len(runs) > _MOST_COMPARED else [])],
        result=found.table,
        pages=[
            {"name": name, "href": f"{quote(place.as_posix())}/{NAME}"}
            for name, place in found.runs.items()
            if (folder / place / NAME).exists()
        ],
        **_compared(runs, found.places),
        environment=next((environment for environment in environments if environment), {}),
    )


def of_runs(runs: Mapping[str, Path]) -> str:
    """The page of several runs side by side."""
    read = {name: read_run(folder) for name, folder in runs.items()}
    return _rendered(title=" and ".join(read), subtitle=f"{len(read)} runs.", **_compared(read, {}), environment={})


def _compared(runs: Mapping[str, Run], places: Mapping[str, results.Place]) -> dict[str, Any]:
    """The curves of runs, those of a sweep by row and stage, and where their configs differ."""
    chosen = dict(list(runs.items())[:_MOST_COMPARED])
    said = "Marked: what differs between the runs." if len(runs) > 1 else ""
    return {
        "runs": {name: panels.Phase(run, (0.0, 0.0, 0.0), *places.get(name, ())) for name, run in chosen.items()},
        "config": _config({name: run.config for name, run in chosen.items()}, said, only=True),
    }


def _rendered(*, runs: Mapping[str, panels.Phase], **parts: Any) -> str:
    """The page, with a link to each part that there is."""
    drawn = panels.panels(runs)
    context = {**parts, "curves": _curves(drawn)}
    data: dict[str, Any] = {"curves": drawn} if drawn["panels"] else {}
    shown = parts.get("shown")
    if shown:
        context |= {"samples": shown.examples, "checkpoint": shown.checkpoint, "attention": bool(shown.attention)}
        context["matrices"] = [{**matrix, **matrix["values"]} for matrix in shown.matrices]
        data |= {"attention": list(shown.attention)} if shown.attention else {}
        data |= {"matrices": [matrix["values"] for matrix in shown.matrices]} if shown.matrices else {}
    if parts.get("lengths"):
        data["lengths"] = parts["lengths"]["data"]
        context["lengths"] = {
            **parts["lengths"],
            "runs": _colored([run["name"] for run in parts["lengths"]["data"]["runs"]]),
        }
    if parts.get("goodput"):
        rows = [[part["kind"], part["seconds"], part["percent"]] for part in parts["goodput"]["parts"]]
        context["goodput"] = {**parts["goodput"], "rows": [_row(row) for row in rows]}
    environment = parts["environment"]
    context["command"] = shlex.join(environment.get("command", ()))
    context["environment"] = _told(environment)
    order = (
        "table",
        "pages",
        "curves",
        "samples",
        "attention",
        "pictures",
        "figures",
        "rows",
        "goodput",
        "lengths",
        "config",
        "environment",
    )
    keys = {"table": "result", "pictures": "matrices"}
    return str(
        libraries.page_template().render(
            **context,
            parts=[part for part in order if context.get(keys.get(part, part))],
            data={name: libraries.trusted(samples.as_script(value)) for name, value in data.items()},
            style=libraries.source("page.css"),
            script=libraries.source("page.js"),
            library=libraries.vega(),
        )
    )


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
                "others": [number for number, panel in numbered if panel["stage"] == stage and not panel["primary"]],
            }
            for stage in dict.fromkeys(panel["stage"] for panel in drawn["panels"])
        ],
        "has_test": any(one["split"] == "test" for panel in drawn["panels"] for one in panel["series"]),
    }


def _colored(names: Sequence[str]) -> list[dict[str, str]]:
    """Each name with its color, which is the script's own."""
    return [
        {"name": name, "color": f"var(--c{n})" if n < _COLORS else f"hsl({n * 137.5 % 360} 55% 55%)"}
        for n, name in enumerate(names)
    ]


def _tiles(run: Run) -> list[dict[str, str]]:
    """The last held-out figures, the best known by the run's config first."""
    last = run.last_figures()
    best = (run.config.get("checkpoint") or {}).get("best_metric") or ""
    names = [name for name in last if name.startswith(("valid/", "test/")) and last[name][0] > 0]
    names.sort(key=lambda name: (name != best, name.endswith(("_low", "_high", "_p"))))
    return [{"name": f"{name} at {last[name][0]:,}", "value": f"{last[name][1]:.4g}"} for name in names[:_TILES]]


def _figures(run: Run) -> dict[str, Any]:
    """Each figure's first and last value."""
    rows = []
    for name, (step, value) in sorted(run.last_figures().items()):
        first = run.series(name)[0][1]
        rows.append(_row([name, f"{value:.6g}", f"{step:,}", f"{first:.6g}"], (None, value, step, first)))
    return {"header": ("figure", "last", "at step", "first"), "rows": rows, "numbers": (1, 2, 3)}


def _rows(folder: Path) -> dict[str, Any] | None:
    """The counts of the prepared rows, if the run has them."""
    path = folder / _ROWS
    if not path.exists():
        return None
    found = list(_leaves(read_object(path)))
    rows = [_row([name, f"{value:,}"], (None, value)) for name, value in found if isinstance(value, int)]
    return {"header": ("what", "number"), "rows": rows, "numbers": (1,)}


def _leaves(tree: Mapping[str, Any], names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The values of a nested mapping, each with its keys."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*names, name))
        else:
            yield ": ".join((*names, name)), value


def _row(cells: Sequence[Any], values: Sequence[Any] = (), differs: bool = False) -> dict[str, Any]:
    """A row of a table; `values` are what cells are sorted by, where that is not their text."""
    return {
        "cells": [{"text": cell, "value": values[place] if values else None} for place, cell in enumerate(cells)],
        "differs": differs,
    }


def _config(sides: Mapping[str, Mapping[str, Any]], said: str, *, only: bool) -> dict[str, Any]:
    rows = configs.compared(sides)
    differs = len(sides) > 1 and any(row.differs for row in rows)
    return {
        "header": ("key", *sides),
        "rows": [_row((row.key, *row.values), differs=row.differs and len(sides) > 1) for row in rows],
        "said": said,
        "differs": differs,
        "only": only and differs,
    }


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / _ENVIRONMENT
    return read_object(path) if path.exists() else {}


def _told(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What there is to say but the command and the config's defaults."""
    told = {name: value for name, value in environment.items() if name not in ("command", "defaults")}
    if isinstance(told.get("devices"), Mapping):
        told["devices"] = ", ".join(f"{count} × {kind}" for kind, count in told["devices"].items())
    return [
        (name, ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value))
        for name, value in told.items()
    ]


def main(arguments: Sequence[str]) -> None:
    """Writes the page that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="the page of several runs; one folder's stands in the folder")
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
