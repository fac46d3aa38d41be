"""The choice of the platforms that JAX initializes."""

from types import SimpleNamespace

import pytest

from bertjax.errors import UserError
from bertjax.training import platforms


@pytest.fixture
def machine(monkeypatch):
    """Simulates a machine with libtpu and without TPU, on which JAX has not chosen a platform."""
    values = {"jax_platforms": None}
    machine = SimpleNamespace(values=values, plugins=(), devices=())
    monkeypatch.setattr(platforms.jax, "config", SimpleNamespace(values=values, update=values.__setitem__))
    monkeypatch.setattr(platforms, "_has_libtpu", lambda: True)
    monkeypatch.setattr(platforms, "installed_plugins", lambda: machine.plugins)
    monkeypatch.setattr(platforms, "_devices", lambda: machine.devices)
    for name in [name for name in platforms.os.environ if name.startswith("TPU_")]:
        monkeypatch.delenv(name)
    return machine


@pytest.mark.parametrize(
    ("plugins", "expected"), [((), "cpu"), (("xla_cuda12",), "cuda,cpu"), (("xla_cuda13", "mine"), None)]
)
def test_a_missing_tpu_is_excluded(machine, monkeypatch, plugins, expected):
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # JAX itself sets it on machines without TPU
    machine.plugins = plugins
    platforms.leave_out_tpu()
    assert machine.values["jax_platforms"] == expected


@pytest.mark.parametrize("what", ["device", "environment", "choice", "no libtpu"])
def test_the_platforms_are_left_to_jax(machine, monkeypatch, what):
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


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("no backend (set ...)")])
def test_a_device_that_is_not_there_is_an_error(monkeypatch, error):
    def devices():
        raise error

    monkeypatch.setattr(platforms.jax, "devices", devices)
    got = str(error).partition(" (")[0] or "no such device on this machine"
    with pytest.raises(
        UserError, match=f"JAX_PLATFORMS=.*: got {got}; expected a platform .* Fix: unset JAX_PLATFORMS"
    ):
        platforms.check_devices()
