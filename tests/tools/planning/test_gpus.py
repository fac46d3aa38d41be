"""Clusters of GPUs: shapes, links, memory, the plugin; and a small cluster if the plugin is installed."""

from types import SimpleNamespace

import pytest

from bertjax.errors import UserError
from bertjax.tools.planning import gpus
from bertjax.tools.planning.chips import Chip, Link
from bertjax.tools.planning.targets import find_target
from bertjax.training import platforms

GPU = Chip(1e12, 2**30, 1e12, {"NVLink": 450.0, "network": 50.0}, 0.0, "nowhere")


def on_hosts(*hosts):
    """One device on each of the named hosts; a host may occur several times."""
    return [SimpleNamespace(process_index=host) for host in hosts]


@pytest.mark.parametrize(
    ("kind", "group", "link"),
    [
        ("all-reduce", on_hosts(*[0] * 8), ("NVLink", 450.0)),
        ("all-to-all", on_hosts(1, 1), ("NVLink", 450.0)),
        ("all-reduce", on_hosts(0), ("NVLink", 450.0)),
        # One GPU of each host: every byte leaves by that GPU's port.
        ("all-reduce", on_hosts(0, 1, 2, 3), ("network", 50.0)),
        ("all-to-all", on_hosts(0, 1, 2, 3), ("network", 50.0)),
        ("collective-permute", on_hosts(0, 1), ("network", 50.0)),
        # Rings of all GPUs of two hosts share eight ports; with nine, NVLink would be slower.
        ("all-reduce", on_hosts(*[0] * 8, *[1] * 8), ("network", 400.0)),
        ("all-gather", on_hosts(*[0] * 2, *[1] * 2), ("network", 100.0)),
        ("reduce-scatter", on_hosts(*[0] * 10, *[1] * 10), ("network", 450.0)),
        ("all-reduce", on_hosts(0, 0, 1), ("network", 50.0)),
        # Of the bytes that a GPU sends to 15 others, 8 of 15 leave the host.
        ("all-to-all", on_hosts(*[0] * 8, *[1] * 8), ("network", 50.0 * 15 / 8)),
    ],
)
def test_links_of_a_group(kind, group, link):
    assert gpus.link(GPU, kind, group) == Link(*link)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("h100:0", r"got 'h100:0'; expected h100:GPUS or h100:HOSTSxGPUS, with at most 8 .* Fix: write h100:8 for one"),
        ("h100:16", r"got 'h100:16'; .* Did you mean 'h100:2x8'\?"),
        ("h100:12", r"got 'h100:12'; .* Fix: write h100:8"),
        ("h100:2x2x2", r"got 'h100:2x2x2'"),
        ("b200:9999x8", r"got 'b200:9999x8'; .* 512 hosts"),
    ],
)
def test_shapes_that_no_cluster_has(topology, message):
    with pytest.raises(UserError, match=f"^--topology: {message}"):
        find_target(topology)


def test_published_specifications_are_consistent():
    for name, gpu in gpus.GPUS.items():
        assert gpu.system.lower() == f"dgx {name}" and name in gpu.source
        assert name.upper() in gpu.description["name"]
        assert gpu.hbm_bandwidth == pytest.approx(gpu.description["memory_bandwidth"], rel=0.05)
        assert 140 < gpu.peak_flops / gpu.hbm_bandwidth < 300
        assert 8 < gpu.nvlink / gpu.network < 20
    # Peaks follow from the units of the matrix cores: cores x operations in a cycle x cycles per second.
    assert gpus.GPUS["h100"].peak_flops == pytest.approx(132 * 4096 * 1.83e9, rel=0.001)
    assert gpus.GPUS["a100"].peak_flops == pytest.approx(108 * 2048 * 1.41e9, rel=0.001)


@pytest.mark.parametrize(
    ("variables", "fraction"),
    [
        ({}, 0.75),
        ({"XLA_CLIENT_MEM_FRACTION": "0.9"}, 0.9),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "1"}, 1.0),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "XLA_CLIENT_MEM_FRACTION": ""}, 0.5),
    ],
)
def test_the_part_of_the_memory_that_programs_may_use(monkeypatch, variables, fraction):
    set_only(monkeypatch, variables)
    assert gpus.memory_fraction() == fraction


@pytest.mark.parametrize("text", ["half", "0", "1.5", "nan"])
def test_a_part_that_is_not_one(monkeypatch, text):
    set_only(monkeypatch, {"XLA_CLIENT_MEM_FRACTION": text})
    with pytest.raises(UserError, match=f"^XLA_CLIENT_MEM_FRACTION: got '{text}'; expected a number from 0 to 1"):
        find_target("h100:8")


def set_only(monkeypatch, variables):
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_without_the_plugin(monkeypatch):
    monkeypatch.setattr(platforms, "installed_plugins", lambda: ["another"])
    with pytest.raises(
        UserError, match=r"--mode=plan: got no plugin of JAX for NVIDIA GPUs.*pip install -e '.\[gpu\]'"
    ):
        find_target("h100:8")


def test_a_plugin_that_jax_does_not_load(monkeypatch):
    def refuse(*args, **kwargs):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(platforms, "installed_plugins", lambda: ["xla_cuda12"])
    monkeypatch.setattr(gpus.topologies, "get_topology_desc", refuse)
    with pytest.raises(
        UserError, match=r"--mode=plan: got a plugin that JAX .* does not load; .*pip install -e '.\[gpu\]'"
    ):
        find_target("h100:8")
