"""Times of collectives over the links of their groups, with CPU devices that pose as GPUs of two hosts."""

from types import SimpleNamespace

import jax
import pytest

from bertjax.tools.planning import gpus
from bertjax.tools.planning.chips import Chip
from bertjax.tools.planning.costs import Collective, Costs, Work
from bertjax.tools.planning.roofline import collective_table, roofline, seconds_in_turn
from tests.tools.planning.plans import target_of

GPU = Chip(1e3, 2**30, 1e2, {"NVLink": 400.0, "network": 50.0}, 0.0, "nowhere")
WHOLE = (tuple(range(8)),)
ON_HOSTS, ACROSS = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7))


def on_hosts(size):
    """This machine's devices as GPUs, with `size` GPUs on each host."""
    return target_of(
        link=lambda kind, group: gpus.link(
            GPU, kind, [SimpleNamespace(process_index=each.id // size) for each in group]
        )
    )


@pytest.fixture
def mesh():
    return jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def costs_of(*collectives):
    return Costs([], {str(number): each for number, each in enumerate(collectives)}, 0)


def test_each_collective_has_the_link_of_its_groups(mesh):
    costs = costs_of(
        Collective("all-reduce", 1000, WHOLE, 2),
        Collective("all-reduce", 1000, ACROSS, 1),
        Collective("all-gather", 1000, ON_HOSTS, 3),
    )
    table = collective_table(costs, on_hosts(4), mesh)
    assert list(table) == ["all-gather", "all-reduce"]
    gathered = 3 * 1000 * 3 / 4
    assert table["all-gather"] == {
        "NVLink": {"count": 3, "bytes": 3000, "sent_bytes": gathered, "seconds": gathered / 400}
    }
    # Rings over both hosts use four ports; those between two GPUs one.
    on_all, on_pairs = 2 * 2000 * 7 / 8, 2 * 1000 / 2
    row = table["all-reduce"]["network"]
    assert (row["count"], row["bytes"], row["sent_bytes"]) == (3, 3000, on_all + on_pairs)
    assert row["seconds"] == pytest.approx(on_all / 200 + on_pairs / 50)
    seconds = roofline(costs, on_hosts(4), mesh)
    assert seconds["interconnect"] == pytest.approx(gathered / 400 + on_all / 200 + on_pairs / 50)


def test_the_slowest_group_determines_the_link(mesh):
    pairs = ((0, 1), (2, 3), (4, 5), (6, 7))
    costs = costs_of(Collective("all-gather", 1000, pairs, 1))
    assert list(collective_table(costs, on_hosts(4), mesh)["all-gather"]) == ["NVLink"]
    assert list(collective_table(costs, on_hosts(3), mesh)["all-gather"]) == ["network"]  # 2 and 3 are on two hosts


def test_groups_are_positions_in_the_mesh(mesh):
    costs = costs_of(Collective("all-gather", 1000, ((0, 1, 2), (3, 4, 5)), 1))
    in_reverse = jax.sharding.Mesh(jax.devices()[::-1], ("data",))  # the groups are devices 7, 6, 5 and 4, 3, 2
    assert list(collective_table(costs, on_hosts(5), in_reverse)["all-gather"]) == ["NVLink"]
    assert list(collective_table(costs, on_hosts(5), mesh)["all-gather"]) == ["network"]


def test_compute_and_memory(mesh):
    seconds = roofline(Costs([Work("", "", 1e9, 1_500_000_000, None, 2)], {}, 0), target_of(), mesh)
    assert seconds == {"compute": 2.0, "memory": 3.0, "interconnect": 0}


def test_without_overlap_each_instruction_takes_the_longer_of_its_two_times():
    product = Work("attention", "matrix products", 10 * GPU.peak_flops, int(GPU.hbm_bandwidth), None, times=2)
    norm = Work("attention", "norm", 0.0, 3 * int(GPU.hbm_bandwidth), None, times=1)
    assert seconds_in_turn(Costs([product, norm], {}, 0), GPU) == 2 * 10 + 3
