"""Draws the plan of `--mode=plan`: the memory of a device by part, and the time of each resource in a step."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.tools.reporting import drawing

_GIB = 2**30
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "bertjax", "text.parse_math": False, "font.size": 9.0}
_WIDTH, _HEIGHT = 7.5, 2.3  # inches, of the figure and of each of its rows
_DPI = 150
_KINDS = 9  # drawn in colors of their own; the rest share one
_RESOURCES = ("compute", "memory", "interconnect")


def drawer(path: Path) -> Callable[[Mapping[str, Any]], None]:
    """Returns a function that draws a plan; see `draw_plan`. Raises its errors early, before the plan is computed."""
    _checked(path)
    return lambda record: draw_plan(path, record)


def draw_plan(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a figure of a plan: memory by part, a roofline, the time of each resource, and where bytes and time go.

    A dashed line marks the available memory. The roofline shows the maximum operations per second by operations per
    byte of memory traffic, and the position of the step. Stacked bars show the bytes that each part of the model moves,
    by kind of computation, and the TPU compiler's time if there is one. Only memory is drawn if the run does not fit.
    The ids of parts are `memory/PART`, `memory/available`, `roof`, `step`, `seconds/RESOURCE`, `bytes/PART/KIND` and
    `time/PART/KIND`. Equal records give files with equal bytes.

    Raises:
      UserError: if the suffix is not .svg or .png, or Matplotlib is not installed.
    """
    matplotlib = _checked(path)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the user's style
        matplotlib.rcParams.update(_SETTINGS)
        has_times = record["seconds"] is not None
        count = 3 if has_times else 1
        figure = matplotlib.figure.Figure(figsize=(_WIDTH, _HEIGHT * max(count, 2)), layout="constrained")
        figure.suptitle(_title(record))
        rows = figure.subfigures(count, 1, squeeze=False, height_ratios=(1, 1, 1.4)[:count])[:, 0]
        _draw_memory(rows[0].subplots(), record)
        if has_times:
            left, right = rows[1].subplots(1, 2)
            _draw_roofline(left, record)
            _draw_seconds(right, record)
            _draw_breakdown(rows[2], record["breakdown"])
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], dpi=_DPI, metadata=metadata)
    data = buffer.getvalue()
    if path.suffix == ".svg":  # Matplotlib writes spaces at line ends, which Git reports as errors
        data = b"\n".join(line.rstrip() for line in data.splitlines()) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with completed(path) as partial:
        partial.write_bytes(data)


def _checked(path: Path) -> Any:
    """Returns Matplotlib. Raises UserError if it is not installed, or the suffix is not .svg or .png."""
    if path.suffix not in (".svg", ".png"):
        expected, fix = ".svg or .png", "change the suffix"
        raise UserError("--plot", got=repr(path.suffix), expected=expected, fix=fix)
    return drawing.load_matplotlib()


def _title(record: Mapping[str, Any]) -> str:
    mesh = " x ".join(f"{axis} {size}" for axis, size in record["mesh"].items())
    return f"{record['topology']}, {mesh}, batch {record['batch_size']:,}" + (
        "" if record["fits"] else ": does not fit"
    )


def _draw_memory(panel: Any, record: Mapping[str, Any]) -> None:
    """Draws the memory of a device as a stacked bar, with a line at the available memory."""
    sizes = record["bytes_per_device"]
    begin = 0.0
    for number, (name, size) in enumerate((name, size) for name, size in sizes.items() if name != "total"):
        (bar,) = panel.barh([0], [size / _GIB], left=begin, color=f"C{number}", label=f"{name} {size / _GIB:.2f}")
        bar.set_gid(f"memory/{name}")
        begin += size / _GIB
    available = record["hbm_bytes"] / _GIB
    panel.axvline(available, color="black", linestyle="--", gid="memory/available", label=f"available {available:.2f}")
    panel.set_xlim(0, 1.05 * max(available, begin))
    panel.set_yticks([])
    panel.set_xlabel("memory per device (GiB)")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, 1.35), ncols=4, frameon=False)


def _draw_roofline(panel: Any, record: Mapping[str, Any]) -> None:
    """Draws the maximum operations per second by intensity, and the step at its lower bound of time."""
    device, done = record["device"], record["per_device"]
    ridge = device["peak_flops"] / device["hbm_bandwidth"]
    intensity = done["flops"] / max(done["hbm_bytes"], 1)
    low, high = min(ridge, intensity) / 10, max(ridge, intensity) * 10
    roof = [device["hbm_bandwidth"] * low / 1e12, device["peak_flops"] / 1e12, device["peak_flops"] / 1e12]
    panel.loglog([low, ridge, high], roof, color="black", gid="roof")
    panel.loglog([intensity], [done["flops"] / record["step_seconds"] / 1e12], "o", color="C3", gid="step")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    panel.set_xlabel("operations per byte of memory traffic")
    panel.set_ylabel("TFLOP/s per device")


def _draw_seconds(panel: Any, record: Mapping[str, Any]) -> None:
    """Draws the time for which each resource is busy."""
    for number, name in enumerate(reversed(_RESOURCES)):
        color = "C3" if name == record["bound"] else "C7"
        (bar,) = panel.barh([number], [1e3 * record["seconds"][name]], color=color)
        bar.set_gid(f"seconds/{name}")
    panel.set_yticks(range(len(_RESOURCES)), list(reversed(_RESOURCES)))
    panel.set_xlabel("lower bound of time per step (ms)")


def _draw_breakdown(row: Any, breakdown: Sequence[Mapping[str, Any]]) -> None:
    """Draws the bytes of each part as a bar of kinds, and the compiler's time likewise if there is one."""
    shown = _ordered(breakdown, "kind")[:_KINDS]
    quantities = [("bytes", "hbm_bytes", 1e-9, "memory traffic per step (GB)")]
    if breakdown and breakdown[0]["compiler_seconds"] is not None:
        quantities.append(("time", "compiler_seconds", 1e3, "compiler's estimate per step (ms)"))
    panels = row.subplots(1, len(quantities), sharey=True, squeeze=False)[0]
    parts = _ordered(breakdown, "part")[::-1]
    for panel, (name, key, scale, label) in zip(panels, quantities, strict=True):
        ends = dict.fromkeys(parts, 0.0)
        for number, kind in enumerate([*shown, "rest"]):
            of_kind = [each for each in breakdown if (each["kind"] if each["kind"] in shown else "rest") == kind]
            for part in dict.fromkeys(each["part"] for each in of_kind):
                value = scale * sum(each[key] for each in of_kind if each["part"] == part)
                (bar,) = panel.barh([parts.index(part)], [value], left=ends[part], color=f"C{number}", label=kind)
                bar.set_gid(f"{name}/{part}/{kind}")
                ends[part] += value
        panel.set_yticks(range(len(parts)), parts)
        panel.set_xlabel(label)
    handles, names = panels[0].get_legend_handles_labels()
    labels = dict(zip(names, handles, strict=True))
    row.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=5, frameon=False)


def _ordered(breakdown: Sequence[Mapping[str, Any]], by: str) -> list[str]:
    """The parts or kinds with most bytes first."""
    totals: dict[str, int] = {}
    for each in breakdown:
        totals[each[by]] = totals.get(each[by], 0) + each["hbm_bytes"]
    return sorted(totals, key=lambda name: -totals[name])
