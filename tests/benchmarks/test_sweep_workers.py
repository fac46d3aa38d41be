import subprocess
from pathlib import Path

import pytest

from benchmarks import sweep_workers
from tests import tiny


def test_backends_alternate_in_separate_folders(monkeypatch):
    started = []

    def run(command, **options):
        assert options["check"]
        folder = next(Path(flag.removeprefix("--workdir=")) for flag in command if flag.startswith("--workdir="))
        assert folder.is_dir() and folder not in [before for _, before in started]
        started.append((command[3:-1], folder))

    monkeypatch.setattr(subprocess, "run", run)
    rows = sweep_workers.measure(["--sweep=x"], 2)
    backends = list(sweep_workers._BACKENDS.values())
    assert [flags for flags, _ in started] == 2 * backends
    assert [name for name, *_ in rows] == list(sweep_workers._BACKENDS)
    assert rows[0][2] == "1.00 (1.00 to 1.00)"


@pytest.mark.parametrize("backend", sweep_workers._BACKENDS)
def test_the_launcher_accepts_the_backends(tmp_path, backend):
    flags = [f"--sweep={sweep_workers._SWEEP}", "--dry_run", f"--workdir={tmp_path}", "--seeds=0"]
    assert tiny.run(*flags, *sweep_workers._BACKENDS[backend]).stdout.endswith("6 runs of 6 rows\n")
