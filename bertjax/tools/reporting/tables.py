"""The tables of a page: a header, and rows of cells with sort keys, shades and bars."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """Returns a table with a header of names."""
    return {"header": [{"title": name} for name in header], "rows": list(rows), **more}


def row(cells: Sequence[Any], values: Sequence[Any] = ()) -> dict[str, Any]:
    """Returns a row of texts. `values` are the sort keys of its cells."""
    return {"cells": [{"text": cell, "value": values[place] if values else None} for place, cell in enumerate(cells)]}


def line(name: str, *cells: Mapping[str, Any], key: int | float | None = None) -> dict[str, Any]:
    """Returns a row of a name and cells. `key` is the sort key of the name."""
    return {"cells": [{"text": name, "value": key}, *cells]}


def number(value: int | float | None, digits: int = 3, **more: Any) -> dict[str, Any]:
    """Returns a cell with a number, which is its sort key; a dash for None."""
    if value is None:
        return {"text": "–", "value": "", **more}
    text = f"{value:,}" if isinstance(value, int) else f"{value:z.{digits}f}"
    return {"text": text, "value": value, **more}


def share(part: int | float, total: int | float, **more: Any) -> dict[str, Any]:
    """Returns a cell with a share in percent and a bar; a dash if there is nothing to share."""
    if not total:
        return number(None)
    percent = 100 * part / total
    return {"text": f"{percent:.1f} %", "value": percent, "percent": percent, **more}
