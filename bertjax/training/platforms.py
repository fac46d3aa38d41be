"""The platforms that JAX tries."""

import importlib.util
import os
import pkgutil
from collections.abc import Sequence
from glob import glob

import jax

_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")  # of TPUs
_WITHOUT_TPU = ("TPU_SKIP_MDS_QUERY", "TPU_LIBRARY_PATH")  # are also set where there is none


def leave_out_tpu() -> None:
    """Keeps JAX from trying a TPU that is not there, before it touches any device.

    Where libtpu is installed for `--mode=plan`, it would print errors about missing TPU hosts. JAX itself looks for
    TPUs when it is imported, and chooses them if it finds some. What `JAX_PLATFORMS` says stands.
    """
    plugins = _plugins()
    is_known = all(name.startswith("xla_cuda") for name in plugins)  # what others are called in the list is unknown
    if jax.config.values["jax_platforms"] is None and is_known and _has_libtpu() and not _may_have_tpu():
        jax.config.update("jax_platforms", "cuda,cpu" if plugins else "cpu")


def _may_have_tpu() -> bool:
    of_tpu = (name for name in os.environ if name.startswith("TPU_") or name == "JAX_FORCE_TPU_INIT")
    return bool(_devices()) or any(name not in _WITHOUT_TPU for name in of_tpu)


def _devices() -> Sequence[str]:
    return [path for pattern in _DEVICES for path in glob(pattern)]  # noqa: PTH207


def _has_libtpu() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def _plugins() -> Sequence[str]:
    """The names of the plugins through which JAX has other platforms than CPU and TPU."""
    found = importlib.util.find_spec("jax_plugins")
    return [module.name for module in pkgutil.iter_modules(found.submodule_search_locations)] if found else []
