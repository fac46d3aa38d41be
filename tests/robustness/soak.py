"""Robustness of training: kills runs at random moments and restarts them; the final parameters must be bit-identical.

    python -m tests.robustness.soak --kills=100 --signal=mixed
    python -m tests.robustness.soak --kills=40 --signal=KILL --patience=2

A small model trains through `launch.py` with dropout, and saves every fourth step. One run is not disturbed. The others
are killed during preparation, start, training, saving and evaluation, in turn, and restarted until they finish. Prints
each kill with the lost updates, and a table at the end. The exit status is 1 if a run ends with other parameters,
checkpoints or validation metrics, if SIGKILL loses more than one save interval, or if SIGTERM loses an update. With
`--patience`, the runs stop early by the accuracy of the next sentence, which varies from the first evaluation on.
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

ROOT = Path(__file__).parents[2]
SAVE_EVERY, _EVALUATE_EVERY = 4, 10  # every other evaluation overlaps a save
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
    "optimizer.warmup_steps": 10,
    "checkpoint.save_every": SAVE_EVERY,
}
# The phases in which a run is killed, in turn. Then it finishes undisturbed.
_AIMS = ("preparation", "preparation", "evaluation", "saving", "training", "starting", "saving", "evaluation")
_TRAINS = ("training", "saving", "evaluation")
STOPPED = 75  # the exit status after SIGTERM, unless the run was finished
_LOOK_EVERY = 0.005  # seconds; polling slows the run down


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run in a separate process."""

    workdir: Path

    def start(self, *flags: str) -> subprocess.Popen:
        """Starts or resumes the run, with additional flags."""
        command = [sys.executable, "launch.py", "--noreport", "--config=configs/bert_pretraining.py:tiny"]
        command += [f"--workdir={self.workdir}", f"--config.data.source={self.workdir.parent / 'text.txt'}"]
        command += [f"--config.{key}={value}" for key, value in CONFIG.items()]
        command += flags
        log = self.workdir.with_suffix(".log").open("a")
        # All runs share compiled programs, so that starts are short.
        cache = {"JAX_COMPILATION_CACHE_DIR": str(self.workdir.parent / "cache")}
        cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **cache})

    def end(self) -> tuple[str, list[int], dict[int, str]]:
        """Returns the sha256 of the exported final parameters, the steps of checkpoints, and metrics by step."""
        steps = sorted(int(path.name) for path in (self.workdir / "checkpoints").iterdir())
        valid = {line["step"]: {k: line[k] for k in line if k.startswith("valid/")} for line in self.lines()}
        return self._digest(), steps, {step: str(metrics) for step, metrics in valid.items() if metrics}

    def _digest(self) -> str:
        folder = self.workdir.with_name(self.workdir.name + "-exported")
        command = [sys.executable, "launch.py", "--mode=export", f"--workdir={self.workdir}", f"--output={folder}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()

    def log(self) -> str:
        """Returns the end of the run's log, for messages about an unexpected end."""
        return self.workdir.with_suffix(".log").read_text()[-3000:]

    def lines(self) -> list[dict]:
        """Returns the complete lines of `metrics.jsonl`."""
        path = self.workdir / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line[-1] == "}"] if path.exists() else []

    def logged(self) -> int:
        """Returns the last logged step."""
        return max((line["step"] for line in self.lines()), default=0)

    def saved(self) -> int:
        """Returns the last step that has a durable checkpoint."""
        folder = self.workdir / "checkpoints"
        return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)

    def phase(self, has_begun: bool) -> str:
        """Returns the phase of the run.

        Args:
          has_begun: whether the process has made an update since its start.
        """
        if not list(self.workdir.glob("data/*/manifest.json")):
            return "preparation"
        if not has_begun:
            return "starting"
        lines = self.lines()
        # An evaluation starts when its step is logged, and ends with a separate line.
        if lines and lines[-1]["step"] % _EVALUATE_EVERY == 0 and "train/loss" in lines[-1]:
            return "evaluation"
        return "saving" if list(self.workdir.glob("checkpoints/*tmp*")) else "training"


