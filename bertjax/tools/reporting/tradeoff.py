"""Draws the scores of a sweep's rows against their cost, such as the time of a text."""

from collections.abc import Mapping
from typing import Any

_HEIGHT = 300  # with the legend


def chart(tradeoff: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a Vega-Lite specification: a point for each row, with its 95 % intervals on both axes.

    Args:
      tradeoff: a panel of `sweeps.tables.tradeoffs`.
    """
    x = {"field": "cost", "title": tradeoff["cost"], "type": "quantitative", "scale": {"zero": False}}
    y = {"field": "score", "title": tradeoff["score"], "type": "quantitative", "scale": {"zero": False}}
    names = [point["row"] for point in tradeoff["points"]]
    color = {"field": "row", "type": "nominal", "title": None, "sort": names}
    encoding = {"x": x, "y": y, "color": {**color, "legend": {"orient": "bottom", "columns": 1}}}
    tooltip = [{"field": name} for name in ("row", "cost", "score")]
    return {
        "height": _HEIGHT,  # the page's script sets the width
        "background": None,
        "autosize": {"type": "fit", "contains": "padding"},
        "data": {"values": tradeoff["points"]},
        "encoding": encoding,
        "layer": [
            {"mark": "rule", "encoding": {"y": {**y, "field": "score_low"}, "y2": {"field": "score_high"}}},
            {"mark": "rule", "encoding": {"x": {**x, "field": "cost_low"}, "x2": {"field": "cost_high"}}},
            {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1}, "encoding": {"tooltip": tooltip}},
        ],
    }
