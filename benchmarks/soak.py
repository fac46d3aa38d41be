"""Kills runs at random moments and starts them again: all must end with the same parameters, bit for bit.

    python benchmarks/soak.py --kills=10 --signal=KILL

A small model trains through `launch.py` with dropout, saving every other step. One run is left alone; the others are
killed and started again until they finish. Half of the moments are drawn over the whole of the first run's duration,
preparation included, half over its training alone. Prints each kill and what was lost, and exits with status 1 if any
run ends differently, or loses more than the save under way and the interval before it.
"""

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CONFIG = {
    "num_steps": 200,
    "batch_size": 8,
    "log_every": 5,
    "evaluate_every": 20,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.intermediate_size": 64,
    "data.seq_len": 32,
    "data.vocab_size": 500,
    "data.valid_fraction": 0.01,
    "masking.max_predictions": 5,
    "optimizer.warmup_steps": 10,
    "checkpoint.save_every": 2,
}


def start(workdir: Path) -> subprocess.Popen:
    """Starts, or goes on with, the run in a folder."""
    command = [sys.executable, "launch.py", "--config=configs/bert_pretraining.py:tiny", f"--workdir={workdir}"]
    command += [f"--config.{key}={value}" for key, value in _CONFIG.items()]
    log = (workdir.parent / f"{workdir.name}.log").open("a")
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def digest(workdir: Path) -> str:
    """The sha256 of the run's final parameters, as they are exported."""
    folder = workdir.with_name(workdir.name + "-exported")
    command = [sys.executable, "launch.py", "--mode=export", f"--workdir={workdir}", f"--output={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def progress(workdir: Path) -> tuple[int, int]:
    """The last step that was logged, and the last that was saved."""
    log, checkpoints = workdir / "metrics.jsonl", workdir / "checkpoints"
    lines = log.read_text().splitlines() if log.exists() else []
    steps = [json.loads(line)["step"] for line in lines if line.endswith("}")]
    saved = [int(path.name) for path in checkpoints.glob("*") if path.name.isdigit()]
    return max(steps, default=0), max(saved, default=0)


def wait_for_training(process: subprocess.Popen, workdir: Path) -> None:
    """Returns when the run has begun to train, or has ended."""
    log = workdir / "metrics.jsonl"
    before = log.stat().st_mtime_ns if log.exists() else 0
    while process.poll() is None and (not log.exists() or log.stat().st_mtime_ns == before):
        time.sleep(0.05)


def kill_until_done(workdir: Path, rng: random.Random, kills: int, most: int, durations: dict, signal_name: str) -> int:
    """Starts a run, kills it and starts it again until it finishes; returns how many kills there were in all."""
    while True:
        process, phase = start(workdir), rng.choice(list(durations))
        if phase == "training":
            wait_for_training(process, workdir)
        # The run is left to finish once there have been enough kills.
        wait = rng.uniform(0, durations[phase]) if kills < most else None
        try:
            assert process.wait(wait) == 0, workdir.with_suffix(".log").read_text()
            return kills
        except subprocess.TimeoutExpired:
            process.send_signal(getattr(signal, f"SIG{signal_name}"))
            status = process.wait()
            kills += 1
            logged, saved = progress(workdir)
            print(f"kill {kills}, {wait:.1f} s into {phase}: exit {status}, logged {logged}, saved {saved}", flush=True)
            # Saves are asynchronous: the one under way is lost, and with it the interval before it.
            assert saved >= logged - 2 * _CONFIG["checkpoint.save_every"], "more than two save intervals were lost"


def main() -> None:
    """Runs the soak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference"
        began = time.monotonic()
        process = start(reference)
        wait_for_training(process, reference)
        trains = time.monotonic()
        assert process.wait() == 0, reference.with_suffix(".log").read_text()
        ended, expected = time.monotonic(), digest(reference)
        durations = {"launch": ended - began, "training": ended - trains}
        print(f"uninterrupted: {durations}, parameters {expected[:16]}", flush=True)
        kills = runs = different = 0
        while kills < args.kills:
            runs += 1
            workdir = Path(folder) / f"run{runs}"
            kills = kill_until_done(workdir, rng, kills, args.kills, durations, args.signal)
            same = digest(workdir) == expected
            different += not same
            print(f"run {runs}: {'the same parameters' if same else 'OTHER PARAMETERS'}", flush=True)
        print(f"{kills} kills ({args.signal}), {runs} runs, {different} ended with other parameters")
        sys.exit(different > 0)


if __name__ == "__main__":
    main()
