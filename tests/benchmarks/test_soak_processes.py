"""The table of kills."""

from benchmarks import soak_processes
from benchmarks.soak_processes import Kill


def test_kills_are_counted_by_processes_and_signal():
    kills = [
        Kill(2, "training", "KILL", 0, 3, 4.4),
        Kill(2, "training", "KILL", 1, 1, 29.6),
        Kill(2, "saving", "KILL", 1, 4, 2.0),
        Kill(4, "evaluation", "TERM", 2, 0, 6.0),
        Kill(4, "starting", "TERM", 2, 0, 71.0),
    ]
    header, _, *rows = soak_processes.table(kills)
    assert header == (
        "| processes | signal | preparation | training | saving | starting | evaluation | most updates lost "
        "| longest to end, s | during a start, s |"
    )
    assert rows == [
        "| 2 | SIGKILL | 0 | 2 | 1 | 0 | 0 | 4 | 30 | 0 |",
        "| 2 | SIGTERM | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |",
        "| 4 | SIGKILL | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |",
        "| 4 | SIGTERM | 0 | 0 | 0 | 1 | 1 | 0 | 6 | 71 |",
    ]
