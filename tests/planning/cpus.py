"""CPU devices of this machine as the devices of a plan."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from bertjax.planning.chips import Chip, Link, Target

CHIP = Chip(peak_flops=1e9, hbm_bytes=2**30, hbm_bandwidth=1e9, links={"link": 1e7}, clock=0.0, source="nowhere")


def target_of(bandwidth: float = 1e7, link: Callable[[str, Sequence[Any]], Link] | None = None) -> Target:
    """Returns eight CPU devices, with links of one bandwidth unless `link` returns others."""
    return Target("here", CHIP, jax.devices(), link or (lambda kind, group: Link("link", bandwidth)))
