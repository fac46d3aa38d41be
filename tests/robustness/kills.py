"""Robustness of predictions: kills them, starts them twice, retrains their runs, and compares the files byte by byte.

    python -m tests.robustness.kills --disturbances=40

Six tasks predict through `launch.py` with small models. Each prediction is disturbed up to three times by SIGKILL,
SIGTERM, or a second process with the same command. Before a restart, its run may be retrained in place with another
seed. Then it finishes undisturbed. Its file must equal, byte for byte, the file of an undisturbed prediction with the
run's last weights. Of two processes, one must finish, and the other must report that another process is writing.
Prints each prediction and a table. The exit status is 1 if a file differs.
"""

import argparse
import collections
import dataclasses
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.robustness import small_runs

# Lines or rows of the input, enough for some seconds.
_COUNTS = {"masks": 30_000, "classification": 60_000, "tagging": 30_000}
_COUNTS |= {"answers": 4_000, "translation": 6_000, "bertsum": 4_000}
_SEEDS = (0, 1)
_DISTURBANCES = ("SIGKILL", "SIGTERM", "double start")
_MOST = 3  # the maximum per prediction
_RETRAINED = 0.4  # the probability to retrain the run between two starts
_STARTING = 0.25  # the probability of a disturbance before the first line
_LOOK_EVERY = 0.005  # seconds
_COLUMNS = (*_DISTURBANCES, "lines kept", "trained again", "refused", "files", "different")


@dataclasses.dataclass
class Prediction:
    """The prediction of one task, in separate processes.

    Attributes:
      name: the name of the task.
      folder: the folder for its run and files.
      expected: the file of an undisturbed prediction, by seed.
      seconds: the duration of an undisturbed prediction.
      counts: the number of events, by the names of the table's columns.
    """

    name: str
    folder: Path
    expected: dict[int, bytes]
    seconds: float
    counts: collections.Counter[str]

    @property
    def output(self) -> Path:
        """The file of predictions."""
        return self.folder / f"{self.name}-out{small_runs.KINDS[self.name].suffix}"

    def start(self) -> subprocess.Popen[str]:
        """Starts, or resumes, the prediction."""
        source = next((self.folder / f"{self.name}-input").iterdir())
        flags = [f"--workdir={self.folder / self.name}", f"--input={source}", f"--output={self.output}"]
        command = small_runs.command("--mode=predict", *flags)
        env = small_runs.environment(self.folder / "cache")
        return subprocess.Popen(command, cwd=small_runs.ROOT, env=env, stderr=subprocess.PIPE, text=True)

    def kept(self) -> int:
        """Returns the number of lines that an interrupted process has left."""
        return max((path.read_bytes().count(b"\n") for path in self._partials()), default=0)

    def _partials(self) -> list[Path]:
        """Returns the files of interrupted processes; there is one for each of the weights that they used."""
        return list(self.folder.glob(f"{self.output.name}.*.partial"))

    def measure(self) -> None:
        """Trains with each seed, and predicts without disturbance."""
        small_runs.write(self.folder / f"{self.name}-input", self._input())
        for seed in _SEEDS:
            small_runs.train(self.name, self.folder, seed)
            began, process = time.monotonic(), self.start()
            _, errors = process.communicate()
            assert process.returncode == 0, errors
            self.seconds, self.expected[seed] = time.monotonic() - began, self.output.read_bytes()
            self.output.unlink()
        assert len(set(self.expected.values())) == len(_SEEDS), f"{self.name}: the same predictions with other weights"

    def _input(self) -> small_runs.Text:
        return small_runs.KINDS[self.name].input(random.Random(2), _COUNTS[self.name])

    def disturb(self, rng: random.Random, most: int) -> str:
        """Disturbs the prediction up to `most` times, and lets it finish. Returns a description."""
        seed, told = rng.choice(_SEEDS), []
        small_runs.train(self.name, self.folder, seed)
        for _ in range(rng.randint(1, most)):
            kind = rng.choice(_DISTURBANCES)
            self.counts[kind] += 1
            process = self.start()
            told.append(f"{kind} {self._wait(process, rng, rng.random() < _STARTING or kind == 'double start')}")
            if self._start_twice(process) if kind == "double start" else self._kill(process, kind):
                break
            self.counts["lines kept"] += self.kept() > 0
            if rng.random() < _RETRAINED:
                seed = next(other for other in _SEEDS if other != seed)
                small_runs.train(self.name, self.folder, seed)
                self.counts["trained again"] += 1
                told.append("trained again")
        if not self.output.exists():
            process = self.start()
            _, errors = process.communicate()
            assert process.returncode == 0, errors
        self.counts["files"] += 1
        is_same = self.output.read_bytes() == self.expected[seed]
        self.counts["different"] += not is_same
        for path in (self.output, *self._partials()):
            path.unlink()
        return f"{self.name}: {', '.join(told)}: {'the same' if is_same else 'DIFFERENT'}"

    def _wait(self, process: subprocess.Popen[str], rng: random.Random, starting: bool) -> str:
        """Waits for a random time after the start, or for a random number of further lines. Returns a description."""
        kept = self.kept()
        if starting:
            moment = rng.uniform(0, self.seconds / 2)
            time.sleep(moment)
            return f"{moment:.1f} s from the start"
        lines = self.expected[0].count(b"\n")
        until = rng.randint(kept, lines)
        while process.poll() is None and kept < until:
            time.sleep(_LOOK_EVERY)
            kept = self.kept()
        return f"at line {kept} of {lines}"

    def _kill(self, process: subprocess.Popen[str], kind: str) -> bool:
        """Kills the process. Returns whether the file is complete nevertheless."""
        process.send_signal(signal.SIGKILL if kind == "SIGKILL" else signal.SIGTERM)
        _, errors = process.communicate()
        assert process.returncode != 1, errors
        assert self.output.exists() or process.returncode != 0, errors
        return self.output.exists()

    def _start_twice(self, first: subprocess.Popen[str]) -> bool:
        """Starts a second process. The first may end before the second reaches the file."""
        processes = [first, self.start()]
        errors = [process.communicate()[1] for process in processes]
        ends = sorted(process.returncode for process in processes)
        assert ends in ([0, 0], [0, 1]), errors
        refused = [text for process, text in zip(processes, errors, strict=True) if process.returncode == 1]
        assert all("another process is writing" in text for text in refused), errors
        self.counts["refused"] += len(refused)
        return True


