"""Draws the plan of `--mode=plan`: the memory of a device by part, and the time of each resource in a step."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.tools.reporting import drawing

_GIB = 2**30
_WIDTH = 640
_HALF = {"width": 230, "height": 130}
_KINDS = 7  # drawn in colors of their own; the rest share one
_RESOURCES = ("compute", "memory", "interconnect")


def drawer(path: Path) -> Callable[[Mapping[str, Any]], None]:
    """Returns a function that draws a plan by `draw_plan`. Raises its errors early, before the plan is computed."""
    drawing.check(path)
    return lambda record: draw_plan(path, record)


def draw_plan(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a figure of a plan: memory by part, a roofline, the time of each resource, and where bytes and time go.

    A dashed line marks the available memory. The roofline shows the maximum operations per second by operations per
    byte of memory traffic, and the position of the step. Stacked bars show the bytes that each part of the model moves,
    by kind of computation, and the TPU compiler's time if there is one. Only memory is drawn if the run does not fit.
    `drawing.write` describes the files.

    Raises:
      UserError: if the suffix is not .svg or .png, or vl-convert is not installed.
    """
    drawing.write(path, chart(record))


def chart(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figure of `draw_plan` as a Vega-Lite specification."""
    rows = [_memory(record)]
    if record["seconds"] is not None:
        rows += [{"hconcat": [_roofline(record), _seconds(record)]}, _breakdown(record["breakdown"])]
    mesh = " x ".join(f"{axis} {size}" for axis, size in record["mesh"].items())
    fit = "" if record["fits"] else ": does not fit"
    title = f"{record['topology']}, {mesh}, batch {record['batch_size']:,}{fit}"
    return {"title": title, "vconcat": rows, "resolve": {"scale": {"color": "independent"}}}


def _memory(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the memory of a device as a stacked bar, with a line at the available memory."""
    parts = [
        {"part": f"{name} {size / _GIB:.2f}", "order": order, "size": size / _GIB}
        for order, (name, size) in enumerate(record["bytes_per_device"].items())
        if name != "total"
    ]
    available = {"size": record["hbm_bytes"] / _GIB, "text": f"available {record['hbm_bytes'] / _GIB:.2f}"}
    x = _number("size", "memory per device (GiB)")
    color = {**_name("part", (part["part"] for part in parts)), "legend": {"orient": "top"}}
    label = {"type": "text", "align": "right", "baseline": "bottom", "y": -3}
    line = {"data": {"values": [available]}, "encoding": {"x": x, "text": {"field": "text"}}}
    bar = {"x": {**x, "stack": True}, "color": color, "order": {"field": "order"}}
    return {
        "width": _WIDTH,
        "height": 50,
        "layer": [
            {"data": {"values": parts}, "mark": "bar", "encoding": bar},
            {**line, "layer": [{"mark": {"type": "rule", "strokeDash": [5, 3]}}, {"mark": label}]},
        ],
    }


def _roofline(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the maximum operations per second by intensity, and the step at its lower bound of time."""
    device = record["device"]
    counts = record["per_device"]
    peak = device["peak_flops"] / 1e12
    ridge = device["peak_flops"] / device["hbm_bandwidth"]
    intensity = counts["flops"] / max(counts["hbm_bytes"], 1)
    low = min(ridge, intensity) / 10
    high = max(ridge, intensity) * 10
    roof = [{"x": low, "y": peak * low / ridge}, {"x": ridge, "y": peak}, {"x": high, "y": peak}]
    step = {"x": intensity, "y": counts["flops"] / record["step_seconds"] / 1e12}
    decades = {"scale": {"type": "log"}, "axis": {"format": "~g", "tickCount": 3}}
    x = {**_number("x", "operations per byte of memory traffic"), **decades}
    y = {**_number("y", "TFLOP/s per device"), **decades}
    point = {"type": "point", "filled": True, "size": 80, "opacity": 1, "color": drawing.LIGHT["c1"]}
    return {
        **_HALF,
        "encoding": {"x": x, "y": y},
        "layer": [{"data": {"values": roof}, "mark": "line"}, {"data": {"values": [step]}, "mark": point}],
    }


def _seconds(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the time for which each resource is busy. The bound has a color of its own."""
    times = [{"resource": name, "time": 1e3 * record["seconds"][name]} for name in _RESOURCES]
    colors = [drawing.LIGHT["c1" if name == record["bound"] else "c2"] for name in _RESOURCES]
    encoding = {
        "y": _name("resource", _RESOURCES),
        "x": _number("time", "lower bound of time per step (ms)"),
        "color": {**_name("resource", _RESOURCES), "scale": {"range": colors}, "legend": None},
    }
    return {**_HALF, "data": {"values": times}, "mark": "bar", "encoding": encoding}


def _breakdown(breakdown: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the bytes of each part as a bar of kinds, and the compiler's time likewise if there is one."""
    kinds = _ordered(breakdown, "kind")
    names = {kind: kind if order < _KINDS else "rest" for order, kind in enumerate(kinds)}
    rows = [
        {
            **{"part": row["part"], "kind": names[row["kind"]], "order": min(kinds.index(row["kind"]), _KINDS)},
            "bytes": row["hbm_bytes"] / 1e9,
            "time": 1e3 * (row["compiler_seconds"] or 0),
        }
        for row in breakdown
    ]
    quantities = {"bytes": "memory traffic per step (GB)"}
    if any(row["time"] for row in rows):
        quantities["time"] = "compiler's estimate per step (ms)"
    shared = {
        "y": _name("part", _ordered(breakdown, "part")),
        "color": {**_name("kind", names.values()), "legend": {"orient": "bottom", "columns": 4}},
        "order": {"field": "order"},
    }
    size = {"width": _HALF["width"], "height": {"step": 18}}
    bars = [{"x": {**_number(field, title), "aggregate": "sum"}} for field, title in quantities.items()]
    charts = [{**size, "mark": "bar", "encoding": {**shared, **bar}} for bar in bars]
    return {"data": {"values": rows}, "hconcat": charts}


def _name(field: str, order: Iterable[str]) -> dict[str, Any]:
    return {"field": field, "type": "nominal", "title": None, "sort": list(order)}


def _number(field: str, title: str) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title}


def _ordered(breakdown: Sequence[Mapping[str, Any]], by: str) -> list[str]:
    """Returns the parts or kinds, those with most bytes first."""
    totals: Counter[str] = Counter()
    for row in breakdown:
        totals[row[by]] += row["hbm_bytes"]
    return [name for name, _ in totals.most_common()]
