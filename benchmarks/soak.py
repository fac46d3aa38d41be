"""Kills runs at random moments and starts them again: all must end with the same parameters, bit for bit.

    python benchmarks/soak.py --kills=10 --signal=KILL

A small model trains through `launch.py` with dropout, saving every other step. One run is left alone; the others are
killed at moments drawn uniformly over its duration, from the start of preparation to the end, and started again
until they finish. Prints each kill and what was lost, and exits with status 1 if any run ends differently.
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
        assert start(reference).wait() == 0, (Path(folder) / "reference.log").read_text()
        duration, expected = time.monotonic() - began, digest(reference)
        print(f"uninterrupted: {duration:.0f} s, parameters {expected[:16]}", flush=True)
        kills = runs = different = 0
        while kills < args.kills:
            runs += 1
            workdir = Path(folder) / f"run{runs}"
            done = False
            while not done:
                process = start(workdir)
                try:
                    # The last run is left to finish once there have been enough kills.
                    wait = rng.uniform(0, duration) if kills < args.kills else None
                    assert process.wait(wait) == 0, (Path(folder) / f"run{runs}.log").read_text()
                    done = True
                except subprocess.TimeoutExpired:
                    process.send_signal(getattr(signal, f"SIG{args.signal}"))
                    status = process.wait()
                    kills += 1
                    logged, saved = progress(workdir)
                    print(f"kill {kills} after {wait:.1f} s: exit {status}, logged {logged}, saved {saved}", flush=True)
            same = digest(workdir) == expected
            different += not same
            print(f"run {runs}: {'the same parameters' if same else 'OTHER PARAMETERS'}", flush=True)
        print(f"{kills} kills ({args.signal}), {runs} runs, {different} ended with other parameters")
        sys.exit(different > 0)


if __name__ == "__main__":
    main()
