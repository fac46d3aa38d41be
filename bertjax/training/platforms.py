"""The choice of the platforms that JAX initializes."""

import importlib.util
import os
import pkgutil
from collections.abc import Sequence
from glob import glob

import jax

from bertjax.errors import UserError

_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")  # device files of TPUs
_WITHOUT_TPU = ("TPU_SKIP_MDS_QUERY", "TPU_LIBRARY_PATH")  # variables that are also set on machines without TPU


def leave_out_tpu() -> None:
    """Excludes TPUs from JAX's platforms if the machine has none. Must be called before JAX uses a device.

    If libtpu is installed for `--mode=plan`, JAX would print errors about missing TPU hosts. This changes nothing if
    JAX found TPUs when it was imported, or if `JAX_PLATFORMS` is set.
    """
    plugins = installed_plugins()
    is_known = all(name.startswith("xla_cuda") for name in plugins)  # platform names of other plugins are unknown
    if jax.config.values["jax_platforms"] is None and is_known and _has_libtpu() and not _may_have_tpu():
        jax.config.update("jax_platforms", "cuda,cpu" if plugins else "cpu")


def check_devices() -> None:
    """Raises UserError if JAX has no device of the requested platform. Must be called after joining other processes."""
    requested = jax.config.values["jax_platforms"]
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # of a missing card, JAX says nothing
        raise UserError(
            f"JAX_PLATFORMS={requested}",
            got=str(error).partition(" (set")[0] or "no such device on this machine",
            expected="a platform that the installed JAX finds",
            fix="unset JAX_PLATFORMS to use any device, or install JAX for the device, such as jax[cuda13]",
        ) from error


def _may_have_tpu() -> bool:
    of_tpu = (name for name in os.environ if name.startswith("TPU_") or name == "JAX_FORCE_TPU_INIT")
    return bool(_devices()) or any(name not in _WITHOUT_TPU for name in of_tpu)


def _devices() -> Sequence[str]:
    return [path for pattern in _DEVICES for path in glob(pattern)]  # noqa: PTH207


def _has_libtpu() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def installed_plugins() -> Sequence[str]:
    """Returns the names of JAX's installed plugins for platforms other than CPU and TPU."""
    spec = importlib.util.find_spec("jax_plugins")
    return [module.name for module in pkgutil.iter_modules(spec.submodule_search_locations)] if spec else []
