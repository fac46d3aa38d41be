"""The chart of a plan."""

import re

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tools.reporting.plan_chart import chart, draw_plan, drawer

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
        {"part": part, "kind": kind, "hbm_bytes": gigabytes * 10**9, "compiler_seconds": seconds}
        for part, kind, gigabytes, seconds in (
            ("attention", "softmax", 60, 0.1),
            ("attention", "matrix products", 20, 0.3),
            ("feed-forward", "matrix products", 20, 0.2),
        )
    ],
}
WITHOUT_TIMES = {"fits": False, "seconds": None, "step_seconds": None, "per_device": None}


def values(panel):
    return panel["data"]["values"]


def test_quantities():
    memory, middle, breakdown = chart(RECORD)["vconcat"]
    parts, available = map(values, memory["layer"])
    sizes = {"parameters 2.00": 2, "optimizer 4.00": 4, "temporary 6.00": 6}
    assert {part["part"]: part["size"] for part in parts} == sizes
    assert available == [{"size": 16, "text": "available 16.00"}]
    roofline, seconds = middle["hconcat"]
    roof, step = map(values, roofline["layer"])
    np.testing.assert_allclose([[*point.values()] for point in roof], [(20, 10), (400, 200), (4000, 200)])
    np.testing.assert_allclose([[*point.values()] for point in step], [(200, 100)])  # on the slope
    assert [row["time"] for row in values(seconds)] == [100, 200, 50]
    assert [(row["bytes"], row["time"]) for row in values(breakdown)] == [(60, 100), (20, 300), (20, 200)]
    assert len(breakdown["hconcat"]) == 2


def test_breakdown_of_many_kinds_without_estimates_of_the_compiler():
    row = {"part": "heads", "hbm_bytes": 10**9, "compiler_seconds": None}
    rows = [{**row, "kind": f"kind {number}"} for number in range(12)]
    breakdown = chart({**RECORD, "breakdown": rows})["vconcat"][2]
    assert len(breakdown["hconcat"]) == 1
    assert [row["kind"] for row in values(breakdown)] == [f"kind {number}" for number in range(7)] + ["rest"] * 5


@pytest.mark.parametrize(("changes", "texts"), [({}, {"available 16.00", "memory", "softmax"}), (WITHOUT_TIMES, set())])
def test_file(tmp_path, changes, texts):
    draw_plan(tmp_path / "plan.svg", {**RECORD, **changes})
    labels = re.findall(r">([^<>]+)</text>", (tmp_path / "plan.svg").read_text())
    title = "v5e:4x4, data 4 x fsdp 4 x tensor 1, batch 1,024" + (": does not fit" if changes else "")
    assert {title, "optimizer 4.00", *texts} <= set(labels)
    assert labels.count("matrix products") == (not changes)  # in the legend


def test_drawer_checks_the_suffix_before_there_is_a_plan(tmp_path):
    with pytest.raises(UserError, match=r"plan\.pdf: got '.pdf'; expected .svg or .png"):
        drawer(tmp_path / "plan.pdf")
