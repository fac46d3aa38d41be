"""Time and memory of layers against length, as `benchmarks/attention_length.py` has measured them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.reporting.runs import read_object

FILE = "attention_length.json"
_SAID = (
    "A recurrent layer connects two positions by as many sequential steps as their distance. Self-attention connects "
    "them in one step, at a cost that grows with the square of the length (Vaswani et al. 2017, table 1). "
    "Forward and backward pass on {device}, {batch_size} rows of width {hidden_size}."
)


def read(folder: Path) -> dict[str, Any] | None:
    """What the page shows of them; None if the folder has no such file.

    Raises:
      UserError: a file of anything else.
    """
    path = folder / FILE
    if not path.exists():
        return None
    found = read_object(path)
    try:
        return {"said": _SAID.format_map(found), "data": _data(found)}
    except (KeyError, TypeError) as error:
        expected, fix = "what benchmarks/attention_length.py writes", "measure again, or delete it"
        raise UserError(str(path), got=f"no {error}", expected=expected, fix=fix) from error


def _data(found: Mapping[str, Any]) -> dict[str, Any]:
    """As `panels.panels` has curves: a run, and a row, for each kind of layer."""
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
