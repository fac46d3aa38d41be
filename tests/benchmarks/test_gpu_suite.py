"""The suite for a GPU: the time of its parts, what it keeps, and its verdicts."""

import fcntl
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks import gpu_suite, gpu_verdicts

ROOT = Path(__file__).parents[2]
# Starts a process that holds a lock, writes a result, and does not end.
ENDLESS = """
import fcntl, pathlib, subprocess, sys, time
if sys.argv[1] == "lock":
    file = open(sys.argv[2], "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
else:
    output = next(word.removeprefix("--output=") for word in sys.argv if word.startswith("--output="))
    child = subprocess.Popen([sys.executable, "-S", __file__, "lock", sys.argv[1]], stdout=subprocess.PIPE)
    child.stdout.readline()
    pathlib.Path(output).write_text('{"results": ["first"]}')
time.sleep(1000)
"""


@pytest.fixture
def suite(tmp_path):
    for name in ("output", "work/results"):
        (tmp_path / name).mkdir(parents=True)
    return gpu_suite.Suite(tmp_path / "output", tmp_path / "work", False, {"endless": "not run"})


def test_a_part_without_time_is_killed_with_its_processes_and_its_results_stay(suite, tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text(ENDLESS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    part = gpu_suite.Part("endless", 1, "endless", (str(tmp_path / "lock"),))
    began = time.monotonic()
    assert suite.run(part, seconds=4).startswith("stopped after")
    assert time.monotonic() - began < 60
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits until the killed process has gone
    written = json.loads((tmp_path / "output/results.json").read_text())
    assert written["parts"]["endless"] == {"state": "running", "results": ["first"]}


def test_a_failed_part_has_its_status(suite):
    assert suite.run(gpu_suite.Part("endless", 1, "no_such_module"), seconds=60).startswith("failed with status 1")


def test_files_are_packed_into_small_tars_prepared_text_first(tmp_path):
    sizes = {
        "kept/text/tokens": 9000,
        "kept/traces/a/x.trace.json.gz": 5000,
        "kept/traces/a/x.xplane.pb": 3000,
        "kept/programs/step": 8000,
        "kept/programs/large": 30_000,
        "kept/text.lock": 0,
        "kept/new.partial/tokens": 10,
    }
    work, output, later = (tmp_path / name for name in ("work", "output", "later"))
    for name, size in sizes.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(bytes([len(name)]) * size)
    output.mkdir()
    assert gpu_suite.pack(work, output, limit=24_000) == ["left out kept/programs/large, 0.0 MiB"]
    assert all(path.stat().st_size <= 24_000 for path in output.iterdir())
    gpu_suite.unpack(output, later)
    packed = [name for name, size in sizes.items() if 10 < size < 30_000]
    assert {str(path.relative_to(later)) for path in later.rglob("*") if path.is_file()} == set(packed)
    assert all((later / name).read_bytes() == (work / name).read_bytes() for name in packed)
    with tarfile.open(output / "kept-0.tar") as first:
        assert first.getnames()[0] == "kept/text/tokens"


def step(name, size, length, seconds, **fields):
    rates = {"tokens_per_second": 100 / seconds, "real_tokens_per_second": 50 / seconds, "flops_per_second": 4e14}
    return {"name": name, "size": size, "length": length, "step_seconds": seconds, **rates, **fields}


def attention(kind, backend, microseconds, error):
    return {"name": f"attention, {kind}, {backend}", "microseconds": microseconds, "errors": {"context": error}}


@pytest.fixture
def parts():
    kernels = [
        {"name": "product", "operations_per_second": 8e14},
        {"name": "copy", "moved_per_second": 4e12},
        {"name": "dropout, residual, norm, xla", "microseconds": 400.0},
        {"name": "dropout, residual, norm, triton", "moved_per_second": 2e12, "microseconds": 300.0},
        attention("whole rows", "cudnn", 700.0, 1e-3),
        *(attention("packed rows", name, us, e) for name, us, e in (("xla", 2800.0, 0), ("mine", 550.0, 4e-3))),
        attention("packed rows, window 64", "xla", 2900.0, 1e-3),
        {"name": "attention, packed rows, window 64, cudnn", "skipped": "local attention"},
    ]
    traced = {"kernels": {"groups": {"other": [21.5, 838]}, "longest": {"fusion_1": [1.5, 12]}}}
    base = [
        step("ours", "base", 512, 1.0, full_rows_seconds=2.0, **traced),
        step("ours, packed", "base", 512, 0.5),
        step("ours", "base", 128, 1.0, disturbed=True),
    ]
    torch = [
        step("transformers, strong", "base", 512, 1.2),
        step("transformers, strong", "base", 128, 1.0),
        {"name": "transformers, strong", "size": "large", "length": 512, "error": "out of memory"},
    ]
    large = [step("ours, scanned", "large", 512, 1.0)]
    tuning = [{"work": "training mrpc", "ratios": [1.0, 3.0, 1.2]}]
    return {
        "kernels": {"state": "finished after 50 s", "results": kernels},
        "base": {"state": "finished after 90 s", "results": base},
        "torch": {"state": "stopped after 90 s", "results": torch},
        "large": {"state": "stopped after 50 s", "results": large},
        "translation": {"state": "skipped: no time left"},
        "fine-tuning": {"state": "finished after 9 s", "results": tuning},
    }


def test_verdicts(parts):
    lines = gpu_verdicts.table(parts, is_smoke=False).splitlines()[2:]
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
    assert [(measured, verdict) for _, measured, verdict in rows] == [
        ("800 TFLOP/s, 4 TB/s", "80.8% of the peak"),
        ("300 µs, XLA 400 µs, 0.50 of the copy's rate", "yes: 0.75"),
        ("mine 550 µs, errors up to 4.0e-03, XLA 2,800 µs, cuDNN on whole rows 700 µs", "yes: 0.79"),
        ("XLA 2,900 µs, cuDNN on whole rows 700 µs", "no kernel has computed it"),
        ("100 and 83 tokens/s, on full rows 0.60", "reached: 1.20"),
        ("100 and 100 tokens/s, while another case compiled", "missed: 1.00"),
        ("", "transformers, strong, large, 512: out of memory"),
        ("", "large: stopped after 50 s"),
        ("400 TFLOP/s, 50.0% of the roof", "missed: 40.4%"),
        ("", "large: stopped after 50 s"),
        ("500.0 and 1000.0 ms an update, packed and padded", "2.00 times the real tokens/s"),
        ("other 21.5 ms (838)", "longest: fusion_1 1.5 ms (12)"),
        ("", "translation: skipped: no time left"),
        ("training mrpc 1.20", "reached"),
    ]


def test_without_results_every_row_has_the_reason(parts):
    lines = gpu_verdicts.table({name: {"state": "not run"} for name in parts}, is_smoke=False).splitlines()
    assert len(lines) == 16 and all(line.endswith(": not run |") for line in lines[2:])


@pytest.mark.slow
def test_small_shapes_on_a_cpu(tmp_path):
    wanted = "--parts=kernels;base;torch;translation;fine-tuning"  # scanned Large differs from Base only in its config
    options = wanted, "--seconds=1800", f"--output={tmp_path / 'output'}", f"--work={tmp_path / 'work'}"
    command = [sys.executable, "-m", "benchmarks.gpu_suite", "--smoke", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    log = (tmp_path / "output/log.txt").read_text()
    assert ended.returncode == 0, ended.stdout + ended.stderr + log
    written = json.loads((tmp_path / "output/results.json").read_text())
    states = {name: part["state"] for name, part in written["parts"].items()}
    assert all(state.startswith(("finished", "skipped")) for state in states.values()), states
    errors = [each.get("errors", {}) for each in written["parts"]["kernels"]["results"]]
    assert sum(map(len, errors)) == 3 * 4 + 6 and all(e < 1e-2 for each in errors for e in each.values())
    assert written["card"]["packages"]["jax"]
    table = (tmp_path / "output/verdicts.md").read_text()
    assert table.strip() in ended.stdout
    assert " times the real tokens/s |" in table and " target tokens/s, " in table
    gpu_suite.unpack(tmp_path / "output", tmp_path / "later")
    kept = {path.relative_to(tmp_path / "later/kept").parts[0] for path in (tmp_path / "later").rglob("*-cache")}
    assert kept == {"programs"}
    assert list((tmp_path / "later/kept/traces").rglob("*.trace.json.gz"))
