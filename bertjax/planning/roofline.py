"""Lower bounds of a step's time from its costs."""

from typing import Any

from jax.sharding import Mesh

from bertjax.planning.chips import Slice, links
from bertjax.planning.costs import Costs


def roofline(costs: Costs, where: Slice, mesh: Mesh) -> dict[str, float]:
    """Returns the seconds that each resource is busy in a step: "compute", "memory" and "interconnect".

    This is the roofline model (Williams et al. 2009) with the links between chips as a third resource.
    """
    devices = list(mesh.devices.ravel())
    interconnect = sum(
        each.sent_bytes / (where.chip.link_bandwidth * links([devices[i] for i in each.group], devices, where.chip))
        for each in costs.collectives.values()
    )
    return {
        "compute": costs.flops / where.chip.peak_flops,
        "memory": costs.hbm_bytes / where.chip.hbm_bandwidth,
        "interconnect": interconnect,
    }


def collective_table(costs: Costs) -> dict[str, dict[str, Any]]:
    """Returns for each kind of collective its count per step, the exchanged bytes, and the bytes a device sends."""
    table: dict[str, dict[str, Any]] = {}
    for each in costs.collectives.values():
        row = table.setdefault(each.kind, {"count": 0, "bytes": 0, "sent_bytes": 0.0})
        row["count"] += each.times
        row["bytes"] += each.times * each.num_bytes
        row["sent_bytes"] += each.sent_bytes
    return {kind: table[kind] for kind in sorted(table)}
