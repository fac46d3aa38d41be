"""Speed of a sweep of small models in one process and with one and two workers, on a CPU.

    python -m benchmarks.sweep_workers --rounds=3

The commands of `launch.py` differ only in the backend. They alternate, each with a new folder, so that all of them
compile. The whole command is timed, including start-up and the table. Two workers share the cores that one process uses
alone; the number of busy cores shows what can be gained.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time

from benchmarks import common

_SWEEP = "configs/sweeps/transformer.py:tiny"
_BACKENDS = {
    "one process": ["--backend=here"],
    "one worker": ["--backend=workers", "--workers=1"],
    "two workers": ["--backend=workers", "--workers=2"],
}
_HEADER = ["backend", "seconds, median (quartiles)", "of one process", "busy cores"]


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweep", default=_SWEEP)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=100, help="updates of a run")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"{common.describe_machine()}; {args.sweep}, seeds {args.seeds}, {args.steps} updates a run\n", flush=True)
    sets = {"num_steps": args.steps, "evaluate_every": args.steps, "data.num_valid": 100, "data.num_test": 100}
    flags = [f"--sweep={args.sweep}", f"--seeds={args.seeds}", *(f"--set=train.{key}={n}" for key, n in sets.items())]
    print(common.table(_HEADER, measure(flags, args.rounds)))


def measure(flags: list[str], rounds: int) -> list[list[str]]:
    """Returns a row for each backend."""
    seconds: dict[str, list[float]] = {name: [] for name in _BACKENDS}
    cores: dict[str, list[float]] = {name: [] for name in _BACKENDS}
    for _ in range(rounds):
        for name, backend in _BACKENDS.items():
            with tempfile.TemporaryDirectory() as folder:
                start, worked = time.perf_counter(), _worked()
                command = [sys.executable, "launch.py", *flags, *backend, f"--workdir={folder}"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                seconds[name].append(time.perf_counter() - start)
                cores[name].append((_worked() - worked) / seconds[name][-1])
    base = seconds["one process"]
    return [
        [
            name,
            common.spread(taken, 0),
            common.spread([one / alone for one, alone in zip(taken, base, strict=True)], 2),
            common.spread(cores[name], 2),
        ]
        for name, taken in seconds.items()
    ]


def _worked() -> float:
    """Returns the CPU seconds of ended commands and their child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
