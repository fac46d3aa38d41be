"""Formats the table of a sweep as text, Markdown, CSV, LaTeX and JSON."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.scoring.paired import CONFIDENCE, Difference, difference
from bertjax.tools.sweeps.definition import Metric, Sweep
from bertjax.tools.sweeps.results import Cell, Line, Results

_MISSING = "-"
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "−": "$-$",
    "<": "$<$",
    ">": "$>$",
    "|": r"$|$",
    "·": r"$\cdot$",
    **{character: "\\" + character for character in "&%$#_{}"},
}


class _Entry(NamedTuple):
    text: str
    is_best: bool = False
    value: float | None = None  # the sort key of the row, if it is not the text


class Table(NamedTuple):
    """The contents of a table in all formats.

    Attributes:
      header: the headings of the columns.
      rows: the entries of each row.
      notes: sentences below the table.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[_Entry]]
    notes: Sequence[str]


def make(sweep: Sweep, results: Results) -> Table:
    """Lays out the results. A metric has mean ± deviation, the difference to the base row, and the published score.

    Empty columns are left out.
    """
    header = ["row", "seeds"]
    columns = [[_Entry(line.name) for line in results.lines], [_Entry(str(line.seeds)) for line in results.lines]]
    for number, metric in enumerate(sweep.metrics):
        cells = [line.cells[number] for line in results.lines]
        for name, column in _of_metric(metric, cells, f"vs {sweep.base}"):
            header.append(name)
            columns.append(column)
    for name, column in _of_costs(results.lines):
        header.append(name)
        columns.append(column)
    return Table(header, list(zip(*columns, strict=True)), list(_notes(sweep)))


def _of_metric(metric: Metric, cells: Sequence[Cell], against: str) -> Iterator[tuple[str, list[_Entry]]]:
    digits = metric.digits
    yield metric.name, [_score(cell, digits) for cell in cells]
    if any(cell.difference for cell in cells):
        yield against, [_difference(cell.difference, digits) for cell in cells]
    if any(cell.paper is not None for cell in cells):
        yield "paper", [_number(cell.paper, lambda paper: f"{paper:g}") for cell in cells]


def _of_costs(lines: Sequence[Line]) -> Iterator[tuple[str, list[_Entry]]]:
    if any(line.cost.minutes is not None for line in lines):
        yield "minutes", [_number(line.cost.minutes, lambda minutes: f"{minutes:.1f}") for line in lines]
        yield "tokens", [_number(line.cost.tokens, _count) for line in lines]
        yield "parameters", [_number(line.cost.parameters, _count) for line in lines]


def _score(cell: Cell, digits: int) -> _Entry:
    score = cell.score
    if score is None:
        return _Entry(_MISSING)
    text = f"{score.mean:.{digits}f}" + ("" if score.std is None else f" ± {score.std:.{digits}f}")
    if cell.interval:
        text += " [{:.{digits}f}, {:.{digits}f}]".format(*cell.interval, digits=digits)
    return _Entry(text, cell.is_best, score.mean)


def _difference(difference: Difference | None, digits: int) -> _Entry:
    if difference is None:
        return _Entry(_MISSING)
    text = f"{difference.mean:+.{digits}f}"
    if not math.isnan(difference.low):
        text += f" [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]" + (
            " ≈" if difference.covers_zero else ""
        )
    return _Entry(text, value=difference.mean)


def _number(number: float | int | None, written: Callable[[float | int], str]) -> _Entry:
    return _Entry(_MISSING) if number is None else _Entry(written(number), value=number)


def _count(number: float | int) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.0f}"


def _notes(sweep: Sweep) -> Iterator[str]:
    yield (
        "Mean ± sample standard deviation over seeds; the best mean of a column is marked. A score of one seed has the "
        f"{CONFIDENCE} % interval over examples, if the run records one."
    )
    yield (
        f"vs {sweep.base}: mean difference over the seeds that both rows have, with the {CONFIDENCE} % interval of the "
        "paired t-test; ≈ where it covers 0."
    )
    fixed = ", ".join(stage.name for stage in sweep.stages if stage.one_seed)
    if fixed:
        yield f"Run with the first seed only: {fixed}."
    yield (
        "Training minutes and tokens (without padding; for an encoder-decoder those of the target) cover all stages; "
        f"shared stages count in each row. Parameters are those of {sweep.stages[-1].name}."
    )
    if sweep.source:
        yield f"Paper: {' '.join(sweep.source.split())}"


