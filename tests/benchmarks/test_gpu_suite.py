"""The suite for a GPU: the time of its parts, what it keeps, and its verdicts."""

import fcntl
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks import gpu_suite

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
