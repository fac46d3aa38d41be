"""Kills runs at random moments and starts them again: all must end with the same parameters, bit for bit.

    python -m benchmarks.soak --kills=100 --signal=mixed

A small model trains through `launch.py` with dropout, saving every fourth step. One run is left alone. The others are
killed while they prepare the text, start, train, save and evaluate, each in turn, and started again until they
finish. Prints each kill, what was lost by it, and a table at the end. Exits with status 1 if a run ends with other
parameters, if SIGKILL loses more than one save interval, or if SIGTERM loses an update.
"""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics as topics_of_python

ROOT = Path(__file__).parents[1]
SAVE_EVERY, _EVALUATE_EVERY = 4, 10  # so that every other evaluation goes on beside a save
CONFIG = {
    "num_steps": 150,
    "batch_size": 8,
    "log_every": 1,
    "evaluate_every": _EVALUATE_EVERY,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.intermediate_size": 64,
    "data.seq_len": 32,
    "data.vocab_size": 500,
    "data.valid_fraction": 0.04,
    "masking.max_predictions": 5,
    "optimizer.warmup_steps": 10,
    "checkpoint.save_every": SAVE_EVERY,
}
# The moments that the kills of a run are aimed at, in turn; then it is left to finish.
_AIMS = ("preparation", "preparation", "evaluation", "saving", "training", "starting", "saving", "evaluation")
_TRAINS = ("training", "saving", "evaluation")
STOPPED = 75  # the exit status after SIGTERM, unless the run was through
_LOOK_EVERY = 0.005  # seconds; looking costs the run some of its time


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, from outside."""

    workdir: Path

    def start(self, *flags: str) -> subprocess.Popen:
        """Starts, or goes on with, the run; with more flags if need be."""
        command = [sys.executable, "launch.py", "--noreport", "--config=configs/bert_pretraining.py:tiny"]
        command += [f"--workdir={self.workdir}", f"--config.data.source={self.workdir.parent / 'text.txt'}"]
        command += [f"--config.{key}={value}" for key, value in CONFIG.items()]
        command += flags
        log = self.workdir.with_suffix(".log").open("a")
        # Compiled programs are kept for all runs, so that starts are short.
        cache = {"JAX_COMPILATION_CACHE_DIR": str(self.workdir.parent / "cache")}
        cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **cache})

    def digest(self) -> str:
        """The sha256 of the final parameters, as they are exported."""
        folder = self.workdir.with_name(self.workdir.name + "-exported")
        command = [sys.executable, "launch.py", "--mode=export", f"--workdir={self.workdir}", f"--output={folder}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()

    def log(self) -> str:
        """What the run said, to be shown when it should not have ended."""
        return self.workdir.with_suffix(".log").read_text()[-3000:]

    def lines(self) -> list[dict]:
        """The lines of `metrics.jsonl` that are whole."""
        path = self.workdir / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line[-1] == "}"] if path.exists() else []

    def logged(self) -> int:
        """The last step that was made and logged."""
        return max((line["step"] for line in self.lines()), default=0)

    def saved(self) -> int:
        """The last step that is durable."""
        folder = self.workdir / "checkpoints"
        return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)

    def phase(self, has_begun: bool) -> str:
        """What the run is at.

        Args:
          has_begun: whether this start has made an update yet.
        """
        if not list(self.workdir.glob("data/*/manifest.json")):
            return "preparation"
        if not has_begun:
            return "starting"
        lines = self.lines()
        # An evaluation begins when its step is logged, and ends with a line of its own.
        if lines and lines[-1]["step"] % _EVALUATE_EVERY == 0 and "train/loss" in lines[-1]:
            return "evaluation"
        return "saving" if list(self.workdir.glob("checkpoints/*tmp*")) else "training"


def kill_until_done(run: Run, rng: random.Random, aims: Iterator[str], signals: list[str], spans: dict) -> list[tuple]:
    """Starts a run, kills it at what it is aimed at, again and again, then leaves it to finish; returns the kills."""
    kills = []
    for aim in aims:
        process, begun_from = run.start(), run.logged()
        status = wait_for(process, run, aim, rng, spans)
        has_begun = run.logged() > begun_from
        if status is not None:
            break
        name, phase = rng.choice(signals), run.phase(has_begun)
        process.send_signal(getattr(signal, f"SIG{name}"))
        status = process.wait()
        lost = run.logged() - run.saved()
        phase = phase if name == "TERM" else run.phase(run.logged() > begun_from)  # as it was when it stopped
        kills.append((phase, name, lost))
        print(f"SIG{name} in {phase}: exit {status}, logged {run.logged()}, saved {run.saved()}", flush=True)
        assert lost <= SAVE_EVERY, f"more than one save interval was lost\n{run.log()}"
        if name == "TERM" and has_begun:
            assert status in (0, STOPPED) and lost <= 0, f"SIGTERM lost {lost} updates, exit {status}\n{run.log()}"
    else:
        status = run.start().wait()
    assert status == 0, run.log()
    return kills


def wait_for(process: subprocess.Popen, run: Run, aim: str, rng: random.Random, spans: dict) -> int | None:
    """Waits for a random moment of what a kill is aimed at; returns the exit status if the run ended first."""
    begun_from, later = run.logged(), rng.randrange(1, 15)
    if aim not in _TRAINS:
        # What a start compiled took longer the first time.
        span = spans[aim] / 2 if aim == "starting" else spans[aim]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(rng.uniform(0, span))
    while process.poll() is None and aim in _TRAINS:
        time.sleep(_LOOK_EVERY)
        # Some updates on, or the same one would always be hit.
        if run.logged() - begun_from < later or run.phase(has_begun=True) != aim:
            continue
        time.sleep(rng.uniform(0, spans[aim] / 2))
        if run.phase(has_begun=True) == aim:
            break
    return process.poll()


def write_text(path: Path) -> None:
    """Python's own documentation, one topic a document: enough for its preparation to be killed in."""
    topics = (re.sub(r"\n\s*\n", "\n", topic.strip()) for topic in topics_of_python.values())
    path.write_text("\n\n".join(topics) + "\n")


