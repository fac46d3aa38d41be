"""The Makefile installs the package, and only with a Python that is supported."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def set_up(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs `make setup` with a shell script in place of Python."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return make("setup", f"PYTHON={python}", f"VENV={folder / 'venv'}")


def test_an_older_python_is_an_error_before_there_is_an_environment(tmp_path):
    done = set_up(tmp_path, '[ "$1" = --version ] && echo Python 3.10.13')
    assert done.returncode
    assert "error: Python 3.10.13; expected 3.11 to 3.13. Fix: add PYTHON=python3.11." in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_failed_environment_is_made_again(tmp_path):
    done = set_up(tmp_path, '[ "$1" = -c ] || { mkdir -p "$3/bin" && touch "$3/bin/python" && exit 1; }')
    assert done.returncode
    assert (tmp_path / "venv/bin").is_dir()
    assert not (tmp_path / "venv/bin/python").exists()


def test_another_python_has_its_own_environment():
    done = make("--dry-run", "test-python", "PYTHON=/opt/bin/python3.13")
    assert "\n.venv-python3.13/bin/python -m pytest" in done.stdout and "\n.venv/" not in done.stdout
