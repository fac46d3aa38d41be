"""A run: what it writes, that it resumes exactly, that it stops cleanly."""

import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from bertjax import checkpoints
from bertjax.errors import UserError
from bertjax.training import loop
from bertjax.training.preemption import Preemption
from tests import tiny


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("loop") / "text.txt")


def one_device(text, **overrides):
    return tiny.config(text, mesh__data=8, **overrides)


def train(tree, workdir):
    task, settings = tiny.task_and_settings(tree)
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(json.dumps(tree))
    loop.train(task, settings, workdir)


def final_params(workdir):
    return tiny.saved_params(json.loads((workdir / "config.json").read_text()), workdir)


def equal(a, b):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    train(one_device(text), workdir)
    return workdir


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_what_a_run_logs(finished):
    logged = lines(finished)
    assert logged[0]["step"] == 0 and set(logged[0]) == {"step", "valid/masked_lm_unigram_loss"}
    trained = [line for line in logged if "train/loss" in line]
    assert [line["step"] for line in trained] == [2, 4, 6]
    assert set(trained[-1]) >= {
        "train/masked_lm_loss",
        "train/masked_lm_accuracy",
        "train/next_sentence_loss",
        "train/next_sentence_accuracy",
        "train/learning_rate",
        "train/gradient_norm",
        "train/tokens_per_second",
        "train/step_seconds",
    }
    evaluated = [line for line in logged if "valid/masked_lm_loss" in line]
    assert [line["step"] for line in evaluated] == [3, 6]
    parts = trained[-1]["train/masked_lm_loss"] + trained[-1]["train/next_sentence_loss"]
    # The loss is a mean over steps of means over tokens, its parts are means over tokens.
    assert trained[-1]["train/loss"] == pytest.approx(parts, rel=0.05)
    assert list((finished / "tensorboard").iterdir())


def test_the_last_checkpoints_and_the_best_are_kept(text, tmp_path):
    train(one_device(text, num_steps=8, checkpoint__keep=1, checkpoint__save_every=1, evaluate_every=2), tmp_path)
    scores = {line["step"]: line["valid/masked_lm_loss"] for line in lines(tmp_path) if "valid/masked_lm_loss" in line}
    best = min(scores, key=scores.get)
    kept = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert kept == sorted({8, best})
    assert checkpoints._find(tmp_path, "best") == best
    with pytest.raises(UserError, match="got steps"):
        checkpoints._find(tmp_path, "3" if best != 3 else "5")


@pytest.mark.parametrize("stop_at", [1, 3, 4])
def test_a_run_resumes_exactly_dropout_on(text, finished, tmp_path, monkeypatch, stop_at):
    """Killed after any step, saved or not, a run ends with the same parameters bit for bit."""
    calls = []

    class Killed(BaseException):
        pass

    def settle(self, state):
        calls.append(1)
        original(self, state)
        if len(calls) == stop_at:
            raise Killed

    original = loop.Trainer.settle
    monkeypatch.setattr(loop.Trainer, "settle", settle)
    with pytest.raises(Killed):
        train(one_device(text), tmp_path)
    monkeypatch.undo()
    train(one_device(text), tmp_path)
    assert equal(final_params(tmp_path), final_params(finished))
    steps = [line["step"] for line in lines(tmp_path) if "train/loss" in line]
    assert steps == sorted(set(steps)), "no step is logged twice"


def test_sigterm_saves_at_once_and_the_run_goes_on_from_there(text, finished, tmp_path, monkeypatch):
    original = loop.Trainer.settle

    def settle(self, state):
        if int(state.step) == 3 and not (tmp_path / "sent").exists():
            (tmp_path / "sent").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, state)

    monkeypatch.setattr(loop.Trainer, "settle", settle)
    tree = one_device(text, checkpoint__save_every=100)
    train(tree, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] in (["3"], ["4"])
    train(tree, tmp_path)
    assert equal(final_params(tmp_path), final_params(finished))


def test_sigterm_during_an_evaluation_leaves_it_and_saves(text, tmp_path, monkeypatch):
    task, settings = tiny.task_and_settings(one_device(text))
    trainer = loop.Trainer(task, settings, jax.devices())
    with Preemption() as preempted:
        os.kill(os.getpid(), signal.SIGTERM)
        params = jax.jit(task.init)(jax.random.key(0))
        assert trainer.evaluate(params, preempted) == {}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_evaluation_that_sigterm_interrupted_is_made_up_for(text, tmp_path, monkeypatch):
    def evaluate(self, params, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(self, params, stop)

    original = loop.Trainer.evaluate
    tree = one_device(text, evaluate_every=100)
    monkeypatch.setattr(loop.Trainer, "evaluate", evaluate)
    train(tree, tmp_path)
    monkeypatch.undo()
    assert not any("valid/masked_lm_loss" in line for line in lines(tmp_path))
    train(tree, tmp_path)
    assert [line["step"] for line in lines(tmp_path) if "valid/masked_lm_loss" in line] == [6]


def test_a_finished_run_is_left_as_it_is(text, finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    before = (copy / "metrics.jsonl").read_text()
    train(one_device(text), copy)
    assert (copy / "metrics.jsonl").read_text() == before


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(text, tmp_path):
    tree = one_device(text, optimizer__learning_rate=1e30, optimizer__schedule="constant", optimizer__clip_norm=0.0)
    with pytest.raises(
        UserError, match=r"step [3-6]: got a loss or gradient that is not finite; .*(parameter|gradient)"
    ):
        train(tree, tmp_path)
    kept = [int(path.name) for path in (tmp_path / "checkpoints").iterdir()]
    assert kept == [2]


def test_the_first_bad_parameter_is_named(text):
    from bertjax.training import health

    task, settings = tiny.task_and_settings(one_device(text))
    params = jax.jit(task.init)(jax.random.key(0))
    params["bert"]["pooler"]["kernel"] = params["bert"]["pooler"]["kernel"].at[0, 0].set(np.inf)
    batch = next(task.batches("train", 0, np.arange(16)))
    assert health._first_bad(task, params, batch, 0, settings).startswith("parameter bert/pooler/kernel went bad first")
