"""What a sweep, or a config with several seeds, left in its folder: its table and its runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.reporting.runs import read_object

_SWEEP, _TABLE, _SEEDS = "sweep.json", "table.json", "seeds.json"


class Place(NamedTuple):
    """Where a run belongs in a sweep: its row, of several the first, and its stage."""

    row: str
    stage: str


class Summary(NamedTuple):
    """The metrics of several seeds, each "valid/NAME".

    Attributes:
      means: over the seeds.
      deviations: sample standard deviations; None for a single seed.
      seeds: of each seed, by the name of its folder.
      note: which evaluation of each seed they are from.
    """

    means: Mapping[str, float | None]
    deviations: Mapping[str, float | None]
    seeds: Mapping[str, Mapping[str, float | None]]
    note: str


class Results(NamedTuple):
    """The results of a sweep or of several seeds.

    Attributes:
      title: of the page.
      table: `header`, `rows` and `numbers` of a sweep's table, and `notes` below; None if it is not written yet.
      summary: of several seeds; None if it is not written yet.
      runs: the folders of the runs that have metrics, relative to the folder of all; row by row.
      places: the place of each run in a sweep.
      missing: the names of the runs without metrics.
    """

    title: str
    table: dict[str, Any] | None
    summary: Summary | None
    runs: Mapping[str, Path]
    places: Mapping[str, Place]
    missing: Sequence[str]


def has(folder: Path) -> bool:
    """Whether a folder is that of a sweep or of several seeds."""
    return (folder / _SWEEP).exists() or (folder / _SEEDS).exists() or any(_seeds(folder))


def read(folder: Path) -> Results:
    """Reads them.

    Raises:
      UserError: a file that cannot be read, or no run that has figures yet.
    """
    is_sweep = (folder / _SWEEP).exists()
    sweep = read_object(folder / _SWEEP) if is_sweep else {}
    places = _places(folder, sweep)
    order = {name: number for number, name in enumerate(places)}
    found = sorted((folder / "runs").glob("*")) if is_sweep else sorted(_seeds(folder), key=_number)
    members = sorted(found, key=lambda path: order.get(path.name, len(order)))
    whole = [path for path in members if (path / "config.json").exists() and _has_figures(path)]
    missing = [path.name for path in members if path not in whole]
    if not whole:
        got, fix = "no run with figures", "wait for the first of them"
        raise UserError(f"--workdir={folder}", got=got, expected="runs in runs/ or seed0, ...", fix=fix)
    runs = {path.name: path.relative_to(folder) for path in whole}
    if is_sweep:
        return Results(sweep.get("sweep", "sweep"), _of_sweep(folder), None, runs, places, missing)
    return Results("seeds", None, _of_seeds(folder), runs, places, missing)


def _places(folder: Path, sweep: Mapping[str, Any]) -> dict[str, Place]:
    """Those of a sweep's runs by their names, row by row, each stage after the one before."""
    try:
        names: dict[str, list[str]] = {}
        for held, name in sweep.get("names", {}).items():
            names.setdefault(held.rpartition("-")[0], []).append(name)
        stages = [(row, *stage) for row, each in sweep.get("rows", {}).items() for stage in each.items()]
        found: dict[str, Place] = {}
        for row, stage, content in stages:
            for name in names.get(content, ()):
                found.setdefault(name, Place(row, stage))
    except AttributeError as error:
        expected, fix = "rows and names of runs", "start the same sweep again, which writes it anew"
        raise UserError(str(folder / _SWEEP), got=f"{error}", expected=expected, fix=fix) from error
    return found


def _seeds(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("seed*") if path.is_dir() and path.name[4:].isdecimal())


def _number(path: Path) -> int:
    return int(path.name[4:])


def _has_figures(run: Path) -> bool:
    log = run / "metrics.jsonl"
    return log.exists() and log.stat().st_size > 0


def _of_sweep(folder: Path) -> dict[str, Any] | None:
    """The table as `sweeps.tables.as_json` has written it."""
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
        expected, fix = "a header, rows as long as it, and notes", "start the same sweep again, which writes it anew"
        raise UserError(str(path), got="no whole table", expected=expected, fix=fix)
    cells = [{"cells": row} for row in rows]
    return {"header": [{"title": name} for name in header], "rows": cells, "notes": notes}


def _of_seeds(folder: Path) -> Summary | None:
    """The metrics by seed, with mean and deviation."""
    path = folder / _SEEDS
    if not path.exists():
        return None
    found = read_object(path)
    try:
        steps, metrics = found["steps"], found["metrics"]
        values = {
            f"seed{seed}": {name: one["seeds"][seed] for name, one in metrics.items() if seed in one["seeds"]}
            for seed in steps
        }
        told = ", ".join(f"seed {seed}: {step:,}" for seed, step in steps.items())
        means, deviations = ({name: one[key] for name, one in metrics.items()} for key in ("mean", "std"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        expected, fix = "metrics by seed", "start the same command again, which writes it anew"
        raise UserError(str(path), got=f"no {error}", expected=expected, fix=fix) from error
    return Summary(means, deviations, values, f"At steps {told}.")
