from benchmarks import __main__ as suite
from benchmarks import common


def test_ratios_are_those_of_each_round_and_work_without_a_peer_is_compared_with_an_earlier_version():
    step = common.speed_of("step", "tokens/s", 10.0, {"ours": [1.0, 2.0], "eager": [3.0, 3.0]})._asdict()
    alone = common.Speed("rows", "MB/s", [3.0, 3.0])
    lines = suite.table([step, alone._asdict()], [alone._replace(ours=[1.5])._asdict()]).splitlines()
    assert lines[2:] == [
        "| step | tokens/s | eager | 3.333 | 7.5 | 2.25 | 1.88 to 2.62 |  |",
        "| rows | MB/s | before | 1.5 | 3 | 2.00 | 2.00 to 2.00 |  |",
    ]
