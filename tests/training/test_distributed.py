"""Two processes of four devices train as one of eight, through the launcher; SIGTERM to one stops both."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.training import distributed
from tests import tiny

ROOT = Path(__file__).parents[2]


def start(text, workdir, processes, devices, *flags):
    """Starts `launch.py` as so many processes; returns them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    env |= {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    command = [
        sys.executable,
        "launch.py",
        "--noreport",
        "--config=configs/bert_pretraining.py:tiny",
        f"--workdir={workdir}",
    ]
    command += [f"--config.{key.replace('__', '.')}={value}" for key, value in tiny.values(text).items()]
    if processes > 1:
        command += ["--distributed=on", f"--coordinator_address={address}", f"--num_processes={processes}"]
    return [
        subprocess.Popen(
            [*command, *flags, *([f"--process_id={i}"] if processes > 1 else [])],
            cwd=ROOT,
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]


def finish(processes):
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors


def final_params(workdir):
    return tiny.saved_params(json.loads((workdir / "config.json").read_text()), workdir)


def distance(a, b):
    def norm(tree):
        return np.sqrt(sum(float(np.sum(np.float64(x) ** 2)) for x in jax.tree.leaves(tree)))

    return norm(jax.tree.map(lambda x, y: x - y, a, b)) / norm(b)


@pytest.mark.slow
def test_two_processes_of_four_devices_train_as_one_of_eight(tmp_path):
    text = tiny.write_text(tmp_path / "text.txt")
    no_dropout = ("--config.model.dropout=0.0", "--config.model.attention_dropout=0.0", "--config.num_steps=20")
    finish(start(text, tmp_path / "one", 1, 8, *no_dropout))
    finish(start(text, tmp_path / "two", 2, 4, *no_dropout))
    assert distance(final_params(tmp_path / "two"), final_params(tmp_path / "one")) <= 1e-5
    logs = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")]
    for a, b in zip(*logs, strict=True):
        a, b = json.loads(a), json.loads(b)
        timings = ("train/step_seconds", "train/tokens_per_second", "train/data_wait_fraction")
        timings += ("train/save_wait_seconds",)
        assert {k: v for k, v in a.items() if k not in timings} == pytest.approx(
            {k: v for k, v in b.items() if k not in timings}, rel=1e-3
        )


@pytest.mark.slow
def test_sigterm_to_one_process_stops_both_and_one_process_goes_on(tmp_path):
    text = tiny.write_text(tmp_path / "text.txt")
    flags = ("--config.num_steps=2000", "--config.checkpoint.save_every=100000", "--config.evaluate_every=100000")
    workdir = tmp_path / "run"
    processes = start(text, workdir, 2, 4, *flags)
    while len((workdir / "metrics.jsonl").read_text().splitlines() if (workdir / "metrics.jsonl").exists() else ()) < 5:
        assert processes[0].poll() is None, processes[0].stderr.read()
        time.sleep(0.2)
    processes[1].send_signal(signal.SIGTERM)
    finish(processes)
    (stopped,) = [int(path.name) for path in (workdir / "checkpoints").iterdir()]
    assert 0 < stopped < 2000
    # The number of processes may change between starts.
    (process,) = start(text, workdir, 1, 8, *flags)
    while f"resuming after step {stopped}" not in process.stderr.readline():
        assert process.poll() is None
    process.kill()
    process.wait()


def test_processes_that_disagree_are_told(monkeypatch):
    def gather(code):
        other = np.frombuffer(b"other".ljust(64), np.uint8)
        return np.stack([code, other])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed.multihost_utils, "process_allgather", gather)
    distributed.agree("other", "the text")
    with pytest.raises(UserError, match="the text: got process 0: mine, process 1: other; expected the same"):
        distributed.agree("mine", "the text")


def test_alone_the_work_is_simply_done():
    done = []
    distributed.on_first_process(lambda: done.append(1))
    assert done == [1]


@pytest.mark.slow
def test_what_goes_wrong_on_the_first_process_is_told_by_all(tmp_path):
    text = tiny.write_text(tmp_path / "text.txt")
    text.write_bytes(text.read_bytes() + b"\xff\n")
    processes = start(text, tmp_path / "run", 2, 1)
    for process, expected in zip(processes, ("not valid UTF-8", "process 0: got .*not valid UTF-8"), strict=True):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert re.search(f"error: .*{expected}", errors), errors


def test_no_cluster_is_an_error_only_where_one_is_asked_for(monkeypatch):
    def no_cluster():
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", no_cluster)
    distributed.initialize("off", "", 1, 0)
    distributed.initialize("auto", "", 1, 0)
    with pytest.raises(UserError, match="--distributed=on: got no cluster"):
        distributed.initialize("on", "", 1, 0)
