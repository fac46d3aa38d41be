"""Chips and slices of them: published figures, and the devices of a slice that is not here, by way of libtpu.

libtpu compiles for any TPU on a machine without one. It is the extra `plan`, in the version that `jax[tpu]` pins: a
later one compiled, but failed to print some programs.
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
    """What a chip can do.

    Attributes:
      peak_flops: bfloat16 operations a second of the matrix units; float32 products run on the same units by default.
      hbm_bytes: memory that the compiler lets a program have, a little less than the chip has.
      hbm_bandwidth: bytes a second.
      link_bandwidth: bytes a second of one link in one direction; a chip has two links for each dimension.
      dimensions: of the slice's grid.
      clock: cycles a second, where it follows from published figures; else 0.
      ring: chips along a dimension from which on, in multiples, its ends are linked too.
      largest: chips of a slice.
      options: what libtpu must be told.
      source: where the figures are published.
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


# Link bandwidth is the published bandwidth of all links, one way, by their number: 1,600 Gbps on 4 links of a v5e make
# 50 GB/s. Memory is what the compiler says is available when a program asks for too much. The clock is the peak by the
# operations of all matrix units in a cycle (v5e: 4 units of 128x128, v4 and v5p: 8).
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
    """Chips that are connected to each other, in a grid."""

    name: str
    chip: Chip
    devices: Sequence[Any]  # as a mesh takes them; on a TPU with `coords`


def find_slice(topology: str) -> Slice:
    """The slice of a topology such as "v5e:16x16"; touches no hardware.

    Raises:
      UserError: a topology that there is not, or libtpu is missing or of another version than jax[tpu] pins.
    """
    chip, shape = _parse(topology)
    _check_libtpu()
    # None of these may look for hardware, a cloud or another process's lock.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")  # any that it knows
    options = dict(chip.options)
    if math.prod(shape) < 4:  # part of a host
        options["chips_per_host_bounds"] = (*shape, 1, 1)[:3]
    try:
        description = topologies.get_topology_desc(topology, platform="tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        raise _unknown(topology, " ".join(str(error).split())) from error
    return Slice(topology, chip, description.devices)


def slice_size(topology: str) -> int:
    """How many chips it has. Raises UserError as `find_slice`."""
    return math.prod(_parse(topology)[1])


def _parse(topology: str) -> tuple[Chip, tuple[int, ...]]:
    """The chip, and the shape of the grid."""
    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", topology)
    if not found or found[1] not in CHIPS:
        raise _unknown(topology, "no chip of that name" if found else "not CHIP:AxB")
    name, shape = found[1], tuple(map(int, found[2].split("x")))
    chip = CHIPS[name]
    if len(shape) != chip.dimensions:
        raise _unknown(topology, f"{len(shape)} dimension(s), where a slice of {name} has {chip.dimensions}")
    if not 0 < math.prod(shape) <= chip.largest:
        raise _unknown(topology, f"{math.prod(shape)} chips, where a slice of {name} has at most {chip.largest}")
    return chip, shape


def _unknown(topology: str, why: str) -> UserError:
    return UserError(
        "--topology",
        got=f"{topology!r} ({why})" if topology else "none",
        expected=f"a chip ({', '.join(CHIPS)}) and the shape of a slice that libtpu knows, such as {_EXAMPLES}",
        fix="choose a shape that the chip is sold in; its page says which",
    )


def _check_libtpu() -> None:
    """Raises UserError unless libtpu is there, in the version that goes with this JAX."""
    wanted = pinned_libtpu(importlib.metadata.requires("jax") or [])
    fix = "pip install -e '.[plan]'"
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("--mode=plan", got="no libtpu", expected="TPU's compiler, which needs no TPU", fix=fix)
    found = importlib.metadata.version("libtpu")
    if wanted and not found.startswith(wanted):
        expected = f"{wanted}, which jax[tpu] {jax.__version__} pins"
        raise UserError("libtpu", got=f"version {found}", expected=expected, fix=fix)


def pinned_libtpu(requirements: Sequence[str]) -> str:
    """The version of libtpu, without a final ".*", that the extra `tpu` of JAX's requirements names; "" for none."""
    versions = (re.match(r"libtpu\s*==\s*([\w.]+?)(?:\.\*)?\s*;\s*extra == [\"']tpu[\"']", r) for r in requirements)
    return next((found[1] for found in versions if found), "")


def links(group: Sequence[Any], whole: Sequence[Any], chip: Chip) -> int:
    """How many links of a chip can work at the same time when a group of devices exchanges data in rings.

    Along each dimension of the grid that the group extends over there are two if its ends are linked (it spans the
    slice and is long enough), or one: on a line, what goes around a ring has to come back over the same links.

    Args:
      group: its devices; those without coordinates count as a line.
      whole: all devices of the slice.
      chip: of which kind.
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
