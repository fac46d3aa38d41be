"""TPU slices: published specifications, and the devices of a slice, by libtpu and without hardware.

libtpu compiles for any TPU on a machine without one. The extra `plan` installs it, in the version that `jax[tpu]` pins;
a later version failed to print some programs.
"""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

from bertjax.errors import UserError
from bertjax.settings import environment
from bertjax.tools.planning.chips import Chip, Link, Target

_GIB = 2**30
_PAGES = "https://cloud.google.com/tpu/docs/"
_ASSUMPTIONS = (
    "collectives use rings over all links of the dimensions that a group spans, in both directions if the ends of a "
    "dimension are linked",
)


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A kind of TPU.

    Attributes:
      chip: the specification. Its memory is what the compiler allows a program to use.
      dimensions: number of dimensions of the slice's grid. A chip has two links per dimension.
      ring: the ends of a dimension are linked if its length is a multiple of this number.
      largest: maximum number of chips of a slice.
      options: options for libtpu.
    """

    chip: Chip
    dimensions: int
    ring: int
    largest: int
    options: tuple[tuple[str, Any], ...] = ()


# Keep libtpu from looking for hardware, cloud metadata and the lock of another process, unless they are set.
_VARIABLES = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # any known type
}
# Link bandwidth is the published one-way bandwidth of all links divided by their number: 1,600 Gbps on 4 links of a v5e
# is 50 GB/s. Memory is the available memory in the compiler's message when a program needs too much. The clock is the
# peak divided by the operations of all matrix units in a cycle (v5e: 4 units of 128x128, v4 and v5p: 8).
TPUS = {
    "v4": Tpu(
        Chip(275e12, int(30.75 * _GIB), 1200e9, {"link": 50e9}, 275e12 / (8 * 2 * 128**2), _PAGES + "v4"),
        dimensions=3,
        ring=4,
        largest=4096,
        options=(("chip_config_name", "megacore"),),
    ),
    "v5e": Tpu(
        Chip(197e12, int(15.75 * _GIB), 819e9, {"link": 50e9}, 197e12 / (4 * 2 * 128**2), _PAGES + "v5e"),
        dimensions=2,
        ring=16,
        largest=256,
    ),
    "v5p": Tpu(
        Chip(459e12, int(95.74 * _GIB), 2765e9, {"link": 100e9}, 459e12 / (8 * 2 * 128**2), _PAGES + "v5p"),
        dimensions=3,
        ring=4,
        largest=6144,
    ),
    "v6e": Tpu(
        Chip(918e12, int(31.25 * _GIB), 1600e9, {"link": 100e9}, 0.0, _PAGES + "v6e"),
        dimensions=2,
        ring=16,
        largest=256,
    ),
}


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Raises UserError unless a slice of a kind can have a shape."""
    tpu = TPUS[name]
    if len(shape) != tpu.dimensions:
        raise _unknown(name, shape, f"{len(shape)} dimension(s), but a slice of {name} has {tpu.dimensions}")
    if not 0 < math.prod(shape) <= tpu.largest:
        raise _unknown(name, shape, f"{math.prod(shape)} chips, but a slice of {name} has at most {tpu.largest}")


def find(name: str, shape: Sequence[int]) -> Target:
    """Returns the slice of a kind and a shape that `check_shape` accepts.

    Raises:
      UserError: if libtpu does not know the shape, is missing, or is not the version that jax[tpu] pins.
    """
    _check_libtpu()
    tpu = TPUS[name]
    options = dict(tpu.options)
    if math.prod(shape) < 4:  # part of a host
        options["chips_per_host_bounds"] = (*shape, 1, 1)[:3]
    topology = f"{name}:{'x'.join(map(str, shape))}"
    try:
        with environment(**_VARIABLES | {name: os.environ[name] for name in _VARIABLES if name in os.environ}):
            devices = topologies.get_topology_desc(topology, platform="tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise _unknown(name, shape, " ".join(str(error).split())) from error
    return Target(
        topology, tpu.chip, devices, lambda _, group: link(tpu, group, devices), _ASSUMPTIONS, compilers=("libtpu",)
    )


def _unknown(name: str, shape: Sequence[int], reason: str) -> UserError:
    return UserError(
        "--topology",
        got=f"'{name}:{'x'.join(map(str, shape))}' ({reason})",
        expected="the shape of a slice that libtpu knows, such as v5e:4x4, v5e:16x16, v6e:8x8, v4:2x2x4 or v5p:4x4x4",
        fix="choose a shape that is available for the chip; Google's page about the chip lists them",
    )


def _check_libtpu() -> None:
    """Raises UserError unless libtpu is installed in the version that jax[tpu] pins."""
    wanted = pinned_libtpu(importlib.metadata.requires("jax") or [])
    fix = "pip install -e '.[plan]'"
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("--mode=plan", got="no libtpu", expected="libtpu, the TPU compiler (no TPU needed)", fix=fix)
    version = importlib.metadata.version("libtpu")
    if wanted and not version.startswith(wanted):
        expected = f"{wanted}, which jax[tpu] {jax.__version__} pins"
        raise UserError("libtpu", got=f"version {version}", expected=expected, fix=fix)


def pinned_libtpu(requirements: Sequence[str]) -> str:
    """Returns the version of libtpu in the extra `tpu` of JAX's requirements, without a final ".*"; "" for none."""
    versions = (re.match(r"libtpu\s*==\s*([\w.]+?)(?:\.\*)?\s*;\s*extra == [\"']tpu[\"']", r) for r in requirements)
    return next((match[1] for match in versions if match), "")


def link(tpu: Tpu, group: Sequence[Any], slice_devices: Sequence[Any]) -> Link:
    """Returns the links of a chip that are busy at once when a group of devices communicates in rings.

    Each dimension of the grid that the group extends over contributes two links if its ends are linked, that is, if the
    group spans the slice and the dimension is long enough. Otherwise it contributes one, because on a line the ring
    returns over the same links.

    Args:
      tpu: the kind of chip.
      group: the devices of the group.
      slice_devices: all devices of the slice.
    """
    count = 0
    for dimension in range(tpu.dimensions):
        spanned = {device.coords[dimension] for device in group}
        length = len({device.coords[dimension] for device in slice_devices})
        if len(spanned) > 1:
            count += 2 if len(spanned) == length and length % tpu.ring == 0 else 1
    count = max(count, 1)
    return Link(f"{count} link{'s' * (count > 1)}", count * tpu.chip.links["link"])
