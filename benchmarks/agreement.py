"""Trains small models of all tasks on a CPU and on the accelerator, predicts with both, and compares.

    python -m benchmarks.agreement --platform=cuda

Both start from the same parameters and see the same batches and dropout. Matrix products have float32's full precision.
The table has the largest relative difference of the metrics of 20 or more updates, that of the validation metrics, and
how many predictions of the same weights are equal.
"""

import argparse
import concurrent.futures
import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import common, small_runs

_UPDATES = {"num_steps": 20, "num_epochs": 3.0, "log_every": 1, "evaluate_every": 10, "checkpoint.save_every": 10}
_TIMES = ("seconds", "per_second", "fraction")


def main() -> None:
    """Compares all tasks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--platform", default="cuda", help="JAX's name of the accelerator")
    parser.add_argument("--workers", type=int, default=2, help="the number of simultaneous tasks")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(args.workers) as pool:
        rows = pool.map(lambda kind: compare(kind, Path(name) / kind, args.platform), small_runs.KINDS)
        header = ["task", "training", "validation", "equal predictions"]
        print(f"{common.describe_machine()}\n\n" + common.table(header, list(rows)))


def compare(kind: str, folder: Path, platform: str) -> list[str]:
    """Returns the table row of a task."""
    keys = small_runs.KINDS[kind].values.keys() | {"log_every"}
    values = {key: value for key, value in _UPDATES.items() if key in keys}
    runs = []
    for place, where in (("reference", "cpu"), ("accelerator", platform)):
        (folder / place).mkdir(parents=True)
        runs.append(small_runs.train(kind, folder / place, 0, values, where))
    logs = [dict(metrics(run)) for run in runs]
    assert logs[0].keys() == logs[1].keys(), f"{kind}: other metrics"
    differences = {"train": 0.0, "valid": 0.0}
    for (step, name), value in logs[0].items():
        split = name.partition("/")[0]
        if split in differences:
            difference = abs(value - logs[1][step, name]) / max(abs(value), 1e-3)
            differences[split] = max(differences[split], difference)
    (source, *_) = small_runs.write(folder / "input", small_runs.KINDS[kind].input(random.Random(1), 50))
    outputs = [predictions(kind, runs[0], source, folder, where) for where in ("cpu", platform)]
    equal = sum(map(is_close, *outputs))
    assert len(outputs[0]) == len(outputs[1]), f"{kind}: other predictions"
    return [kind, f"{differences['train']:.1e}", f"{differences['valid']:.1e}", f"{equal} of {len(outputs[0])}"]


def metrics(run: Path) -> Iterator[tuple[tuple[int, str], float]]:
    """Yields step and name, and value, of each logged metric that does not depend on time."""
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name, value in record.items():
            if name != "step" and not name.endswith(_TIMES):
                yield (record["step"], name), value


def predictions(kind: str, run: Path, source: Path, folder: Path, platform: str) -> list[object]:
    """Returns what the run predicts on a platform."""
    output = folder / f"{platform}{small_runs.KINDS[kind].suffix}"
    full = small_runs.command("--mode=predict", f"--workdir={run}", f"--input={source}", f"--output={output}")
    done = subprocess.run(
        full,
        cwd=small_runs.ROOT,
        env=small_runs.environment(folder / "cache", platform),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{kind}: {done.stderr[-3000:]}"
    lines = output.read_text().splitlines()
    return [json.loads(line) for line in lines] if output.suffix == ".jsonl" else list(lines)


def is_close(one: object, two: object) -> bool:
    """Returns whether two predictions are equal, with numbers equal within 1e-4."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(is_close(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(is_close, one, two))
    if isinstance(one, float) and isinstance(two, float):
        return bool(np.isclose(one, two, rtol=1e-4, atol=1e-4))
    return one == two


if __name__ == "__main__":
    main()
