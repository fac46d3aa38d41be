"""Which platforms JAX is left to try."""

from types import SimpleNamespace

import pytest

from bertjax.training import platforms


@pytest.fixture
def machine(monkeypatch):
    """One with libtpu and no TPU, where JAX has found nothing to choose."""
    values = {"jax_platforms": None}
    machine = SimpleNamespace(values=values, plugins=(), devices=())
    monkeypatch.setattr(platforms.jax, "config", SimpleNamespace(values=values, update=values.__setitem__))
    monkeypatch.setattr(platforms, "_has_libtpu", lambda: True)
    monkeypatch.setattr(platforms, "_plugins", lambda: machine.plugins)
    monkeypatch.setattr(platforms, "_devices", lambda: machine.devices)
    for name in [name for name in platforms.os.environ if name.startswith("TPU_")]:
        monkeypatch.delenv(name)
    return machine


@pytest.mark.parametrize(
    ("plugins", "expected"), [((), "cpu"), (("xla_cuda12",), "cuda,cpu"), (("xla_cuda13", "mine"), None)]
)
def test_a_tpu_that_is_not_there_is_not_tried(machine, monkeypatch, plugins, expected):
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # by JAX itself, where it sees no TPU
    machine.plugins = plugins
    platforms.leave_out_tpu()
    assert machine.values["jax_platforms"] == expected


@pytest.mark.parametrize("what", ["device", "environment", "choice", "no libtpu"])
def test_jax_decides_otherwise(machine, monkeypatch, what):
    if what == "device":
        machine.devices = ("/dev/accel0",)
    elif what == "environment":
        monkeypatch.setenv("TPU_WORKER_ID", "0")
    elif what == "choice":
        machine.values["jax_platforms"] = "tpu,cpu"
    else:
        monkeypatch.setattr(platforms, "_has_libtpu", lambda: False)
    platforms.leave_out_tpu()
    assert machine.values["jax_platforms"] == ("tpu,cpu" if what == "choice" else None)
