"""The devices that a run is planned for, as far as a plan depends on them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


@dataclasses.dataclass(frozen=True)
class Chip:
    """The specification of a TPU chip or of a GPU.

    Attributes:
      peak_flops: dense bfloat16 operations per second of the matrix units.
      hbm_bytes: memory that a program may use, which is less than the chip's memory.
      hbm_bandwidth: bytes per second.
      links: bytes per second that a device sends over one link of each kind, by name.
      clock: cycles per second if the compiler estimates cycles and the clock follows from published figures; else 0.
      source: the page with the published figures.
    """

    peak_flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    links: Mapping[str, float]
    clock: float
    source: str


class Link(NamedTuple):
    """What the devices of a group communicate over."""

    name: str
    bandwidth: float  # bytes per second that each device of the group sends


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices that a run is planned for.

    Attributes:
      name: the value of `--topology`.
      chip: the kind of the devices.
      devices: devices for a mesh. They compile programs and run none.
      link: returns the link of a group of devices, given the kind of a collective (see `hlo.COLLECTIVES`).
      assumptions: what a plan assumes about the devices, in words.
      compiler_options: options for compiling.
      compilers: the packages that compile.
    """

    name: str
    chip: Chip
    devices: Sequence[Any]
    link: Callable[[str, Sequence[Any]], Link]
    assumptions: tuple[str, ...] = ()
    compiler_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    compilers: tuple[str, ...] = ()
