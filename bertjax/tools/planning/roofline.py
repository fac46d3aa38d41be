"""Lower bounds of a step's time from its costs."""

from typing import Any

from jax.sharding import Mesh

from bertjax.tools.planning.chips import Chip, Link, Target
from bertjax.tools.planning.costs import Collective, Costs

Table = dict[str, dict[str, dict[str, Any]]]


def roofline(costs: Costs, target: Target, mesh: Mesh) -> dict[str, float]:
    """Returns the seconds that each resource is busy in a step: "compute", "memory" and "interconnect".

    This is the roofline model (Williams et al. 2009) with the links between devices as a third resource.
    """
    table = collective_table(costs, target, mesh)
    return {
        "compute": costs.flops / target.chip.peak_flops,
        "memory": costs.hbm_bytes / target.chip.hbm_bandwidth,
        "interconnect": sum(row["seconds"] for rows in table.values() for row in rows.values()),
    }


def seconds_in_turn(costs: Costs, chip: Chip) -> float:
    """Returns the seconds of a step's computation if its instructions do not overlap, as on a GPU.

    Each takes the longer of two times: its products at the peak, and its bytes at full bandwidth.
    """
    return sum(
        work.times * max(work.flops / chip.peak_flops, work.hbm_bytes / chip.hbm_bandwidth) for work in costs.works
    )


def collective_table(costs: Costs, target: Target, mesh: Mesh) -> Table:
    """Returns the collectives of a step by kind and by the name of their link.

    A row has the count, the bytes of results, the bytes that a device sends, and the seconds at the link's bandwidth.
    """
    table: Table = {}
    for collective in sorted(costs.collectives.values()):
        link = _link(collective, target, mesh)
        row = table.setdefault(collective.kind, {}).setdefault(
            link.name, {"count": 0, "bytes": 0, "sent_bytes": 0.0, "seconds": 0.0}
        )
        row["count"] += collective.times
        row["bytes"] += collective.times * collective.num_bytes
        row["sent_bytes"] += collective.sent_bytes
        row["seconds"] += collective.sent_bytes / link.bandwidth
    return table


def _link(collective: Collective, target: Target, mesh: Mesh) -> Link:
    """The link of the group that communicates most slowly."""
    devices = list(mesh.devices.ravel())
    links = (target.link(collective.kind, [devices[i] for i in group]) for group in collective.groups)
    return min(links, key=lambda link: link.bandwidth)
