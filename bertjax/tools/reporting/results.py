"""Reads the folder of a sweep, or of a config with several seeds: the table and the runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.tools.reporting.runs import read_object

_SWEEP, _TABLE, _SEEDS = "sweep.json", "table.json", "seeds.json"


class Place(NamedTuple):
    """The position of a run in a sweep: its row (the first, if several rows share the run) and its stage."""

    row: str
    stage: str


class Summary(NamedTuple):
    """The metrics of several seeds, by name, such as "valid/f1".

    Attributes:
      means: the means over the seeds.
      deviations: the sample standard deviations; None for a single seed.
      seeds: the metrics of each seed, by the name of its folder.
      note: the step of the evaluation of each seed, as a sentence.
    """

    means: Mapping[str, float | None]
    deviations: Mapping[str, float | None]
    seeds: Mapping[str, Mapping[str, float | None]]
    note: str


class Results(NamedTuple):
    """The results of a sweep or of several seeds.

    Attributes:
      title: the title of the page.
      table: the `header`, `rows`, `notes` and `charts` of a sweep's table; None if it is not written yet.
      summary: the summary of several seeds; None if it is not written yet.
      runs: the folders of the runs that have metrics, relative to the sweep's folder, in the order of the rows.
      places: the position of each run in a sweep.
      missing: the names of the runs without metrics.
    """

    title: str
    table: dict[str, Any] | None
    summary: Summary | None
    runs: Mapping[str, Path]
    places: Mapping[str, Place]
    missing: Sequence[str]


def has(folder: Path) -> bool:
    """Returns whether a folder belongs to a sweep or to several seeds."""
    return (folder / _SWEEP).exists() or (folder / _SEEDS).exists() or any(_seeds(folder))


def read(folder: Path) -> Results:
    """Reads the results of a sweep or of several seeds.

    Raises:
      UserError: if a file cannot be read, or no run has metrics yet.
    """
    is_sweep = (folder / _SWEEP).exists()
    sweep = read_object(folder / _SWEEP) if is_sweep else {}
    places = _places(folder, sweep)
    order = {name: number for number, name in enumerate(places)}
    folders = sorted((folder / "runs").glob("*")) if is_sweep else sorted(_seeds(folder), key=_number)
    members = sorted(folders, key=lambda path: order.get(path.name, len(order)))
    ready = [path for path in members if (path / "config.json").exists() and _has_metrics(path)]
    missing = [path.name for path in members if path not in ready]
    if not ready:
        got, fix = "no run with metrics", "wait until a run has logged metrics"
        raise UserError(
            f"--workdir={folder}", got=got, expected="a run with metrics in runs/ or in seed0, seed1, ...", fix=fix
        )
    runs = {path.name: path.relative_to(folder) for path in ready}
    if is_sweep:
        return Results(sweep.get("sweep", "sweep"), _of_sweep(folder), None, runs, places, missing)
    return Results("seeds", None, _of_seeds(folder), runs, places, missing)


def _places(folder: Path, sweep: Mapping[str, Any]) -> dict[str, Place]:
    """Returns the position of each run of a sweep by its name, in the order of rows and stages."""
    try:
        names: dict[str, list[str]] = {}
        for held, name in sweep.get("names", {}).items():
            names.setdefault(held.rpartition("-")[0], []).append(name)
        stages = [(row, *stage) for row, digests in sweep.get("rows", {}).items() for stage in digests.items()]
        places: dict[str, Place] = {}
        for row, stage, content in stages:
            for name in names.get(content, ()):
                places.setdefault(name, Place(row, stage))
    except AttributeError as error:
        expected, fix = "the rows and run names of a sweep", "start the same sweep again, which writes the file again"
        raise UserError(str(folder / _SWEEP), got=f"a malformed file ({error})", expected=expected, fix=fix) from error
    return places


def _seeds(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("seed*") if path.is_dir() and path.name[4:].isdecimal())


def _number(path: Path) -> int:
    return int(path.name[4:])


def _has_metrics(run: Path) -> bool:
    log = run / "metrics.jsonl"
    return log.exists() and log.stat().st_size > 0


def _of_sweep(folder: Path) -> dict[str, Any] | None:
    """Returns the table that `sweeps.tables.as_json` wrote; None if there is none yet."""
    path = folder / _TABLE
    if not path.exists():
        return None
    table = read_object(path)
    header, rows, notes = (table.get(key) for key in ("header", "rows", "notes"))
    if (
        not isinstance(header, list)
        or not isinstance(rows, list)
        or not isinstance(notes, list)
        or any(not isinstance(row, list) or len(row) != len(header) for row in rows)
    ):
        expected = "a header, rows of the same length, and notes"
        fix = "start the same sweep again, which writes the file again"
        raise UserError(str(path), got="an incomplete table", expected=expected, fix=fix)
    cells = [{"cells": row} for row in rows]
    charts = table.get("charts", [])  # none in tables of earlier versions
    return {"header": [{"title": name} for name in header], "rows": cells, "notes": notes, "charts": charts}


def _of_seeds(folder: Path) -> Summary | None:
    """Returns the metrics of each seed, with mean and standard deviation; None if there are none yet."""
    path = folder / _SEEDS
    if not path.exists():
        return None
    record = read_object(path)
    try:
        steps = record["steps"]
        metrics = record["metrics"]
        values = {
            f"seed{seed}": {name: one["seeds"][seed] for name, one in metrics.items() if seed in one["seeds"]}
            for seed in steps
        }
        listed = ", ".join(f"{step:,} (seed {seed})" for seed, step in steps.items())
        means, deviations = ({name: one[key] for name, one in metrics.items()} for key in ("mean", "std"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        expected, fix = "metrics by seed", "start the same command again, which writes the file again"
        raise UserError(str(path), got=f"a file without {error}", expected=expected, fix=fix) from error
    return Summary(means, deviations, values, f"The metrics are from steps {listed}.")
