"""The table of a sweep as text, Markdown, CSV and LaTeX."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bertjax.scoring.paired import CONFIDENCE, Difference
from bertjax.sweeps.definition import Metric, Sweep
from bertjax.sweeps.results import Cell, Line, Results

_NOTHING = "-"
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
    value: float | None = None  # what rows are sorted by, where that is not the text


class Table(NamedTuple):
    """What all forms show.

    Attributes:
      header: of the columns.
      rows: entries of each.
      notes: sentences below.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[_Entry]]
    notes: Sequence[str]


def make(sweep: Sweep, results: Results) -> Table:
    """Lays out the results: for each metric mean ± deviation, the difference to the base row, the paper's figure.

    Columns that no row has anything for are left out.
    """
    header, columns = (
        ["row", "seeds"],
        [
            [_Entry(line.name) for line in results.lines],
            [_Entry(str(line.seeds)) for line in results.lines],
        ],
    )
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
    yield metric.name, [_figure(cell, digits) for cell in cells]
    if any(cell.apart for cell in cells):
        yield against, [_apart(cell.apart, digits) for cell in cells]
    if any(cell.paper is not None for cell in cells):
        yield "paper", [_number(cell.paper, lambda paper: f"{paper:g}") for cell in cells]


def _of_costs(lines: Sequence[Line]) -> Iterator[tuple[str, list[_Entry]]]:
    if any(line.cost.minutes is not None for line in lines):
        yield "minutes", [_number(line.cost.minutes, lambda minutes: f"{minutes:.1f}") for line in lines]
        yield "tokens", [_number(line.cost.tokens, _count) for line in lines]
        yield "parameters", [_number(line.cost.parameters, _count) for line in lines]


def _figure(cell: Cell, digits: int) -> _Entry:
    figure = cell.figure
    if figure is None:
        return _Entry(_NOTHING)
    text = f"{figure.mean:.{digits}f}" + ("" if figure.std is None else f" ± {figure.std:.{digits}f}")
    return _Entry(text, cell.is_best, figure.mean)


def _apart(apart: Difference | None, digits: int) -> _Entry:
    if apart is None:
        return _Entry(_NOTHING)
    text = f"{apart.mean:+.{digits}f}"
    if not math.isnan(apart.low):
        text += f" [{apart.low:+.{digits}f}, {apart.high:+.{digits}f}]" + (" ≈" if apart.covers_zero else "")
    return _Entry(text, value=apart.mean)


def _number(number: float | int | None, written: Callable[[float | int], str]) -> _Entry:
    return _Entry(_NOTHING) if number is None else _Entry(written(number), value=number)


def _count(number: float | int) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.0f}"


def _notes(sweep: Sweep) -> Iterator[str]:
    yield "Mean ± sample standard deviation over seeds; the best mean of a column is marked."
    yield (
        f"vs {sweep.base}: mean difference over the seeds that both rows have, with the {CONFIDENCE} % interval of the "
        "paired t-test; ≈ where it covers 0."
    )
    fixed = ", ".join(stage.name for stage in sweep.stages if stage.one_seed)
    if fixed:
        yield f"Run with the first seed only: {fixed}."
    yield (
        "Minutes of training and tokens (padding aside; of an encoder-decoder, the target's) are those of all stages, "
        f"shared ones counted in each row; parameters those of {sweep.stages[-1].name}."
    )
    yield f"Paper: {' '.join(sweep.source.split())}"


def as_text(table: Table) -> str:
    """Columns side by side, the best figures with a star, the notes below."""
    rows = [list(table.header), *([e.text + (" *" if e.is_best else "") for e in row] for row in table.rows)]
    # A star does not push its figure out of line.
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
    """A table of GitHub's Markdown, the best figures bold."""
    rows = _marked(table, lambda text: text.replace("|", r"\|").replace("*", r"\*"), "**{}**")
    lines = [" | ".join(table.header), " | ".join(["---", *["---:"] * (len(table.header) - 1)])]
    lines += [" | ".join(row) for row in rows]
    return "\n".join([*(f"| {line} |" for line in lines), "", *(note + "  " for note in table.notes)]) + "\n"


def as_json(table: Table) -> str:
    """What the page of the sweep shows: `header`, `notes`, and of each entry text, `best`, and what it is sorted by."""
    rows = [[{"text": e.text, "best": e.is_best, "value": _finite(e.value)} for e in row] for row in table.rows]
    content = {"header": list(table.header), "rows": rows, "notes": list(table.notes)}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _finite(value: float | int | None) -> float | int | None:
    """The value, or None, which is JSON, in place of a NaN or an infinity, which are not."""
    return value if value is not None and math.isfinite(value) else None


def as_latex(table: Table) -> str:
    """A tabular, which needs no package, the best figures bold, the notes as comments."""
    rows = _marked(table, _for_latex, r"\textbf{{{}}}")
    lines = [f"% {note}" for note in table.notes]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", r"\hline"]
    lines += [" & ".join(map(_for_latex, table.header)) + r" \\", r"\hline"]
    # An empty group, as \\ would take a [ or a * that begins the next row for its own.
    lines += [("{}" if row[0].startswith(("[", "*")) else "") + " & ".join(row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _marked(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    return [[bold.format(escape(e.text)) if e.is_best else escape(e.text) for e in row] for row in table.rows]


def _for_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def as_csv(sweep: Sweep, results: Results) -> str:
    """All numbers in full, a line for each row; empty where there is none."""
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
    figure, apart = cell.figure, cell.apart
    of_figure: list[float | int | None] = [figure.mean, figure.std, len(figure.seeds)] if figure else [None, None, 0]
    of_difference = [None if math.isnan(number) else number for number in apart] if apart else [None] * 4
    return [*of_figure, *of_difference, cell.paper]
