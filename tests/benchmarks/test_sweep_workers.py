import subprocess
from pathlib import Path

from benchmarks import sweep_workers


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
