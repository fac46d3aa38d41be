"""Commands end at SIGTERM and Ctrl-C, whatever they do."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PROGRAM = """
import hashlib, subprocess, tempfile, time
from bertjax.interruption import interruptible

def compile():  # does not return to Python for minutes, as compilers, which start processes of their own
    print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)

def trace():
    with tempfile.TemporaryDirectory(dir=".") as folder:
        print(folder, flush=True)
        time.sleep(60)

with interruptible():
    {function}()
"""


def test_an_interruption_of_a_config_file(tmp_path):
    (tmp_path / "mine.py").write_text("raise KeyboardInterrupt\n")
    command = [sys.executable, "launch.py", f"--config={tmp_path / 'mine.py'}"]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def interrupted(function, number, folder):
    """What a process prints that a signal ends within seconds."""
    command = [sys.executable, "-c", _PROGRAM.format(function=function)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, cwd=folder, env={"PYTHONPATH": str(ROOT)}) as process:
        printed = process.stdout.readline().strip()
        time.sleep(0.2)  # until the call
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    return printed


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_compiler_with_its_processes(number, tmp_path):
    child = interrupted("compile", number, tmp_path)
    deadline = time.monotonic() + 10  # a busy machine runs the signalled process late
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def test_a_signal_raises_an_exception_in_python(tmp_path):
    assert interrupted("trace", signal.SIGTERM, tmp_path).startswith("./tmp")
    assert not list(tmp_path.iterdir())
