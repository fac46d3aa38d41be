"""The picture of a plan, read back: which parts there are, and where they lie."""

import re

import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting.plan_chart import draw_plan, drawer
from tests.tools.reporting import svg

GIB = 2**30
RECORD = {
    "topology": "v5e:4x4",
    "mesh": {"data": 4, "fsdp": 4, "tensor": 1},
    "batch_size": 1024,
    "fits": True,
    "hbm_bytes": 16 * GIB,
    "bytes_per_device": {"parameters": 2 * GIB, "optimizer": 4 * GIB, "temporary": 6 * GIB, "total": 12 * GIB},
    "per_device": {"flops": 2e13, "hbm_bytes": 1e11, "uncounted_loops": 0},
    "seconds": {"compute": 0.1, "memory": 0.2, "interconnect": 0.05},
    "step_seconds": 0.2,
    "bound": "memory",
    "device": {"peak_flops": 2e14, "hbm_bandwidth": 5e11},
    "breakdown": [
        {"part": "attention", "kind": "softmax", "hbm_bytes": 60 * 10**9, "compiler_seconds": 0.1},
        {"part": "attention", "kind": "matrix products", "hbm_bytes": 20 * 10**9, "compiler_seconds": 0.3},
        {"part": "feed-forward", "kind": "matrix products", "hbm_bytes": 20 * 10**9, "compiler_seconds": 0.2},
    ],
}


def drawn(path, record=RECORD):
    """Draws a plan. Returns the corners of each part with an id of ours: (left, right, top, bottom), in its units."""
    draw_plan(path, record)
    found = {}
    for group in svg.elements(path.read_text(), "g"):
        name = group.get("id", "")
        if "/" in name or name in ("roof", "step"):
            data = group.find(f".//{svg.SVG}path").get("d")
            places = [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", data)]
            if name == "step":
                use = group.find(f".//{svg.SVG}use")
                places = [(float(use.get("x")), float(use.get("y")))]
            xs, ys = zip(*places, strict=True)
            found[name] = (min(xs), max(xs), min(ys), max(ys))
    return found


def texts(path):
    return svg.texts(path.read_text())


def test_parts_lie_beside_each_other_up_to_what_is_there(tmp_path):
    found = drawn(tmp_path / "plan.svg")
    parameters, optimizer, temporary = (found[f"memory/{name}"] for name in ("parameters", "optimizer", "temporary"))
    gib = (parameters[1] - parameters[0]) / 2
    assert optimizer[1] - optimizer[0] == pytest.approx(4 * gib, rel=1e-4)
    assert temporary[1] - temporary[0] == pytest.approx(6 * gib, rel=1e-4)
    assert (parameters[1], optimizer[1]) == pytest.approx((optimizer[0], temporary[0]))
    assert found["memory/available"][0] - parameters[0] == pytest.approx(16 * gib, rel=1e-4)


def test_the_longest_time_is_the_bound(tmp_path):
    found = drawn(tmp_path / "plan.svg")
    width = {name: found[f"seconds/{name}"][1] - found[f"seconds/{name}"][0] for name in RECORD["seconds"]}
    assert width["memory"] == pytest.approx(2 * width["compute"], rel=1e-4)
    assert width["compute"] == pytest.approx(2 * width["interconnect"], rel=1e-4)


def test_a_step_bound_by_memory_lies_on_the_slope(tmp_path):
    found = drawn(tmp_path / "plan.svg")
    left, right, top, bottom = found["roof"]
    x, y, _, _ = found["step"][0], found["step"][2], 0, 0
    assert left < x < right and top < y < bottom
    # From a tenth of the intensity of the step to ten times that of the ridge, twice as high: the slope is 45 degrees
    # in decades, and the step is one decade from the left end.
    decades = 2 + 0.30103
    decade = (right - left) / decades
    assert x - left == pytest.approx(decade, rel=1e-3)


def test_bars_of_bytes_and_time_by_part_and_kind(tmp_path):
    found = drawn(tmp_path / "plan.svg")
    width = {name: right - left for name, (left, right, _, _) in found.items()}
    assert width["bytes/attention/softmax"] == pytest.approx(3 * width["bytes/attention/matrix products"], rel=1e-3)
    assert width["time/attention/matrix products"] == pytest.approx(3 * width["time/attention/softmax"], rel=1e-3)
    assert found["bytes/attention/softmax"][1] == pytest.approx(found["bytes/attention/matrix products"][0])
    assert found["bytes/attention/softmax"][2:] == found["bytes/attention/matrix products"][2:]
    assert found["bytes/feed-forward/matrix products"][2] > found["bytes/attention/softmax"][3]  # below
    assert texts(tmp_path / "plan.svg").count("matrix products") == 1  # in the legend


def test_without_estimates_of_the_compiler_there_are_bars_of_bytes_only(tmp_path):
    rows = [{**row, "compiler_seconds": None} for row in RECORD["breakdown"]]
    parts = {name.split("/")[0] for name in drawn(tmp_path / "plan.svg", {**RECORD, "breakdown": rows})}
    assert parts >= {"bytes", "seconds"} and "time" not in parts


def test_many_kinds_share_a_color(tmp_path):
    rows = [
        {"part": "heads", "kind": f"kind {number}", "hbm_bytes": 10**9, "compiler_seconds": None}
        for number in range(12)
    ]
    found = drawn(tmp_path / "plan.svg", {**RECORD, "breakdown": rows})
    assert len([name for name in found if name.startswith("bytes/")]) == 10
    first, rest = found["bytes/heads/kind 0"], found["bytes/heads/rest"]
    assert rest[1] - rest[0] == pytest.approx(3 * (first[1] - first[0]), rel=1e-3)


def test_what_does_not_fit_has_no_times(tmp_path):
    record = {**RECORD, "fits": False, "hbm_bytes": 8 * GIB, "seconds": None, "step_seconds": None, "per_device": None}
    assert not [name for name in drawn(tmp_path / "plan.svg", record) if not name.startswith("memory/")]
    assert any("does not fit" in text for text in texts(tmp_path / "plan.svg"))


def test_the_same_plan_is_the_same_picture(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_plan(tmp_path / name, RECORD)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    draw_plan(tmp_path / "plan.png", RECORD)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_another_ending_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"--plot: got '.pdf'; expected .svg or .png"):
        draw_plan(tmp_path / "plan.pdf", RECORD)
    with pytest.raises(UserError, match="--plot"):  # before there is a plan
        drawer(tmp_path / "plan.pdf")
