"""A run that is stopped and resumed has the same checkpoints as an uninterrupted run."""

import io
import json
import logging
import os
import signal
import sys

import jax
import numpy as np
import pytest

from bertjax.runs import checkpoints
from bertjax.training import loop, preemption
from tests import tiny


def train(tree, workdir):
    task, data, settings, _ = tiny.pretraining(tree)
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(json.dumps(tree))
    with tiny.few_devices(1):
        loop.train(task, data, settings, workdir)


def stop_at(monkeypatch, settled, evaluated):
    """Stops training once, by SIGTERM, at its n-th update or in its n-th evaluation."""
    counts = {"settle": 0, "evaluate": 0}
    original = {name: getattr(loop.Trainer, name) for name in counts}

    def stopping(name, at):
        def stop(self, *args):
            counts[name] += 1
            if counts[name] == at:
                os.kill(os.getpid(), signal.SIGTERM)
            return original[name](self, *args)

        return stop

    monkeypatch.setattr(loop.Trainer, "settle", stopping("settle", settled))
    monkeypatch.setattr(loop.Trainer, "evaluate", stopping("evaluate", evaluated))


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Settings that save every 2 updates and evaluate every 3: states 3 and 9 are evaluated and not saved."""
    text = tiny.write_text(tmp_path_factory.mktemp("preemption") / "text.txt")
    # The metric increases, so the best checkpoint is an early one.
    checkpoint = {"keep": 3, "keep_best": 1, "best_metric": "valid/next_sentence_loss", "final": "last:3"}
    named = {f"checkpoint__{name}": value for name, value in checkpoint.items()}
    return tiny.config(text, model__num_layers=1, num_steps=12, log_every=6, **named)


@pytest.fixture(scope="module")
def uninterrupted(settings, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    train(settings, workdir)
    return workdir


def test_a_signal_may_interrupt_a_message(monkeypatch):
    """Its own message cannot be written then, but the run stops."""

    class Stream(io.StringIO):
        def write(self, text):
            if self.getvalue():
                raise RuntimeError("reentrant call")
            super().write(text)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(sys, "stderr", stream := Stream())
    handler = logging.StreamHandler(stream)
    log = logging.getLogger("bertjax.training")
    monkeypatch.setattr(log, "handlers", [handler])
    with preemption.Preemption() as preempted:
        log.warning("step 5")
    assert preempted() and stream.getvalue() == "step 5\n"


def test_stopping_does_not_change_checkpoints(settings, uninterrupted, tmp_path):
    # In the evaluation after update 3, then before the last update; each start counts from its first update, and
    # `settle` is called twice per update.
    for settled, evaluated in ((0, 1), (13, 0)):
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, settled, evaluated)
            train(settings, tmp_path)
        assert not (tmp_path / "checkpoints" / "12").exists(), "the run was not stopped"
    train(settings, tmp_path)
    for which in ("last:3", "best", "final"):
        assert checkpoints.find_steps(tmp_path, which) == checkpoints.find_steps(uninterrupted, which)
        ours, theirs = (tiny.saved_params(settings, workdir, which) for workdir in (tmp_path, uninterrupted))
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    kept = [{path.name for path in (workdir / "checkpoints").iterdir()} for workdir in (tmp_path, uninterrupted)]
    assert kept[0] == kept[1]
