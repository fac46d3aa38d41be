"""TPU chips and slices: published specifications, and the devices of a slice, by libtpu and without hardware.

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
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from bertjax.errors import UserError

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """The specification of a chip.

    Attributes:
      peak_flops: bfloat16 operations per second of the matrix units, which float32 products also use by default.
      hbm_bytes: memory that the compiler allows a program to use, slightly less than the chip's memory.
      hbm_bandwidth: bytes per second.
      link_bandwidth: bytes per second of one link in one direction. A chip has two links per dimension.
      dimensions: number of dimensions of the slice's grid.
      clock: cycles per second if they follow from published figures; else 0.
      ring: the ends of a dimension are linked if its length is a multiple of this number.
      largest: maximum number of chips of a slice.
      options: options for libtpu.
      source: the page with the published figures.
    """

    peak_flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    dimensions: int
    clock: float
    ring: int
    largest: int
    options: tuple[tuple[str, Any], ...]
    source: str


# Link bandwidth is the published one-way bandwidth of all links divided by their number: 1,600 Gbps on 4 links of a v5e
# is 50 GB/s. Memory is the available memory in the compiler's message when a program needs too much. The clock is the
# peak divided by the operations of all matrix units in a cycle (v5e: 4 units of 128x128, v4 and v5p: 8).
CHIPS = {
    "v4": Chip(
        275e12,
        int(30.75 * _GIB),
        1200e9,
        50e9,
        3,
        275e12 / (8 * 2 * 128**2),
        4,
        4096,
        (("chip_config_name", "megacore"),),
        "https://cloud.google.com/tpu/docs/v4",
    ),
    "v5e": Chip(
        197e12,
        int(15.75 * _GIB),
        819e9,
        50e9,
        2,
        197e12 / (4 * 2 * 128**2),
        16,
        256,
        (),
        "https://cloud.google.com/tpu/docs/v5e",
    ),
    "v5p": Chip(
        459e12,
        int(95.74 * _GIB),
        2765e9,
        100e9,
        3,
        459e12 / (8 * 2 * 128**2),
        4,
        6144,
        (),
        "https://cloud.google.com/tpu/docs/v5p",
    ),
    "v6e": Chip(918e12, int(31.25 * _GIB), 1600e9, 100e9, 2, 0.0, 16, 256, (), "https://cloud.google.com/tpu/docs/v6e"),
}
_EXAMPLES = "v5e:4x4, v5e:16x16, v6e:8x8, v4:2x2x4 or v5p:4x4x4"


class Slice(NamedTuple):
    """A grid of connected chips."""

    name: str
    chip: Chip
    devices: Sequence[Any]  # devices for a mesh; those of a TPU have `coords`


def find_slice(topology: str) -> Slice:
    """Returns the slice of a topology such as "v5e:16x16". Uses no hardware.

    Raises:
      UserError: if the topology does not exist, or if libtpu is missing or not the version that jax[tpu] pins.
    """
    chip, shape = _parse(topology)
    _check_libtpu()
    # These keep libtpu from looking for hardware, cloud metadata and the lock of another process.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")  # any known type
    options = dict(chip.options)
    if math.prod(shape) < 4:  # part of a host
        options["chips_per_host_bounds"] = (*shape, 1, 1)[:3]
    try:
        description = topologies.get_topology_desc(topology, platform="tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        raise _unknown(topology, " ".join(str(error).split())) from error
    return Slice(topology, chip, description.devices)


def slice_size(topology: str) -> int:
    """Returns the number of chips of a topology. Raises UserError if the topology is malformed."""
    return math.prod(_parse(topology)[1])


def _parse(topology: str) -> tuple[Chip, tuple[int, ...]]:
    """The chip and the shape of the grid of a topology."""
    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", topology)
    if not found or found[1] not in CHIPS:
        raise _unknown(topology, "unknown chip" if found else "not CHIP:AxB")
    name, shape = found[1], tuple(map(int, found[2].split("x")))
    chip = CHIPS[name]
    if len(shape) != chip.dimensions:
        raise _unknown(topology, f"{len(shape)} dimension(s), but a slice of {name} has {chip.dimensions}")
    if not 0 < math.prod(shape) <= chip.largest:
        raise _unknown(topology, f"{math.prod(shape)} chips, but a slice of {name} has at most {chip.largest}")
    return chip, shape


def _unknown(topology: str, reason: str) -> UserError:
    return UserError(
        "--topology",
        got=f"{topology!r} ({reason})" if topology else "none",
        expected=f"a chip ({', '.join(CHIPS)}) and the shape of a slice that libtpu knows, such as {_EXAMPLES}",
        fix="choose a shape that is available for the chip; Google's page about the chip lists them",
    )


def _check_libtpu() -> None:
    """Raises UserError unless libtpu is installed in the version that jax[tpu] pins."""
    wanted = pinned_libtpu(importlib.metadata.requires("jax") or [])
    fix = "pip install -e '.[plan]'"
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("--mode=plan", got="no libtpu", expected="libtpu, the TPU compiler (no TPU needed)", fix=fix)
    found = importlib.metadata.version("libtpu")
    if wanted and not found.startswith(wanted):
        expected = f"{wanted}, which jax[tpu] {jax.__version__} pins"
        raise UserError("libtpu", got=f"version {found}", expected=expected, fix=fix)


def pinned_libtpu(requirements: Sequence[str]) -> str:
    """Returns the version of libtpu in the extra `tpu` of JAX's requirements, without a final ".*"; "" for none."""
    versions = (re.match(r"libtpu\s*==\s*([\w.]+?)(?:\.\*)?\s*;\s*extra == [\"']tpu[\"']", r) for r in requirements)
    return next((found[1] for found in versions if found), "")


def links(group: Sequence[Any], whole: Sequence[Any], chip: Chip) -> int:
    """Returns the number of a chip's links that are busy at once when a group of devices communicates in rings.

    Each dimension of the grid that the group extends over contributes two links if its ends are linked, that is, if the
    group spans the slice and the dimension is long enough. Otherwise it contributes one, because on a line the ring
    returns over the same links.

    Args:
      group: the devices of the group; devices without coordinates count as a line.
      whole: all devices of the slice.
      chip: the kind of chip.
    """
    if not hasattr(group[0], "coords"):
        return 1
    count = 0
    for dimension in range(chip.dimensions):
        spanned = {device.coords[dimension] for device in group}
        length = len({device.coords[dimension] for device in whole})
        if len(spanned) > 1:
            count += 2 if len(spanned) == length and length % chip.ring == 0 else 1
    return max(count, 1)
