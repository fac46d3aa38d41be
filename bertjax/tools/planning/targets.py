"""The devices that `--topology` names: a slice of TPUs or a cluster of GPUs. No hardware is needed."""

import math
import re
from types import ModuleType

from bertjax.errors import UserError, did_you_mean
from bertjax.tools.planning import gpus, tpus
from bertjax.tools.planning.chips import Target

_NAMES = (*tpus.TPUS, *gpus.GPUS)


def find_target(topology: str) -> Target:
    """Returns the devices of a topology such as "v5e:16x16" or "h100:4x8".

    Raises:
      UserError: if the topology does not exist, or the compiler for it is missing or has the wrong version.
    """
    kind, name, shape = _parse(topology)
    target: Target = kind.find(name, shape)
    return target


def num_devices(topology: str) -> int:
    """Returns the number of devices of a topology. Raises UserError if the topology is malformed."""
    return math.prod(_parse(topology)[2])


def _parse(topology: str) -> tuple[ModuleType, str, tuple[int, ...]]:
    """The module for the kind of device, the name of the kind, and the shape."""
    match = re.fullmatch(r"([\w-]+):(\d+(?:x\d+)*)", topology, re.ASCII)
    if not match:
        raise _unknown(repr(topology) if topology else "none")
    name = match[1]
    shape = tuple(map(int, match[2].split("x")))
    kind = tpus if name in tpus.TPUS else gpus if name in gpus.GPUS else None
    if kind is None:
        raise _unknown(f"'{topology}' (unknown device)", name, match[2])
    kind.check_shape(name, shape)
    return kind, name, shape


def _unknown(got: str, name: str = "", shape: str = "") -> UserError:
    return UserError(
        "--topology",
        got=got,
        expected=f"a device ({', '.join(_NAMES)}) and a shape, such as v5e:16x16, v5p:4x4x4, h100:8 or h100:4x8",
        fix=did_you_mean(name.lower(), _NAMES, "write DEVICE:SHAPE; for GPUs the shape is HOSTSxGPUS", f"{{}}:{shape}"),
    )