def measure(run: Run) -> dict[str, float]:
    """Lets a run go on undisturbed; returns how long each of its phases takes, in seconds."""
    began, process = time.monotonic(), run.start()
    spans: dict[str, float] = collections.defaultdict(float)
    times: dict[str, int] = collections.defaultdict(int)
    before = ""
    while process.poll() is None:
        now, phase = time.monotonic(), run.phase(has_begun=run.logged() > 0)
        spans[phase] += now - began
        times[phase] += phase != before
        began, before = now, phase
        time.sleep(_LOOK_EVERY)
    assert process.returncode == 0, run.log()
    return {phase: spans[phase] / times[phase] for phase in spans}


def main() -> None:
    """Runs the soak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--signal", choices=("KILL", "TERM", "mixed"), default="mixed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, signals = random.Random(args.seed), ["KILL", "TERM"] if args.signal == "mixed" else [args.signal]
    began, different = time.monotonic(), 0
    kills: list[tuple[str, str, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "text.txt")
        reference = Run(Path(folder) / "reference")
        spans = measure(reference)
        expected = reference.digest()
        shown = ", ".join(f"{phase} {seconds:.3f} s" for phase, seconds in spans.items())
        print(f"undisturbed, at a time: {shown}; parameters {expected[:16]}", flush=True)
        runs = 0
        while len(kills) < args.kills:
            runs += 1
            run = Run(Path(folder) / f"run{runs}")
            aims = itertools.islice(_AIMS, args.kills - len(kills))
            kills += kill_until_done(run, rng, aims, signals, spans)
            same = run.digest() == expected
            different += not same
            print(f"run {runs}: {'the same parameters' if same else 'OTHER PARAMETERS'}", flush=True)
    for name in signals:
        counts = collections.Counter(phase for phase, other, _ in kills if other == name)
        lost = max((lost for _, other, lost in kills if other == name), default=0)
        row = ", ".join(f"{phase} {counts[phase]}" for phase in dict.fromkeys(_AIMS))
        print(f"SIG{name}: {row}; at most {max(lost, 0)} updates lost, of a save interval of {SAVE_EVERY}")
    minutes = (time.monotonic() - began) / 60
    print(f"{len(kills)} kills, {runs} runs, {different} ended with other parameters, {minutes:.0f} minutes")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
