"""Draws the learning curves of one or several runs as an SVG or PNG file.

    python -m bertjax.tools.reporting.curves --output=docs/pictures/phases.svg 'length 128=runs/phase1' ...

If a run starts from another run of the same experiment (`init_from`), its curves follow those of that run. Equal run
folders give files with equal bytes.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.errors import UserError, as_user_error
from bertjax.tools.reporting import drawing, panels, titles
from bertjax.tools.reporting.runs import continued, named, read_run

AXES = {"step": "step", "tokens": "training tokens, without padding and sources"}
_SIZE = {"width": 360, "height": 200}  # of a panel
_MOST_DOTS = 20  # longer curves are drawn as lines only
# Dashes of each split, and its color in the figure of a single run.
_STYLES = {"validation": ([1, 0], "c0"), "training": ([5, 3], "c2"), "test": ([1, 0], "c1")}


def learning_curves(runs: Mapping[str, Path], against: str) -> dict[str, Any]:
    """Returns the learning curves of runs as a Vega-Lite specification, for `drawing.write`.

    The panels are the primary ones of report pages, such as losses and scores, with their baselines.

    Args:
      runs: the folders of the runs, by their names in the figure.
      against: the horizontal axis, a key of `AXES`.

    Raises:
      UserError: if a folder is not a run, no run has a metric to draw, or an axis of tokens lacks their number.
    """
    phases = [
        dataclasses.replace(phase, row=name)
        for name, folder in runs.items()
        for phase in panels.phases(continued(read_run(folder)))
    ]
    page = panels.panels({str(number): phase for number, phase in enumerate(phases)})
    primary = [panel for panel in page["panels"] if panel["primary"]]
    if not primary:
        raise UserError(
            "runs " + ", ".join(map(str, runs.values())),
            got="none of the metrics to draw",
            expected="losses or scores in metrics.jsonl",
            fix="train until metrics.jsonl has its first line",
        )
    points = []
    for panel in primary:
        for curve in panel["series"]:
            phase = phases[curve["run"]]
            axis = _axis(phase, page["runs"][curve["run"]]["axes"], against)
            steps, values = zip(*curve["points"], strict=True)
            xs = np.interp(steps, *np.transpose(axis)).tolist()
            line = {"panel": panel["title"], "run": phase.row, "phase": curve["run"]}
            line |= {"split": titles.SPLITS[curve["split"]], "has_dots": len(xs) <= _MOST_DOTS}
            points += [{**line, "x": x, "y": y} for x, y in zip(xs, values, strict=True)]
        for level in panel["lines"]:
            if not level["is_bound"]:  # a far upper bound would leave the curves little space
                prefix = "" if level["run"] is None or len(runs) == 1 else f"{phases[level['run']].row}, "
                text = f"{prefix}{level['name']} {level['value']:.4g}"
                points.append({"panel": panel["title"], "y": level["value"], "text": text})
    return _chart(points, list(runs), AXES[against])


def main(arguments: Sequence[str]) -> None:
    """Draws the runs that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", required=True, type=Path, help="the file to write: .svg or .png")
    parser.add_argument("--against", choices=AXES, default="step")
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN_FOLDER")
    args = parser.parse_args(arguments)
    try:
        drawing.write(args.output, learning_curves(named(args.runs), args.against))
    except (UserError, OSError) as error:
        sys.exit(f"error: {as_user_error(error, str(args.output)) or error}")


def _axis(phase: panels.Phase, axes: Mapping[str, Any], against: str) -> Any:
    """Returns (step, position on the horizontal axis) pairs of a run, between which positions are interpolated."""
    last = phase.run.num_steps
    offset = phase.offset[0]
    axes = {**axes, "step": [(0, offset), (last, offset + last)]}
    if against not in axes:
        raise UserError(
            f"run {phase.run.folder}",
            got="no train/tokens_per_second with train/step_seconds",
            expected="both, to count tokens",
            fix="use --against=step",
        )
    return axes[against]


def _chart(points: list[dict[str, Any]], runs: list[str], axis: str) -> dict[str, Any]:
    """Returns a chart with one color per run, or per split of a single run, as on pages."""
    splits = [split for split in _STYLES if any(point.get("split") == split for point in points)]
    dashes, colors = zip(*(_STYLES[split] for split in splits), strict=True)
    legend = {"title": None, "symbolType": "stroke"}
    dash = {"field": "split", "scale": {"domain": splits, "range": dashes}, "legend": legend}
    color = {"field": "run", "scale": {"domain": runs}, "legend": legend}
    if len(runs) == 1:
        color = {**dash, "scale": {"domain": splits, "range": [drawing.LIGHT[name] for name in colors]}}
    ticks = {"labelExpr": "format(datum.value, '~s')", "tickCount": 5}
    x = {"field": "x", "type": "quantitative", "title": axis, "axis": ticks}
    y = {"field": "y", "type": "quantitative", "title": None, "scale": {"zero": False}}
    line = {"x": x, "y": y, "color": color, "detail": {"field": "phase"}}
    width = {"condition": {"test": "datum.split === 'training'", "value": 1.3}, "value": 2.2}
    label = {"type": "text", "align": "right", "dx": -4, "dy": -6}
    layers = [
        ("datum.split", "line", {**line, "strokeDash": dash, "strokeWidth": width}),
        ("datum.has_dots", {"type": "point", "filled": True, "size": 14, "opacity": 1}, line),
        ("datum.text", {"type": "rule", "strokeDash": [2, 3]}, {"y": y}),
        ("datum.text", label, {"y": y, "x": {"value": _SIZE["width"]}, "text": {"field": "text"}}),
    ]
    order = list(dict.fromkeys(point["panel"] for point in points))
    header = {"labelAnchor": "start", "labelPadding": 8}
    return {
        "data": {"values": points},
        "facet": {"field": "panel", "sort": order, "title": None, "header": header},
        "columns": 2,
        "spec": {
            **_SIZE,
            "layer": [
                {"transform": [{"filter": condition}], "mark": mark, "encoding": encoding}
                for condition, mark, encoding in layers
            ],
        },
        "resolve": {"scale": {"y": "independent"}, "axis": {"x": "independent"}},
    }


if __name__ == "__main__":
    main(sys.argv[1:])
