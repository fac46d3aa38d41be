"""Kills one of several processes at random moments and starts the run again, on another number of processes.

    python -m benchmarks.soak_processes --kills=50 --processes=1,2,4

The run is that of `benchmarks.soak`: a small model with dropout that saves every fourth step. One of it is left alone,
on one process. The others start on a random number of processes, of which a random one gets SIGKILL or SIGTERM while
they prepare the text, start, train, save or evaluate, again and again until they finish. Prints each kill and a table.
Exits with status 1 if a process that trained goes on for more than 60 s, if one that lost another seems to have ended
well, if more than one save interval is lost, if a start gets to no step, or if the last held-out loss differs by more
than 1e-4 from that of the run that was left alone. Before the first update SIGTERM is heeded after it, so what has not
trained yet may take as long as a start does, which depends on what else the machine does.
"""

import argparse
import contextlib
import dataclasses
import itertools
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.soak import CONFIG, SAVE_EVERY, STOPPED, Run, write_text

_END_SECONDS = 60
_START_SECONDS = 900  # for a first step; the machine may have other work
_LOOK_EVERY = 0.01
_BEFORE_TRAINING = ("preparation", "starting")
# The moments that the kills of a run are aimed at, in turn; then it is left to finish.
_AIMS = ("preparation", *("training", "saving", "starting", "evaluation", "training") * 3)


@dataclasses.dataclass(frozen=True)
class Kill:
    """What a signal to one process did to a run.

    Attributes:
      processes: how many the run had.
      phase: what it was at.
      signal: which signal, "KILL" or "TERM".
      victim: the process that got it.
      lost: updates to be made again.
      seconds: until all processes had ended.
    """

    processes: int
    phase: str
    signal: str
    victim: int
    lost: int
    seconds: float


def start(run: Run, count: int) -> list[subprocess.Popen]:
    """Starts, or goes on with, a run on so many processes."""
    if count == 1:
        return [run.start("--distributed=off")]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        joining = (f"--coordinator_address=127.0.0.1:{probe.getsockname()[1]}", f"--num_processes={count}")
    return [run.start("--distributed=on", *joining, f"--process_id={i}") for i in range(count)]


def wait_for(processes: Sequence[subprocess.Popen], run: Run, aim: str, rng: random.Random) -> bool:
    """Waits for a random moment of what a kill is aimed at; returns whether the run still goes on."""
    began, begun_from, later = time.monotonic(), run.logged(), rng.randrange(1, 12)
    delay = rng.uniform(0, 6 * len(processes)) if aim in ("starting", "preparation") else None
    while all(process.poll() is None for process in processes):
        seconds = time.monotonic() - began
        assert seconds < _START_SECONDS or run.logged() > begun_from, f"no step in {_START_SECONDS} s\n{run.log()}"
        if delay is not None and seconds >= delay:
            return True
        if delay is None and run.logged() - begun_from >= later and run.phase(has_begun=True) == aim:
            return True
        time.sleep(_LOOK_EVERY)
    return False


def kill_one(processes: Sequence[subprocess.Popen], run: Run, name: str, victim: int, has_begun: bool) -> Kill:
    """Sends one of the processes a signal, and sees how all end."""
    phase, before, began = run.phase(has_begun), run.logged(), time.monotonic()
    processes[victim].send_signal(getattr(signal, f"SIG{name}"))
    statuses, limit = [], _END_SECONDS if has_begun else _START_SECONDS
    for process in processes:
        left = limit - (time.monotonic() - began)
        statuses.append(process.wait(max(left, 0.1)))
    seconds = time.monotonic() - began
    lost = max(max(before, run.logged()) - run.saved(), 0)
    assert lost <= SAVE_EVERY, f"{lost} updates lost\n{run.log()}"
    if name == "TERM" and has_begun:
        assert {*statuses} <= {0, STOPPED} and lost == 0, f"SIGTERM lost {lost}, statuses {statuses}\n{run.log()}"
    is_done = run.saved() == CONFIG["num_steps"]  # then the others may have been through before
    assert name == "TERM" or is_done or all(statuses), f"statuses {statuses}\n{run.log()}"
    print(
        f"{len(processes)} processes, SIG{name} to {victim} in {phase}: statuses {statuses} after {seconds:.1f} s, "
        f"logged {max(before, run.logged())}, saved {run.saved()}",
        flush=True,
    )
    return Kill(len(processes), phase, name, victim, lost, seconds)


