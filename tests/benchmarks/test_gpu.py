import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import common, gpu

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "real_batches", lambda shape, *_: [{"segment_ids": [[1, 1, 0, 0]] * shape.rows}])
    return gpu.Runner(tmp_path, "documentation", 100, timing=0.0)


def step_of(error: Exception | None):
    def step(times: int) -> None:
        if error:
            raise error

    return step


def case(rows: int) -> gpu.Case:
    return gpu.Case("ours", "tiny", 4, rows, {})


def no_wait() -> None:
    pass


def test_half_the_rows_are_timed_if_all_do_not_fit(runner, monkeypatch):
    def step(_, shape, *args):
        return step_of(RuntimeError("RESOURCE_EXHAUSTED: 200 GB") if shape.rows > 8 else None), 2.0

    monkeypatch.setattr(gpu.Runner, "_step", lambda self, *args: step(*args))
    result = runner.run(case(32), no_wait)
    assert result["batch_size"] == 8
    assert result["real_tokens_per_second"] == pytest.approx(result["tokens_per_second"] / 2)
    assert runner.run(case(64), no_wait) == {"error": "out of memory with 16 rows"}


def test_an_error_ends_only_its_case(runner, monkeypatch):
    error = RuntimeError("\nno cuDNN\nTraceback ...")
    monkeypatch.setattr(gpu.Runner, "_step", lambda self, *args: (step_of(error), 2.0))
    assert runner.run(case(32), no_wait)["error"] == "no cuDNN Traceback ..."


def test_utilization_counts_only_useful_operations():
    figures = {"batch_size": 64, "step_seconds": 0.1, "compile_seconds": 20.0, "flops_per_second": 400e12}
    speeds = {"tokens_per_second": 200_000.0, "real_tokens_per_second": 100_000.0}
    line = gpu.row({"name": "ours", "size": "large", "length": 512, **figures, **speeds}, peak=800e12)
    assert line == ["large 512", "64", "ours", "200,000", "100,000", "400", "50.0%", "20 s", "", "", ""]


def test_cases_cover_all_comparisons():
    names = {(case.name, case.size, case.length) for case in gpu.cases(smoke=False)}
    assert {("ours", size, length) for size in ("base", "large") for length in (128, 512)} <= names
    changes = ("packed", "attention dropout", "rbg", "scanned")
    assert {(f"ours, {change}", "base", 512) for change in changes} | {("ours, remat", "large", 512)} <= names
    peers = {(name, size, length) for name, size, length in names if name == "transformers, strong"}
    assert {(size, length) for _, size, length in peers} == {(s, n) for s in ("base", "large") for n in (128, 512)}
    assert {("ours, scanned", "large", length) for length in (128, 512)} <= names


@pytest.mark.slow
def test_the_smoke_run_times_every_contender(tmp_path):
    text = "".join(f"Sentence {n} of a text. It says that {n} follows {n - 1}.\n\n" for n in range(400))
    (tmp_path / "text.txt").write_text(text)
    output = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--smoke", "--jobs=2", f"--output={output}"]
    process = subprocess.run(
        [*command, f"--source={tmp_path}/text.txt"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    written = json.loads(output.read_text())
    results = {result["name"]: result for result in written["results"]}
    assert set(results) == {case.name for case in gpu.cases(smoke=True)}
    assert all(0 < r["real_tokens_per_second"] < r["tokens_per_second"] for r in results.values())
    padding = {name: 1 - r["real_tokens_per_second"] / r["tokens_per_second"] for name, r in results.items()}
    assert padding["ours, packed"] < padding["ours"]
    assert process.stdout.count("\n| ") == len(results) + 2
