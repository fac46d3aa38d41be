"""Time and memory of layers by sequence length, as measured by `benchmarks/attention_length.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.tools.reporting.runs import read_object

FILE = "attention_length.json"
_SUMMARY = (
    "A recurrent layer connects two positions by as many sequential steps as their distance. Self-attention connects "
    "them in one step, at a cost that grows with the square of the length (Vaswani et al. 2017, table 1). "
    "Forward and backward pass on {device}, {batch_size} rows of width {hidden_size}."
)


def read(folder: Path) -> dict[str, Any] | None:
    """Returns the summary and the data for the page; None if the folder has no measurements.

    Raises:
      UserError: if the file is malformed.
    """
    path = folder / FILE
    if not path.exists():
        return None
    found = read_object(path)
    try:
        return {"summary": _SUMMARY.format_map(found), "data": _data(found)}
    except (KeyError, TypeError) as error:
        expected, fix = (
            "a file written by benchmarks/attention_length.py",
            "run the benchmark again, or delete the file",
        )
        raise UserError(str(path), got=f"a file without {error}", expected=expected, fix=fix) from error


def _data(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns curves in the form of `panels.panels`, with a run and a row for each kind of layer."""
    layers = list(dict.fromkeys(row["layer"] for row in found["rows"]))
    measured = {"Milliseconds": ("seconds", 1e3), "MiB without parameters": ("bytes", 2.0**-20)}
    return {
        "runs": [{"name": layer, "row": number, "offset": 0, "axes": {}} for number, layer in enumerate(layers)],
        "panels": [
            {
                "title": title,
                "axis": "length",
                "log": True,
                "lines": [],
                "series": [
                    {
                        "run": number,
                        "split": "",
                        "points": [[row["length"], row[key] * unit] for row in found["rows"] if row["layer"] == layer],
                    }
                    for number, layer in enumerate(layers)
                ],
            }
            for title, (key, unit) in measured.items()
        ],
    }
