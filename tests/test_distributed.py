"""Runs with several processes, through the launcher: equal results, joint stops, and errors on all processes."""

import json
import os
import re
import shutil
import signal

import jax
import numpy as np
import pytest

from bertjax import distributed
from bertjax.errors import UserError
from bertjax.training import loop
from tests import processes, tiny
from tests.experiments.test_bert_pretraining import NOISE
from tests.trees import distance

ENDLESS = {"num_steps": 100_000, "checkpoint__save_every": 100_000, "evaluate_every": 100_000, "model__num_layers": 1}


@pytest.fixture
def text(tmp_path):
    return tiny.write_text(tmp_path / "text.txt")


def final_params(workdir):
    return tiny.saved_params(json.loads((workdir / "config.json").read_text()), workdir)


def errors_of(both):
    """The messages of processes, all of which must fail."""
    for process in both:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 1
        yield errors


@pytest.mark.slow
def test_two_processes_of_four_devices_train_as_one_of_eight(text, tmp_path):
    """They resume a run of one process in its first phase, in other time zones and locales.

    Text is a mixture, and rows have uniform rates or are causal.
    """
    text.write_text(text.read_text() + "\n\nGröße İstanbul ısı 東京 .\nthe İ sees a ı .\n" * 9, encoding="utf-8")
    here = {"TZ": "America/Lima", "LC_ALL": "C", "LANG": "C"}
    elsewhere = {"TZ": "Asia/Tokyo", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "PYTHONUTF8": "0"}
    few = tiny.write_text(tmp_path / "few.txt", documents=4, seed=1)  # fewer rows than a batch
    many = tiny.write_text(tmp_path / "many.txt", seed=2)
    values = {
        **{"model__num_layers": 1, "num_steps": 6},
        "data__mixture": (("text", str(text), 0.5), ("few", str(few), 0.2), ("many", str(many), 0.3)),
        "data__phases": ((0.5, {"weights": {"text": 0.1, "few": 0.9}}),),
        "data__valid_fraction": 0.3,
        "data__source": "",
        **NOISE,
    }
    one, two = (
        tiny.arguments(text, tmp_path / name, **values, data__prepared_dir=tmp_path / f"text_of_{name}")
        for name in ("one", "two")
    )
    assert tiny.run(*one).status is None
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for step in (4, 6):
        shutil.rmtree(tmp_path / "two" / "checkpoints" / str(step))
    processes.train(two, 2, 4, environments=(here, elsewhere))
    assert distance(final_params(tmp_path / "two"), final_params(tmp_path / "one")) <= 1e-5
    vocabs = [path.read_bytes() for path in tmp_path.glob("text_of_*/*/vocab.txt")]
    assert len(vocabs) == 8 and len(set(vocabs)) == 1
    logs = [processes.lines(tmp_path / name) for name in ("one", "two")]
    timings = {"train/tokens_per_second", "train/data_wait_fraction"}
    timings |= {f"train/{name}_seconds" for name in ("step", "save_wait", "evaluation_row")}
    for a, b in zip(*logs, strict=True):
        assert {k: v for k, v in a.items() if k not in timings} == pytest.approx(
            {k: v for k, v in b.items() if k not in timings}, rel=1e-3
        )


@pytest.mark.slow
def test_all_processes_report_a_loss_that_is_not_finite(text, tmp_path):
    values = {"optimizer__learning_rate": 1e30, "optimizer__schedule": "constant", "optimizer__clip_norm": 0.0}
    values |= {"model__num_layers": 1, "evaluate_every": 100, "checkpoint__save_every": 100}
    with processes.started(tiny.arguments(text, tmp_path / "run", **values), 2) as both:
        for errors in errors_of(both):
            message = r"error: step \d+: got a loss or gradient that is not finite; .*(parameter|gradient)"
            assert re.search(message, errors), errors


@pytest.mark.slow
def test_sigterm_to_one_process_stops_both_and_one_process_can_resume(text, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    arguments = tiny.arguments(text, workdir, **ENDLESS)
    with processes.started(arguments, 2, 4) as both:
        processes.wait_for_step(workdir, 4, both)
        both[1].send_signal(signal.SIGTERM)
        processes.finish(both, status=75)
    (stopped,) = [int(path.name) for path in (workdir / "checkpoints").iterdir()]
    assert 0 < stopped < 100_000
    # The number of processes may change between starts.
    settle = loop.Trainer.settle
    monkeypatch.setattr(loop.Trainer, "settle", lambda *_: (os.kill(os.getpid(), signal.SIGTERM), settle(*_)))
    alone = tiny.run(*arguments)
    assert alone.status == 75
    assert f"resuming after step {stopped}" in alone.stderr
    assert max(int(path.name) for path in (workdir / "checkpoints").iterdir()) > stopped


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "how"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_when_a_process_is_killed_or_stopped_the_other_exits_with_a_message(text, tmp_path, victim, how):
    with processes.started(tiny.arguments(text, tmp_path / "run", **ENDLESS), 2) as both:
        processes.wait_for_step(tmp_path / "run", 2, both)
        both[victim].send_signal(how)
        other = 1 - victim
        _, errors = both[other].communicate(timeout=60)
        assert both[other].returncode != 0
        message = f"error: process {other} of 2: got a lost connection: this process was killed, or another one .*; exp"
        assert re.search(f"(?m)^{message}.*Fix: start all processes again with .* last checkpoint.$", errors), errors


@pytest.mark.slow
def test_a_process_exits_if_the_others_do_not_start(text, tmp_path):
    address = processes.free_address()
    flags = [f"--coordinator_address={address}", "--num_processes=2", "--process_id=1", "--join_timeout=3"]
    with processes.started([*tiny.arguments(text, tmp_path / "run"), *flags], 1) as one:
        (errors,) = errors_of(one)
    message = f"error: joining the processes: got missing processes after 3 s; expected 2 .* at {address}. Fix: .*\n"
    assert re.fullmatch(message, errors), errors  # and no stack trace
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("on", "somewhere", 2, 0), "--coordinator_address: got 'somewhere'; expected HOST:PORT"),
        (("on", "somewhere:8080", 2, 2), "--process_id: got 2; expected a number from 0 to 1"),
        (("auto", "somewhere:8080", 2, -1), "--process_id: got -1; expected a number from 0 to 1"),
        (("auto", "", 2, 0), "--coordinator_address: got --num_processes=2 --process_id=0, and no address"),
        (("auto", "somewhere:8080", 2, 0, 0), "--join_timeout: got 0; expected a number of seconds, at least 1"),
    ],
)
def test_flags_that_cannot_join_processes(flags, message):
    with pytest.raises(UserError, match=message):
        distributed.initialize(*flags)