def kill_until_done(run: Run, rng: random.Random, aims: Iterator[str], signals: list[str], spans: dict) -> list[tuple]:
    """Starts a run and kills it in each phase of `aims`, then lets it finish. Returns the kills."""
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
        phase = phase if name == "TERM" else run.phase(run.logged() > begun_from)  # the phase when it stopped
        kills.append((phase, name, lost))
        print(f"SIG{name} in {phase}: exit {status}, logged {run.logged()}, saved {run.saved()}", flush=True)
        assert lost <= SAVE_EVERY, f"more than one save interval lost\n{run.log()}"
        if name == "TERM" and has_begun:
            assert status in (0, STOPPED) and lost <= 0, f"SIGTERM lost {lost} updates, exit {status}\n{run.log()}"
    else:
        status = run.start().wait()
    assert status == 0, run.log()
    return kills


def wait_for(process: subprocess.Popen, run: Run, aim: str, rng: random.Random, spans: dict) -> int | None:
    """Waits for a random moment of the phase `aim`. Returns the exit status if the run ended before."""
    begun_from, later = run.logged(), rng.randrange(1, 15)
    if aim not in _TRAINS:
        # Restarts are faster than the measured first start, because programs are already compiled.
        span = spans[aim] / 2 if aim == "starting" else spans[aim]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(rng.uniform(0, span))
    while process.poll() is None and aim in _TRAINS:
        time.sleep(_LOOK_EVERY)
        # Waits for some updates, as otherwise it would always hit the same one.
        if run.logged() - begun_from < later or run.phase(has_begun=True) != aim:
            continue
        time.sleep(rng.uniform(0, spans[aim] / 2))
        if run.phase(has_begun=True) == aim:
            break
    return process.poll()


def write_text(path: Path) -> None:
    """Writes Python's own documentation, one topic per document; its preparation takes long enough to be killed."""
    topics = (re.sub(r"\n\s*\n", "\n", topic.strip()) for topic in topics_of_python.values())
    path.write_text("\n\n".join(topics) + "\n")


def measure(run: Run) -> dict[str, float]:
    """Runs without disturbance. Returns the mean duration of each phase, in seconds."""
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
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--signal", choices=("KILL", "TERM", "mixed"), default="mixed")
    parser.add_argument("--patience", type=int, default=0, help="evaluations without improvement; 0 never stops early")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.patience:
        best = {"checkpoint.best_metric": "valid/next_sentence_accuracy", "checkpoint.best_mode": "max"}
        CONFIG.update(best, evaluate_patience=args.patience)
    rng, signals = random.Random(args.seed), ["KILL", "TERM"] if args.signal == "mixed" else [args.signal]
    began, different = time.monotonic(), 0
    kills: list[tuple[str, str, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "text.txt")
        reference = Run(Path(folder) / "reference")
        spans = measure(reference)
        expected = reference.end()
        shown = ", ".join(f"{phase} {seconds:.3f} s" for phase, seconds in spans.items())
        parameters = f"parameters {expected[0][:16]}, checkpoints {expected[1]}"
        print(f"undisturbed, mean duration of phases: {shown}; {parameters}", flush=True)
        runs = 0
        while len(kills) < args.kills:
            runs += 1
            run = Run(Path(folder) / f"run{runs}")
            aims = itertools.islice(_AIMS, args.kills - len(kills))
            kills += kill_until_done(run, rng, aims, signals, spans)
            same = run.end() == expected
            different += not same
            print(f"run {runs}: {'the same end' if same else f'DIFFERENT: {run.end()}, not {expected}'}", flush=True)
    for name in signals:
        counts = collections.Counter(phase for phase, other, _ in kills if other == name)
        lost = max((lost for _, other, lost in kills if other == name), default=0)
        row = ", ".join(f"{phase} {counts[phase]}" for phase in dict.fromkeys(_AIMS))
        print(f"SIG{name}: {row}; at most {max(lost, 0)} updates lost; the save interval is {SAVE_EVERY}")
    minutes = (time.monotonic() - began) / 60
    print(f"{len(kills)} kills, {runs} runs, {different} with a different end, {minutes:.0f} minutes")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
