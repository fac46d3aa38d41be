"""Training runs: their files, exact resumption, clean stops and errors."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import shutil
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import progress
from bertjax.errors import UserError
from bertjax.interop.published import open_weights
from bertjax.runs import checkpoints, goodput
from bertjax.training import health, loop
from bertjax.training import trainer as trainer_module
from bertjax.training.compilation import Compilations
from bertjax.training.preemption import Preemption
from tests import tiny
from tests.experiments.commands import lines_of
from tests.random_params import random_params
from tests.trees import assert_equal


def config(text, **overrides):
    return tiny.config(text, model__num_layers=1, **overrides)


def ready(text, **overrides):
    return tiny.pretraining(config(text, **overrides))


def train(tree, workdir, profile=range(0)):
    """Trains on one device, because programs for several take twice as long to compile."""
    task, data, settings, _ = tiny.pretraining(tree)
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(json.dumps(tree))
    train_on(task, data, settings, workdir, profile)


def train_on(task, data, settings, workdir, profile=range(0)):
    """Trains a task on one device with given data and settings."""
    with tiny.few_devices(1):
        loop.train(task, data, settings, workdir, profile)


class Killed(BaseException):
    """Raised by a trainer that is patched to die."""


def final_params(workdir):
    return tiny.saved_params(json.loads((workdir / "config.json").read_text()), workdir)


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """A finished run with slow saves, which checks before each update that the last due checkpoint is durable."""

    def slow_manifest(self):
        time.sleep(0.3)
        manifest(self)

    def checked_step(*arguments):
        def step(state, batch, numbers):
            begun.append(int(numbers.index))
            for due in range(2, begun[-1] + 1, 2):
                assert (workdir / "checkpoints" / str(due) / "manifest.json").exists(), f"{due} before {begun[-1]}"
            return compiled(state, batch, numbers)

        compiled = jit_step(*arguments)
        return step

    workdir = tmp_path_factory.mktemp("run")
    begun, manifest, jit_step = [], checkpoints.Checkpoints._write_manifest, loop.steps.jit_step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints.Checkpoints, "_write_manifest", slow_manifest)
        patch.setattr(loop.steps, "jit_step", checked_step)
        train(config(text), workdir)
    assert begun == [0, 1, 2, 3, 4, 5]
    return workdir


def lines(workdir):
    return lines_of(workdir / "metrics.jsonl")


def test_a_checkpoint_is_restored_to_several_devices(text, finished, tmp_path):
    task, _, settings, _ = ready(text, mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    copy = shutil.copytree(finished, tmp_path / "copy")
    trainer = loop.Trainer(task, settings, jax.devices())
    with checkpoints.Checkpoints(copy, settings.checkpoint) as saved:
        state = trainer.restore_or_init(saved)
    assert int(state.step) == 6
    assert_equal(jax.device_get(state.params), final_params(finished))
    kernel = state.params["bert"]["encoder"]["layers"]["intermediate"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) != kernel.shape


@pytest.mark.slow
def test_updates_are_traced(text, tmp_path):
    train(config(text, num_steps=4, evaluate_every=100, checkpoint__best_metric=""), tmp_path, profile=range(2, 4))
    (trace,) = (tmp_path / "profile").rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    events = (event for plane in planes for line in plane.lines for event in line.events)
    assert {dict(event.stats)["step_num"] for event in events if event.name == "train"} == {2, 3}


def test_updates_wait_until_the_last_due_checkpoint_is_durable(finished):
    # The fixture checks it before each update; the log contains the seconds of waiting.
    assert [line for line in lines(finished) if "train/save_wait_seconds" in line][-1]["train/save_wait_seconds"] > 0.6


@pytest.mark.slow
def test_a_checkpoint_is_written_during_an_evaluation(text, tmp_path, monkeypatch):
    def slow_manifest(self):
        assert evaluated.wait(60)
        manifest(self)

    def evaluate(*arguments):
        scores = original(*arguments)
        evaluated.set()
        return scores

    evaluated, manifest, original = threading.Event(), checkpoints.Checkpoints._write_manifest, loop.Trainer.evaluate
    monkeypatch.setattr(checkpoints.Checkpoints, "_write_manifest", slow_manifest)
    monkeypatch.setattr(loop.Trainer, "evaluate", evaluate)
    train(config(text, num_steps=2), tmp_path)
    assert (tmp_path / "checkpoints" / "2" / "manifest.json").exists()


def test_a_run_with_dropout_resumes_exactly(text, finished, tmp_path, monkeypatch):
    """A run that is killed after an update that is not saved ends with bitwise the same parameters."""

    def settle(self, state):
        original(self, state)
        if state.step >= 3:
            raise Killed

    original = loop.Trainer.settle
    monkeypatch.setattr(loop.Trainer, "settle", settle)
    with pytest.raises(Killed):
        train(config(text), tmp_path)
    monkeypatch.undo()
    train(config(text), tmp_path)
    assert_equal(final_params(tmp_path), final_params(finished))
    steps = [line["step"] for line in lines(tmp_path) if "train/loss" in line]
    assert steps == sorted(set(steps)), "no step is logged twice"


def test_all_processes_resume_from_the_step_that_process_0_finds(tmp_path, monkeypatch):
    made, agreed = [], []
    monkeypatch.setattr(loop.distributed, "of_first_process", lambda number: (made.append(number), 4)[1])
    monkeypatch.setattr(loop.distributed, "agree", lambda value, what: agreed.append((value, what)))
    monkeypatch.setattr(checkpoints, "_MAX_LAG_SECONDS", 1.5)
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: (tmp_path / "checkpoints" / "4").mkdir(exist_ok=True))
    config = checkpoints.CheckpointConfig(1, 1, "", "min", 1, "latest")
    with checkpoints.Checkpoints(tmp_path, config) as behind:
        assert trainer_module._step_to_resume(behind) == 4  # the file becomes visible while the process waits
        (tmp_path / "checkpoints" / "4").rmdir()
        monkeypatch.setattr(checkpoints, "_MAX_LAG_SECONDS", 0)
        trainer_module._step_to_resume(behind)
    assert made == [-1, -1]
    assert agreed == [("found", "checkpoint 4 of the run"), ("missing", "checkpoint 4 of the run")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_an_evaluation(text, number):
    task, data, settings, _ = ready(text)
    trainer = loop.Trainer(task, settings, jax.devices())
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with Preemption() as preempted:
        os.kill(os.getpid(), number)
        assert trainer.evaluate(random_params(task.init), data, preempted, None) == {}
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_scores_written_before_a_kill_are_not_repeated(text, tmp_path, monkeypatch):
    """In the end the log has one line with them, and the best checkpoint is known."""

    def finish(self, step, scores):
        if scores:
            raise Killed
        original_finish(self, step, scores)

    original_finish = checkpoints.Checkpoints.finish
    metric = "valid/next_sentence_loss"  # it increases, so the best checkpoint is not the last
    tree = config(text, evaluate_every=4, checkpoint__save_every=4, checkpoint__keep=1, checkpoint__best_metric=metric)
    monkeypatch.setattr(checkpoints.Checkpoints, "finish", finish)
    with pytest.raises(Killed):
        train(tree, tmp_path)
    monkeypatch.undo()
    assert [line["step"] for line in lines(tmp_path) if metric in line] == [4]
    train(tree, tmp_path)
    scores = {line["step"]: line[metric] for line in lines(tmp_path) if metric in line}
    assert [line["step"] for line in lines(tmp_path) if metric in line] == [4, 6]
    best = min(scores, key=scores.get)
    assert best == 4
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {str(best), "6"}


@pytest.mark.slow
def test_a_run_that_stops_early_resumes_exactly(text, finished, tmp_path, monkeypatch, caplog):
    """A signal interrupts the last evaluation; a kill follows when the last checkpoint is saved on schedule."""

    def files(name):
        logged = [(line["step"], min({*line} - {"step"}), line.get(metric)) for line in lines(tmp_path / name)]
        saved = {int(path.name) for path in (tmp_path / name / "checkpoints").iterdir()}
        return logged, saved, checkpoints.find_steps(tmp_path / name, "last:2")

    def signalled(self, *arguments):
        if checkpoints.latest_step(tmp_path / "killed") == 2:
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, *arguments)

    def killed(self, *arguments, **named):
        raise Killed

    evaluate, metric = loop.Trainer.evaluate, "valid/next_sentence_loss"  # which increases in the third update
    tree = config(text, evaluate_every=1, checkpoint__keep=2, checkpoint__best_metric=metric) | {"evaluate_patience": 1}
    with caplog.at_level(logging.INFO):
        train(tree, tmp_path / "whole")
    assert f"stopped early after step 3: {metric} has not improved in 1 evaluations (best: 0.69" in caplog.text
    whole = files("whole")
    assert whole[1:] == ({2, 3}, [2, 3])
    monkeypatch.setattr(loop.Trainer, "evaluate", signalled)
    train(tree, tmp_path / "killed")
    monkeypatch.setattr(loop.Trainer, "evaluate", evaluate)
    assert [checkpoints.find_steps(tmp_path / "killed", which) for which in ("last:1", "latest")] == [[2], [3]]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoints.Checkpoints, "save", killed)
        train(tree, tmp_path / "killed")
    train(tree, tmp_path / "killed")
    assert files("killed") == whole
    assert_equal(final_params(tmp_path / "killed"), final_params(tmp_path / "whole"))
    monkeypatch.setattr(loop.Trainer, "updates", killed)
    train(tree, tmp_path / "whole")
    assert files("whole") == whole
    monkeypatch.undo()
    train(tree | {"evaluate_patience": 9}, tmp_path / "killed")
    assert_equal(final_params(tmp_path / "killed"), final_params(finished))


@pytest.mark.slow
def test_spikes_are_counted_in_the_log(text, tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.training.health._MIN_VALUES", 3)
    task, data, settings, _ = ready(text, evaluate_every=100, checkpoint__best_metric="")
    denominators = task.denominators

    def smaller(batch):
        # The fifth batch gets a wrong number of predictions, which increases its loss.
        scale = jnp.where(batch["next_sentence_weights"][0, 0] == 1, 1.0, 0.02)
        return {term: value * scale for term, value in denominators(batch).items()}

    def batches(split, start, rows):
        for index, batch in enumerate(original(split, start, rows), start=start):
            yield {**batch, "next_sentence_weights": batch["next_sentence_weights"] * (2 if index == 4 else 1)}

    original, data.batches, task.denominators = data.batches, batches, smaller
    train_on(task, data, settings, tmp_path)
    spikes = {line["step"]: line.get("train/loss_spikes") for line in lines(tmp_path) if "train/loss" in line}
    assert spikes == {2: None, 4: None, 6: 1.0}


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(text, tmp_path):
    tree = config(text, optimizer__learning_rate=1e30, optimizer__schedule="constant", optimizer__clip_norm=0.0)
    message = r"step [3-6]: got a loss or gradient that is not finite; .*(parameter|gradient)"
    with pytest.raises(UserError, match=message):
        train(tree, tmp_path)
    kept = [int(path.name) for path in (tmp_path / "checkpoints").iterdir()]
    assert kept == [2]


def test_the_first_parameter_that_is_not_finite_is_named(text):
    task, data, settings, _ = ready(text)
    params = random_params(task.init)
    params["bert"]["pooler"]["kernel"][0, 0] = np.inf
    batch = next(data.batches("train", 0, np.arange(16)))
    message = health._first_not_finite(task, params, batch, 0, settings)
    assert message.startswith("the first such parameter is bert/pooler/kernel (")


def test_the_first_operation_and_gradient_that_are_not_finite_are_named(text):
    task, data, settings, _ = ready(text)
    params = jax.tree.map(lambda param: 1e30 * param, random_params(task.init))  # products of these overflow float32
    batch = next(data.batches("train", 0, np.arange(16)))
    message = health._first_not_finite(task, params, batch, 0, settings)
    assert re.fullmatch(
        r"the parameters are finite; nan generated by .*; the gradients of bert/.* are not finite", message
    ), message


def test_a_time_is_spent_once_however_often_the_run_is_killed(text, tmp_path, monkeypatch):
    """On a clock where an update takes 1 s, and a save and an evaluation much longer."""
    now, left = [0.0], [0]
    settle, save, evaluate = loop.Trainer.settle, checkpoints.Checkpoints.save, loop.Trainer.evaluate

    def timed_settle(self, state):
        now[0] += self._last is not None
        left[0] -= self._last is not None
        if not left[0]:
            raise Killed
        settle(self, state)

    def slow(seconds, function):
        def call(*arguments, **named):
            now[0] += seconds
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(goodput.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(loop.Trainer, "settle", timed_settle)
    monkeypatch.setattr(checkpoints.Checkpoints, "save", slow(5.0, save))
    monkeypatch.setattr(loop.Trainer, "evaluate", slow(70.0, evaluate))
    tree = config(text, log_every=5, evaluate_every=10, checkpoint__save_every=10, optimizer__warmup_steps=0)
    tree |= {"num_steps": None, "budget": {"tokens": 0.0, "flops": 0.0, "hours": 60 / 3600}}
    for kill_after in (17, 16, 4, 23, 9, 1000):
        left[0] = kill_after
        with pytest.raises(Killed) if kill_after < 1000 else contextlib.nullcontext():
            train(tree, tmp_path)
    last = checkpoints.latest_step(tmp_path)
    spent = goodput.summary(tmp_path)
    assert 60 <= last <= 61
    assert spent["step"] + spent["data_wait"] == pytest.approx(last)
    assert spent["lost"] > 0 and spent["evaluation"] >= 70 * 6
    rates = {line["step"]: line["train/learning_rate"] for line in lines(tmp_path) if "train/learning_rate" in line}
    assert rates[5] == pytest.approx(1e-3)  # no decay before the first line of the log
    assert rates[30] == pytest.approx(1e-3 * (1 - 29 / 60), rel=0.02)
    assert rates[last] == pytest.approx(1e-3 * (1 - (last - 1) / 60), abs=2e-5)


def test_trained_weights_are_scored_before_the_first_update(finished, tmp_path, caplog, monkeypatch):
    """The time left is not known after one update."""
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", {True: -1})
    run = open_weights(finished)
    task, data, settings, _ = tiny.pretraining(run.config)
    settings = dataclasses.replace(settings, num_steps=4, evaluate_every=2, evaluate_patience=9)
    task.decodes = True
    with tiny.few_devices(1):
        trainer = loop.Trainer(task, settings, jax.devices(), run)
        trainer.fresh()
        assert not trainer.scores_start
        task.decodes = False
        with Compilations() as compiled, caplog.at_level(logging.INFO, "bertjax"):
            loop.train(task, data, settings, tmp_path, published=run)
            loop.train(task, data, dataclasses.replace(settings, num_steps=6), tmp_path, published=run)
    assert compiled.programs.count("jit(metrics)") == 2, "one for each start"
    scores = [line for line in lines(tmp_path) if "valid/masked_lm_loss" in line]
    assert [line["step"] for line in scores] == [0, 2, 4, 6]
    assert scores[0] == pytest.approx({**lines(finished)[-1], "step": 0})
    first, *_, last = (line["valid/masked_lm_loss"] for line in scores)
    assert f"masked_lm_loss {first:.4g} -> {last:.4g} (unigram" in caplog.messages[-2]
    assert "training: step 1/4" in caplog.messages
    assert not (tmp_path / "checkpoints" / "0").exists()


def test_a_run_draws_only_parameters_without_weights(finished, monkeypatch):
    run = open_weights(finished)
    task, _, settings, _ = tiny.pretraining(run.config)
    monkeypatch.setattr(task, "reinitialized_modules", lambda weights: ["next_sentence"])
    with tiny.few_devices(1):
        trainers = [loop.Trainer(task, settings, jax.devices(), each) for each in (None, run)]
        random, started = (trainer.fresh() for trainer in trainers)
    assert not any(trainer.scores_start for trainer in trainers)
    expected = {**final_params(finished), "next_sentence": random.params["next_sentence"]}
    assert_equal(started, random._replace(params=expected))
