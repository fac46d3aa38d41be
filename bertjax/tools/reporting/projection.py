"""The scatter plot of the vectors of texts on their two principal axes, with a color for each class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_COLORS = ("c0", "c1", "c3", "c4", "c5", "c6", "c7")  # of the style sheet, for the most frequent classes
_OTHERS = "c2"  # grey
_SIZE = 600  # of the picture, in its own units
_TITLE = 80  # characters of a text


def of_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns the points, the size and the legend of a scatter plot; None unless records have a "projection".

    "shares" are the percentages of the variance on the two axes; see `bertjax.tasks.samples.projection`.
    """
    placed = [record for record in records if "projection" in record]
    if not placed:
        return None
    values = np.array([record["projection"] for record in placed], np.float64)
    sizes = sorted(Counter(record["class"] for record in placed).items(), key=lambda size: (-size[1], size[0]))
    colors = {name: _COLORS[number] if number < len(_COLORS) else _OTHERS for number, (name, _) in enumerate(sizes)}
    legend = [(name, colors[name], count) for name, count in sizes[: len(_COLORS)]]
    rest = sum(count for _, count in sizes[len(_COLORS) :])
    ends = np.stack([values[:, 0] - values[:, 0].min(), values[:, 1].max() - values[:, 1]], axis=1)  # y points down
    places = (ends * _SIZE / max(float(ends.max()), 1e-12)).round(1).tolist()
    points = [
        {"x": x, "y": y, "color": colors[record["class"]], "title": f"{record['class']}: {record['text'][:_TITLE]}"}
        for (x, y), record in zip(places, placed, strict=True)
    ]
    return {
        "points": sorted(points, key=lambda point: point["color"] != _OTHERS),  # grey points lie below the others
        "width": max(x for x, _ in places),
        "height": max(y for _, y in places),
        "shares": (100 * values.var(axis=0)).tolist(),
        "legend": [*legend, *([("other classes", _OTHERS, rest)] if rest else [])],
    }