def table(predictions: list[Prediction]) -> list[str]:
    """Formats the counts of each task as the lines of a table."""
    rows = ["| task | " + " | ".join(_COLUMNS) + " |", "| --- |" + " --- |" * len(_COLUMNS)]
    counts = {each.name: each.counts for each in predictions}
    counts["all"] = sum(counts.values(), collections.Counter())
    return rows + [
        f"| {name} | " + " | ".join(str(each[key]) for key in _COLUMNS) + " |" for name, each in counts.items()
    ]


def main() -> None:
    """Disturbs predictions until the requested number of disturbances is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--disturbances", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", default=",".join(_COUNTS))
    args = parser.parse_args()
    rng, began = random.Random(args.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        predictions = [Prediction(task, Path(name), {}, 0, collections.Counter()) for task in args.tasks.split(",")]
        for each in predictions:
            each.measure()
            lines = each.expected[0].count(b"\n")
            print(f"{each.name}: {lines} lines in {each.seconds:.1f} s undisturbed", flush=True)
        done = 0
        while done < args.disturbances:
            each = predictions[min(range(len(predictions)), key=lambda i: sum(_made(predictions[i])))]
            before = sum(_made(each))
            print(each.disturb(rng, min(_MOST, args.disturbances - done)), flush=True)
            done += sum(_made(each)) - before
    print("\n".join(table(predictions)))
    print(f"{done} disturbances in {(time.monotonic() - began) / 60:.0f} minutes")
    sys.exit(any(each.counts["different"] for each in predictions))


def _made(prediction: Prediction) -> list[int]:
    """Returns the number of disturbances of each kind."""
    return [prediction.counts[kind] for kind in _DISTURBANCES]


if __name__ == "__main__":
    main()
