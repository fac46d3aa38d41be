"""Runs `launch.py` as several processes that train together."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def free_address() -> str:
    """A local address with a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def environment() -> dict[str, str]:
    """The variables of this process, without the devices of the test session."""
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    return {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}


@contextlib.contextmanager
def started(
    arguments: Sequence[str],
    count: int,
    devices: int = 1,
    entry: Sequence[str] = ("launch.py", "--noreport"),
    own: Sequence[Sequence[str]] = (),
    environments: Sequence[Mapping[str, str]] = (),
) -> Iterator[list[subprocess.Popen]]:
    """Starts processes with pipes for their standard error. At exit, kills those that still run.

    Args:
      arguments: the arguments of all processes.
      count: the number of processes. A single process gets no flags to join others.
      devices: the number of devices per process.
      entry: the script and its first arguments.
      own: additional arguments of each process.
      environments: environment variables of each process.
    """
    address, processes = free_address(), []
    env = {**environment(), "JAX_NUM_CPU_DEVICES": str(devices)}
    for i in range(count):
        joining = ["--distributed=on", f"--coordinator_address={address}", f"--num_processes={count}"]
        command = [sys.executable, *entry, *arguments, *([*joining, f"--process_id={i}"] if count > 1 else [])]
        command += own[i] if own else []
        its_env = env | (environments[i] if environments else {})
        processes.append(subprocess.Popen(command, cwd=ROOT, env=its_env, stderr=subprocess.PIPE, text=True))
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def finish(processes: Sequence[subprocess.Popen], status: int = 0) -> None:
    """Waits for processes and checks that they exit with `status`."""
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == status, errors


def train(arguments: Sequence[str], count: int, devices: int = 1, **more: Sequence) -> None:
    """Starts processes, waits for them and checks that they succeed."""
    with started(arguments, count, devices, **more) as processes:
        finish(processes)


def lines(workdir: Path) -> list[dict]:
    """The complete lines of the `metrics.jsonl` of a run that may still be training."""
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def wait_for_step(workdir: Path, step: int, processes: Sequence[subprocess.Popen]) -> None:
    """Waits until a run has logged a step of training."""
    while not any(line["step"] >= step and "train/loss" in line for line in lines(workdir)):
        for process in processes:
            assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
