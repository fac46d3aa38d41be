"""Draws the plan of `--mode=plan`: the memory of a device by part, and the time of each resource in a step."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.reporting import drawing

_GIB = 2**30
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "bertjax", "text.parse_math": False, "font.size": 9.0}
_SIZE = (7.5, 4.6)  # inches
_DPI = 150
_RESOURCES = ("compute", "memory", "interconnect")


def drawer(path: Path) -> Callable[[Mapping[str, Any]], None]:
    """Returns a function that draws a plan; see `draw_plan`. Raises its errors early, before the plan is computed."""
    _checked(path)
    return lambda record: draw_plan(path, record)


def draw_plan(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a figure of a plan: memory by part, a roofline, and the time of each resource.

    A dashed line marks the available memory. The roofline shows the maximum operations per second by operations per
    byte of memory traffic, and the position of the step. Roofline and times are omitted if the run does not fit. The
    ids of parts are `memory/PART`, `memory/available`, `roof`, `step` and `seconds/RESOURCE`. Equal records give files
    with equal bytes.

    Raises:
      UserError: if the suffix is not .svg or .png, or Matplotlib is not installed.
    """
    matplotlib = _checked(path)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the user's style
        matplotlib.rcParams.update(_SETTINGS)
        figure = matplotlib.figure.Figure(figsize=_SIZE, layout="constrained")
        figure.suptitle(_title(record))
        has_times = record["seconds"] is not None
        rows = figure.subfigures(2 if has_times else 1, 1, squeeze=False)[:, 0]
        _draw_memory(rows[0].subplots(), record)
        if has_times:
            left, right = rows[1].subplots(1, 2)
            _draw_roofline(left, record)
            _draw_seconds(right, record)
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
