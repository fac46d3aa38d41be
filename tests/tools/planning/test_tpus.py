"""TPU slices: shapes, the installed compiler, links of groups, published figures."""

import importlib.metadata
import importlib.util
import os
from types import SimpleNamespace

import pytest

from bertjax.errors import UserError
from bertjax.tools.planning import tpus
from bertjax.tools.planning.targets import find_target
from bertjax.tools.planning.tpus import TPUS


def grid(*shape):
    """The devices of a slice of a shape, which has at most three dimensions."""
    x, y, z = (*shape, 1)[:3]
    return [SimpleNamespace(coords=(i, j, k)) for i in range(x) for j in range(y) for k in range(z)]


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        ("v5e:4x4x4", "3 dimension(s), but a slice of v5e has 2"),
        ("v5p:4x4", "2 dimension(s), but a slice of v5p has 3"),
        ("v6e:32x32", "1024 chips, but a slice of v6e has at most 256"),
        ("v5e:0x4", "0 chips"),
    ],
)
def test_shapes_that_no_slice_has(topology, why):
    with pytest.raises(UserError) as caught:
        find_target(topology)
    assert f"--topology: got '{topology}' ({why}" in str(caught.value)


def test_without_libtpu(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--mode=plan: got no libtpu.*pip install -e '.\[plan\]'"):
        find_target("v5e:4x4")


def test_with_the_wrong_version_of_libtpu(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ['libtpu==0.0.42.*; extra == "tpu"'])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.51")
    with pytest.raises(UserError, match=r"libtpu: got version 0.0.51; expected 0.0.42, which jax\[tpu\] .* pins"):
        find_target("v5e:4x4")


def test_the_pinned_version():
    assert tpus.pinned_libtpu(["numpy>=2", 'libtpu==0.0.42.*; extra == "tpu"']) == "0.0.42"
    assert tpus.pinned_libtpu(["numpy>=2"]) == ""
    assert tpus.pinned_libtpu(importlib.metadata.requires("jax")).startswith("0.0.")


def test_published_specifications_are_consistent():
    for chip in (tpu.chip for tpu in TPUS.values()):
        assert 0.9 < chip.hbm_bytes / 2**30 / round(chip.hbm_bytes / 2**30) <= 1.02
        assert 150 < chip.peak_flops / chip.hbm_bandwidth < 600
        assert chip.source.startswith("https://cloud.google.com/tpu/docs/")
    assert TPUS["v5e"].chip.clock == pytest.approx(1.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "shape", "size", "count"),
    [
        ("v5e", (4, 4), 16, 2),  # a line in each dimension
        ("v5e", (16, 16), 256, 4),  # a ring in each dimension
        ("v5e", (16, 16), 16, 2),  # a ring
        ("v5e", (16, 16), 8, 1),  # half of a ring
        ("v5p", (4, 4, 4), 64, 6),
        ("v5p", (4, 4, 4), 1, 1),
    ],
)
def test_links_of_a_group(name, shape, size, count):
    whole = grid(*shape)
    link = tpus.link(TPUS[name], whole[:size], whole)
    assert link == (f"{count} link{'s' * (count > 1)}", count * TPUS[name].chip.links["link"])


if importlib.util.find_spec("libtpu"):

    def test_a_shape_that_libtpu_does_not_know():
        before = dict(os.environ)
        with pytest.raises(UserError, match=r"--topology: got 'v5e:3x5' \(.*\); expected the shape of a slice"):
            find_target("v5e:3x5")
        assert dict(os.environ) == before
