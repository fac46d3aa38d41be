"""What a sweep, or a config with several seeds, left in its folder: its table and its runs."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.reporting.runs import read_object

_SWEEP, _TABLE, _SEEDS = "sweep.json", "table.csv", "seeds.json"
# The columns that each metric has in `table.csv`, behind its name.
_PARTS = ("mean", "std", "seeds", "difference", "low", "high", "p", "paper")
_NOTHING = "–"


class Results(NamedTuple):
    """What there is to show.

    Attributes:
      title: of the page.
      table: `header`, `rows` and `numbers` of a table, and `notes` below; None if it is not there yet.
      runs: the folders of those that have figures, within that of all.
      notices: what is missing.
    """

    title: str
    table: dict[str, Any] | None
    runs: Mapping[str, Path]
    notices: Sequence[str]


def has(folder: Path) -> bool:
    """Whether a folder is that of a sweep or of several seeds."""
    return (folder / _SWEEP).exists() or (folder / _SEEDS).exists() or any(_seeds(folder))


def read(folder: Path) -> Results:
    """Reads them.

    Raises:
      UserError: a file that cannot be read, or no run that has figures yet.
    """
    is_sweep = (folder / _SWEEP).exists()
    members = sorted(path for path in (folder / "runs").glob("*")) if is_sweep else sorted(_seeds(folder), key=_number)
    whole = [path for path in members if (path / "config.json").exists() and _has_figures(path)]
    missing = [path.name for path in members if path not in whole]
    if not whole:
        got, fix = "no run with figures", "wait for the first of them"
        raise UserError(f"--workdir={folder}", got=got, expected="runs in runs/ or seed0, ...", fix=fix)
    title = read_object(folder / _SWEEP).get("sweep", "sweep") if is_sweep else "seeds"
    table = _of_sweep(folder) if is_sweep else _of_seeds(folder)
    notices = [f"Without figures as yet: {', '.join(missing)}."] if missing else []
    notices += [] if table else ["The table is made when all runs are done."]
    return Results(title, table, {path.name: path.relative_to(folder) for path in whole}, notices)


def _seeds(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("seed*") if path.is_dir() and path.name[4:].isdecimal())


def _number(path: Path) -> int:
    return int(path.name[4:])


def _has_figures(run: Path) -> bool:
    log = run / "metrics.jsonl"
    return log.exists() and log.stat().st_size > 0


def _of_sweep(folder: Path) -> dict[str, Any] | None:
    """The table in full numbers, with the notes that stand below it as Markdown."""
    path = folder / _TABLE
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    names = list(lines[0]) if lines else []
    metrics = [name.removesuffix(" mean") for name in names if name.endswith(" mean")]
    if not metrics or any(None in line or None in line.values() for line in lines):
        fix = "start the same sweep again, which writes it anew"
        raise UserError(str(path), got="no whole table", expected="a row of numbers for each row of the sweep", fix=fix)
    columns = [column for metric in metrics for column in _of_metric(metric, lines)]
    columns += [(name, [_plain(line.get(name, "")) for line in lines]) for name in ("minutes", "tokens", "parameters")]
    columns = [column for column in columns if any(cell["text"] != _NOTHING for cell in column[1])]
    rows = [
        {"cells": [{"text": line["row"]}, *(cells[place] for _, cells in columns)]} for place, line in enumerate(lines)
    ]
    header = ("row", *(name for name, _ in columns))
    return {"header": header, "rows": rows, "numbers": range(1, len(header)), "notes": list(_notes(folder))}


def _of_metric(metric: str, lines: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Mean ± deviation; the difference to the base row with its interval; the paper's figure."""
    found = [{part: _float(line.get(f"{metric} {part}", "")) for part in _PARTS} for line in lines]
    yield metric, [_cell(one["mean"], "" if one["std"] is None else f" ± {one['std']:.3g}") for one in found]
    ends = ("" if one["low"] is None else f" [{one['low']:+.3g}, {one['high']:+.3g}]" for one in found)
    yield "difference", [_cell(one["difference"], end, "+.3g") for one, end in zip(found, ends, strict=True)]
    yield "paper", [_cell(one["paper"]) for one in found]


def _cell(value: float | None, more: str = "", form: str = ".4g") -> dict[str, Any]:
    if value is None or math.isnan(value):
        return {"text": _NOTHING, "value": ""}
    return {"text": f"{value:{form}}{more}", "value": value}


def _plain(text: str) -> dict[str, Any]:
    value = _float(text)
    return _cell(value) if value is None or value < 1e4 else {"text": f"{value:,.0f}", "value": value}


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _notes(folder: Path) -> Iterator[str]:
    path = folder / "table.md"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return (line.strip() for line in lines if line.strip() and not line.startswith("|"))


def _of_seeds(folder: Path) -> dict[str, Any] | None:
    """Each figure by seed, with mean and deviation."""
    path = folder / _SEEDS
    if not path.exists():
        return None
    found = read_object(path)
    try:
        seeds, metrics = list(found["steps"]), found["metrics"]
        rows = [
            {
                "cells": [
                    {"text": name},
                    _cell(one["mean"]),
                    _cell(one["std"]),
                    *(_cell(one["seeds"].get(seed)) for seed in seeds),
                ]
            }
            for name, one in metrics.items()
        ]
    except (KeyError, TypeError, AttributeError) as error:
        expected, fix = "figures by seed", "start the same command again, which writes it anew"
        raise UserError(str(path), got=f"no {error}", expected=expected, fix=fix) from error
    header = ("figure", "mean", "deviation", *(f"seed {seed}" for seed in seeds))
    steps = ", ".join(f"seed {seed}: {step:,}" for seed, step in found["steps"].items())
    return {"header": header, "rows": rows, "numbers": range(1, len(header)), "notes": [f"At steps {steps}."]}
