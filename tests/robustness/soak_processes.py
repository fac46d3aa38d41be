"""Robustness of distributed training: kills one of several processes and restarts with another number of processes.

    python -m tests.robustness.soak_processes --kills=50 --processes=1,2,4

The run is that of `tests.robustness.soak`: a small model with dropout that saves every fourth step. One run is not
disturbed, and has one process. The others start with a random number of processes. A random one gets SIGKILL or SIGTERM
during preparation, start, training, saving or evaluation, repeatedly until the run finishes. Prints each kill and a
table.

The exit status is 1 if a process that trained continues for more than 60 s, if a process that lost another exits with
status 0, if more than one save interval is lost, if a start makes no step, or if the final validation loss differs by
more than 1e-4 from that of the undisturbed run. SIGTERM takes effect only after the first update, so a process that has
not trained yet may take as long as a start, which depends on the load of the machine.
"""

import argparse
import contextlib
import dataclasses
import itertools
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.processes import free_address
from tests.robustness.soak import CONFIG, SAVE_EVERY, STOPPED, Run, write_text

_END_SECONDS = 60
_START_SECONDS = 900  # for a first step; the machine may be busy
_LOOK_EVERY = 0.01
_BEFORE_TRAINING = ("preparation", "starting")
# The phases in which a run is killed, in turn. Then it finishes undisturbed.
_AIMS = ("preparation", *("training", "saving", "starting", "evaluation", "training") * 3)


@dataclasses.dataclass(frozen=True)
class Kill:
    """The effect of a signal to one process of a run.

    Attributes:
      processes: the number of processes of the run.
      phase: the phase of the run.
      signal: the signal, "KILL" or "TERM".
      victim: the number of the process that got the signal.
      lost: the number of updates to repeat.
      seconds: the time until all processes had ended.
    """

    processes: int
    phase: str
    signal: str
    victim: int
    lost: int
    seconds: float


def start(run: Run, count: int) -> list[subprocess.Popen]:
    """Starts or resumes a run with `count` processes."""
    if count == 1:
        return [run.start("--distributed=off")]
    joining = (f"--coordinator_address={free_address()}", f"--num_processes={count}")
    return [run.start("--distributed=on", *joining, f"--process_id={i}") for i in range(count)]


def wait_for(processes: Sequence[subprocess.Popen], run: Run, aim: str, rng: random.Random) -> bool:
    """Waits for a random moment of the phase `aim`. Returns whether the run still continues."""
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
    """Sends a signal to one of the processes, and checks how all of them end."""
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
    is_done = run.saved() == CONFIG["num_steps"]  # the others may have finished before
    assert name == "TERM" or is_done or all(statuses), f"statuses {statuses}\n{run.log()}"
    print(
        f"{len(processes)} processes, SIG{name} to {victim} in {phase}: statuses {statuses} after {seconds:.1f} s, "
        f"logged {max(before, run.logged())}, saved {run.saved()}",
        flush=True,
    )
    return Kill(len(processes), phase, name, victim, lost, seconds)


def kill_until_done(run: Run, rng: random.Random, counts: Sequence[int], aims: Iterator[str]) -> list[Kill]:
    """Starts a run and kills one of its processes, in each phase of `aims`, then lets it finish."""
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
    """Kills the processes at the end of the context."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def last_loss(run: Run) -> float:
    """Returns the final validation loss of a run."""
    return next(line["valid/masked_lm_loss"] for line in reversed(run.lines()) if "valid/masked_lm_loss" in line)


def table(kills: Sequence[Kill]) -> Iterator[str]:
    """Formats the kills, by the number of processes and the signal, as a Markdown table."""
    phases = list(dict.fromkeys(_AIMS))
    yield f"| processes | signal | {' | '.join(phases)} | most updates lost | longest to end, s | during a start, s |"
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
    """Runs the benchmark with the options of the command line."""
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
        f"{max(differences):.1e} from the undisturbed run; a save interval is {SAVE_EVERY}; {minutes:.0f} minutes"
    )
    sys.exit(max(differences) > 1e-4)


if __name__ == "__main__":
    main()
