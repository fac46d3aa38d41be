"""The final metrics of several runs as a table, with differences and the best value of each metric."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.tools.reporting import panels, titles

_NOTHING = "–"
_DIGITS = 4


def table(
    rows: Mapping[str, Mapping[str, float | None]],
    reference: Mapping[str, float | None],
    *,
    main: str | None = None,
    links: Mapping[str, str],
    deviations: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """Lays out the metrics: a row for each run, a column for each metric.

    Args:
      rows: the metrics of each run, such as "valid/f1".
      reference: the metrics that differences are computed from.
      main: the metric of the first column.
      links: the addresses of the pages of runs.
      deviations: standard deviations, if the reference is a mean. Mean and deviation are then the first row.
    """
    names = _columns(rows, main)
    best = {name: _best(name, [row.get(name) for row in rows.values()]) for name in names}
    cells = [] if deviations is None else [_means(names, reference, deviations)]
    for run, row in rows.items():
        first = {"text": run, "href": links.get(run)}
        cells.append([first, *(_cell(row.get(name), reference.get(name), best[name]) for name in names)])
    return {"header": [{"title": "run"}, *map(titles.of, names)], "rows": [{"cells": row} for row in cells]}


def _columns(rows: Mapping[str, Mapping[str, float | None]], main: str | None) -> list[str]:
    """Returns the metrics of the table: `main` first, then those of the validation split."""
    names = dict.fromkeys(name for row in rows.values() for name in row)
    return sorted(filter(panels.is_primary, names), key=lambda name: (name != main, not name.startswith("valid/")))


def _best(name: str, values: Sequence[float | None]) -> float | None:
    """Returns the best of several values; None for a single value, or if the metric has no direction."""
    direction = titles.direction(name)
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return (min if direction == "lower" else max)(numbers) if direction and len(numbers) > 1 else None


def _cell(value: float | None, reference: float | None, best: float | None) -> dict[str, Any]:
    if value is None or not math.isfinite(value):
        return {"text": _NOTHING, "value": ""}
    cell = {"text": number(value), "value": value, "best": value == best}
    if reference is None or not math.isfinite(reference) or value == reference:
        return cell
    return {**cell, "detail": difference(value, reference)}


def _means(
    names: Sequence[str], means: Mapping[str, float | None], deviations: Mapping[str, float | None]
) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = [{"text": "mean ± standard deviation"}]
    for name in names:
        mean, deviation = means.get(name), deviations.get(name)
        text = _NOTHING if mean is None else number(mean)
        cells.append({"text": text + ("" if deviation is None else f" ± {deviation:.2g}"), "value": mean})
    return cells


def number(value: float) -> str:
    """Formats a value with four digits.

    >>> number(0.123456), number(float("nan"))
    ('0.1235', 'not finite')
    """
    return f"{value:.{_DIGITS}g}" if math.isfinite(value) else "not finite"


def difference(value: float, reference: float) -> str:
    """Formats a difference with its sign and three digits.

    >>> difference(5.25, 6.0), difference(80.5, 80.25)
    ('−0.75', '+0.25')
    """
    return f"{value - reference:+.{_DIGITS - 1}g}".replace("-", "−")