def as_text(table: Table) -> str:
    """Formats columns side by side, with a star at the best scores and the notes below."""
    rows = [list(table.header), *([e.text + (" *" if e.is_best else "") for e in row] for row in table.rows)]
    # Aligns the numbers of starred and unstarred entries.
    starred = [any(row[i].is_best for row in table.rows) for i in range(len(table.header))]
    for row in rows:
        row[:] = [
            cell + "  " if star and not cell.endswith(" *") else cell for cell, star in zip(row, starred, strict=True)
        ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", *table.notes]) + "\n"


def as_markdown(table: Table) -> str:
    """Formats GitHub's Markdown, with the best scores in bold."""
    rows = _marked(table, lambda text: text.replace("|", r"\|").replace("*", r"\*"), "**{}**")
    lines = [" | ".join(table.header), " | ".join(["---", *["---:"] * (len(table.header) - 1)])]
    lines += [" | ".join(row) for row in rows]
    return "\n".join([*(f"| {line} |" for line in lines), "", *(note + "  " for note in table.notes)]) + "\n"


def tradeoffs(sweep: Sweep, results: Results) -> Iterator[dict[str, Any]]:
    """Yields the points of a chart for each metric other than the sweep's `cost`, with 95 % intervals on both axes."""
    names = [metric.name for metric in sweep.metrics]
    for number, name in enumerate(names):
        if not sweep.cost or name == sweep.cost:
            continue
        points = []
        for line in results.lines:
            cost = line.cells[names.index(sweep.cost)]
            score = line.cells[number]
            if cost.score and score.score:
                points.append({"row": line.name, **_with_ends("cost", cost), **_with_ends("score", score)})
        yield {"cost": sweep.cost, "score": name, "points": points}


def _with_ends(axis: str, cell: Cell) -> dict[str, float | None]:
    """Returns a mean, and the ends of its 95 % interval over seeds or, of one seed, over examples."""
    assert cell.score
    values = np.array(list(cell.score.seeds.values()))
    mean, low, high, _ = difference(values, np.zeros(len(values)))
    low, high = cell.interval or ((mean, mean) if math.isnan(low) else (low, high))
    return {axis: _finite(mean), f"{axis}_low": _finite(low), f"{axis}_high": _finite(high)}


def as_json(table: Table, charts: Sequence[Mapping[str, Any]]) -> str:
    """Formats JSON for the sweep's page.

    It has the `header`, the `notes`, for each entry its text, `best` and sort key, and the `charts` of `tradeoffs`.
    """
    rows = [[{"text": e.text, "best": e.is_best, "value": _finite(e.value)} for e in row] for row in table.rows]
    content = {"header": list(table.header), "rows": rows, "notes": list(table.notes), "charts": charts}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _finite(value: float | int | None) -> float | int | None:
    """Returns the value, or None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def as_latex(table: Table) -> str:
    """Formats a LaTeX tabular, which needs no package, with the best scores in bold and the notes as comments."""
    rows = _marked(table, _for_latex, r"\textbf{{{}}}")
    lines = [f"% {note}" for note in table.notes]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", r"\hline"]
    lines += [" & ".join(map(_for_latex, table.header)) + r" \\", r"\hline"]
    # The empty group stops \\ from parsing a [ or a * at the beginning of the next row as its argument.
    lines += [("{}" if row[0].startswith(("[", "*")) else "") + " & ".join(row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _marked(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    return [[bold.format(escape(e.text)) if e.is_best else escape(e.text) for e in row] for row in table.rows]


def _for_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def as_csv(sweep: Sweep, results: Results) -> str:
    """Formats all numbers in full precision, with a line per row; missing numbers are empty."""
    parts = ("mean", "std", "seeds", "difference", "low", "high", "p", "paper")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [f"{metric.name} {part}" for metric in sweep.metrics for part in parts]
    writer.writerow(["row", *names, "minutes", "tokens", "parameters"])
    for line in results.lines:
        numbers = [number for cell in line.cells for number in _numbers(cell)]
        numbers += [line.cost.minutes, line.cost.tokens, line.cost.parameters]
        writer.writerow([line.name, *("" if number is None else number for number in numbers)])
    return file.getvalue()


def _numbers(cell: Cell) -> list[float | int | None]:
    score = cell.score
    difference = cell.difference
    of_score: list[float | int | None] = [score.mean, score.std, len(score.seeds)] if score else [None, None, 0]
    of_difference = [None if math.isnan(number) else number for number in difference] if difference else [None] * 4
    return [*of_score, *of_difference, cell.paper]