def test_a_port_that_is_taken(monkeypatch, capfd):
    def refuse(*flags, **options):
        raise jax.errors.JaxRuntimeError("UNKNOWN: Failed to start RPC server")

    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    with pytest.raises(UserError, match=r"--coordinator_address: got UNKNOWN: Failed to start RPC server; .*free port"):
        distributed.initialize("on", "here:8080", 2, 0)
    assert capfd.readouterr().err == "", "the exit message was printed"


def others_give(monkeypatch, text):
    """Makes this process 0 of two processes. Process 1 sends `text`."""

    def gather(code):
        if code.ndim == 0:
            return np.array([code, len(other)])
        return np.stack([code, np.pad(other, (0, len(code) - len(other)))])

    other = np.frombuffer(text.encode(), np.uint8)
    monkeypatch.setattr(distributed, "_has_others", lambda: True)
    monkeypatch.setattr(distributed.multihost_utils, "process_allgather", gather)


def test_commands_that_differ(monkeypatch):
    mine = {"--mode": "train", "seed": 3, "data.source": "a", "mesh.data": 2}
    others_give(monkeypatch, json.dumps({"--mode": "train", "seed": 4, "data.source": "a", "mesh.fsdp": 2}))
    with pytest.raises(UserError, match=r"got seed 3, 4; mesh\.data 2, nothing; mesh\.fsdp nothing, 2; expected"):
        distributed.agree_on_command(mine)
    others_give(monkeypatch, json.dumps(mine))
    distributed.agree_on_command(mine)


def test_an_error_caused_by_a_lost_process_exits(monkeypatch):
    def fail(error):
        with distributed.ending_together():
            raise error

    gone = ValueError("UNKNOWN: Gloo AllReduce failed: Connection closed by peer")
    monkeypatch.setattr(os, "_exit", lambda status: (_ for _ in ()).throw(SystemExit(status)))
    with pytest.raises(ValueError, match="Gloo"):
        fail(gone)  # with only one process it is a bug
    monkeypatch.setattr(distributed, "_has_others", lambda: True)
    with pytest.raises(SystemExit, match="1"):
        fail(gone)
    with pytest.raises(ValueError, match="no such thing"):
        fail(ValueError("no such thing"))


def test_agree_raises_for_values_that_differ(monkeypatch):
    others_give(monkeypatch, "the other")
    distributed.agree("the other", "the text")
    with pytest.raises(UserError, match="the text: got process 0: mine, process 1: the other; expected the same"):
        distributed.agree("mine", "the text")


@pytest.mark.slow
def test_an_error_on_the_first_process_is_reported_by_all(text, tmp_path):
    text.write_bytes(text.read_bytes() + b"\xff\n")
    with processes.started(tiny.arguments(text, tmp_path / "run"), 2) as both:
        told = ("not valid UTF-8", "process 0: got .*not valid UTF-8")
        for errors, expected in zip(errors_of(both), told, strict=True):
            assert re.search(f"error: .*{expected}", errors), errors
            assert "lost connection" not in errors


def test_a_missing_cluster_is_an_error_only_if_requested(monkeypatch):
    def no_cluster(**options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", no_cluster)
    distributed.initialize("off", "", 1, 0)
    distributed.initialize("auto", "", 1, 0)
    with pytest.raises(UserError, match="--distributed=on: got no cluster"):
        distributed.initialize("on", "", 1, 0)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_processes_that_were_started_together_must_join(monkeypatch, name):
    def no_cluster(**options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", no_cluster)
    monkeypatch.setenv(name, "1")  # as in a job of a sweep
    distributed.initialize("auto", "", 1, 0)
    monkeypatch.setenv(name, "4")
    with pytest.raises(UserError, match=f"--distributed=auto: got {name}=4, .*--coordinator_address=HOST:PORT"):
        distributed.initialize("auto", "", 1, 0)
    distributed.initialize("off", "", 1, 0)


@pytest.mark.slow
def test_processes_with_different_configs_report_the_keys_that_differ(text, tmp_path):
    own = (["--config.seed=3"], ["--config.optimizer.learning_rate=0.5"])
    with processes.started(tiny.arguments(text, tmp_path / "run"), 2, own=own) as both:
        for errors in errors_of(both):
            message = "(process 0 first): got seed 3, 0; optimizer.learning_rate 0.001, 0.5; expected the same flags"
            assert message in errors
    assert not (tmp_path / "run").exists()