def kill_until_done(run: Run, rng: random.Random, counts: Sequence[int], aims: Iterator[str]) -> list[Kill]:
    """Starts a run, kills one of its processes, again and again, then leaves it to finish."""
    kills = []
    for aim in aims:
        count, begun_from = rng.choice(counts), run.logged()
        with stopped_in_the_end(start(run, count)) as processes:
            if not wait_for(processes, run, aim, rng):
                assert [process.wait(_END_SECONDS) for process in processes] == [0] * count, run.log()
                return kills
            name, victim = rng.choice(("KILL", "TERM")), rng.randrange(count)
            kills.append(kill_one(processes, run, name, victim, run.logged() > begun_from))
    count = rng.choice(counts)
    with stopped_in_the_end(start(run, count)) as processes:
        assert [process.wait(10 * _START_SECONDS) for process in processes] == [0] * count, run.log()
    return kills


@contextlib.contextmanager
def stopped_in_the_end(processes: Sequence[subprocess.Popen]) -> Iterator[Sequence[subprocess.Popen]]:
    """Leaves none of the processes behind."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def last_loss(run: Run) -> float:
    """The held-out loss at the end of a run."""
    return next(line["valid/masked_lm_loss"] for line in reversed(run.lines()) if "valid/masked_lm_loss" in line)


def table(kills: Sequence[Kill]) -> Iterator[str]:
    """The kills, by the number of processes and by signal, as a table in Markdown."""
    phases = list(dict.fromkeys(_AIMS))
    yield f"| processes | signal | {' | '.join(phases)} | most updates lost | longest to end, s | from a start, s |"
    yield "| --- " * (len(phases) + 5) + "|"
    for count, name in itertools.product(sorted({kill.processes for kill in kills}), ("KILL", "TERM")):
        group = [kill for kill in kills if (kill.processes, kill.signal) == (count, name)]
        in_phase = " | ".join(str(sum(kill.phase == phase for kill in group)) for phase in phases)
        lost = max((kill.lost for kill in group), default=0)
        trained, started = (
            max((kill.seconds for kill in group if (kill.phase in _BEFORE_TRAINING) == before), default=0.0)
            for before in (False, True)
        )
        yield f"| {count} | SIG{name} | {in_phase} | {lost} | {trained:.0f} | {started:.0f} |"


def main() -> None:
    """Runs the soak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=lambda text: [int(count) for count in text.split(",")], default=[1, 2, 4])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, began, kills, differences = random.Random(args.seed), time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "text.txt")
        reference = Run(Path(folder) / "reference")
        assert reference.start("--distributed=off").wait() == 0, reference.log()
        for number in itertools.count(1):
            run = Run(Path(folder) / f"run{number}")
            kills += kill_until_done(run, rng, args.processes, itertools.islice(_AIMS, args.kills - len(kills)))
            differences.append(abs(last_loss(run) - last_loss(reference)))
            resumed = len(re.findall("resuming after step", run.workdir.with_suffix(".log").read_text()))
            print(f"run {number}: resumed by {resumed} processes, loss differs by {differences[-1]:.1e}", flush=True)
            if len(kills) == args.kills:
                break
    print("\n".join(table(kills)))
    to_first = sum(kill.victim == 0 for kill in kills)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{len(kills)} kills, {to_first} of process 0; {len(differences)} runs, whose losses differ by at most "
        f"{max(differences):.1e} from one that was left alone; a save interval is {SAVE_EVERY}; {minutes:.0f} minutes"
    )
    sys.exit(max(differences) > 1e-4)


if __name__ == "__main__":
    main()
