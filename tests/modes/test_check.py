"""A config that can learn overfits one batch; for others the verdict names the probable error."""

import json
import re

import numpy as np
import pytest

from bertjax.modes import check
from tests import tiny
from tests.experiments.commands import done

GOOD = {
    "batch_size": 8,
    "model__num_layers": 1,
    "model__hidden_size": 64,
    "model__num_heads": 4,
    "optimizer__learning_rate": 3e-3,
}


def test_a_configuration_that_learns(text, tmp_path):
    output = tmp_path / "verdict.json"
    arguments = tiny.arguments(text, tmp_path / "run", **GOOD, optimizer__warmup_steps=5, num_steps=8)
    outcome = done("--mode=check", f"--output={output}", *arguments)
    record = json.loads(output.read_text())
    assert record.keys() == {"can_learn", "verdict", "updates", "seconds", "first", "last", "baselines"}
    assert record["can_learn"] is True
    assert record["verdict"].startswith("can learn")
    assert 10 < record["updates"] < 1000, "the steps of the config do not limit it"
    assert record["first"]["train/masked_lm_loss"] > 3.5 > 0.5 > record["last"]["train/masked_lm_loss"]
    assert record["last"]["train/next_sentence_accuracy"] > 0.9
    assert record["baselines"]["valid/masked_lm_unigram_loss"] > 1
    assert "train/masked_lm_loss" in outcome.stderr and "valid/masked_lm_unigram_loss" in outcome.stderr
    # It has not begun a run.
    assert not (tmp_path / "run" / "config.json").exists() and not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_a_learning_rate_of_zero_makes_no_progress(text, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_UPDATES", 20)
    arguments = tiny.arguments(text, tmp_path / "run", **{**GOOD, "optimizer__learning_rate": 0.0})
    outcome = tiny.run_on_one("--mode=check", *arguments)
    assert outcome.status == 1
    record = json.loads(outcome.stdout)
    assert record["can_learn"] is False
    assert record["verdict"].startswith("no progress")
    assert record["updates"] == 20
    assert record["first"] == record["last"], "dropout is off"


@pytest.mark.slow
def test_a_loss_that_is_not_finite(text):
    groups = ((".", {"learning_rate": 1e30}),)
    tree = tiny.config(text, **GOOD, optimizer__clip_norm=0.0, optimizer__groups=groups)
    task, data, settings, _ = tiny.pretraining(tree)
    with tiny.few_devices(1):
        record = check.overfit_one_batch(task, data, settings)
    assert record["can_learn"] is False
    assert record["verdict"].startswith("not finite: step ")


def test_all_accuracies_and_losses_count():
    first = {"train/loss": 9.0, "train/a_loss": 8.0, "train/a_accuracy": 0.0, "train/b_loss": 0.7}
    learned = {"train/loss": 0.6, "train/a_loss": 0.5, "train/a_accuracy": 0.9, "train/b_loss": 0.1}
    assert check.missed(first, learned) == []
    spoiled = {"train/a_accuracy": 0.89, "train/b_loss": 0.11, "train/a_loss": 0.81, "train/loss": np.nan}
    for name, value in spoiled.items():
        assert len(check.missed(first, learned | {name: value})) == 1


@pytest.mark.parametrize(
    ("loss", "updates", "is_out_of_time", "told"),
    [
        (0.1, 5, True, ""),
        (8.0, 5, True, "undecided: the time limit allowed only 5 updates"),
        (12.0, 500, False, "exploding"),
        (9.9, 500, True, "no progress"),
        (10.5, 500, False, "no progress"),
        (5.0, 500, True, "too little progress: train/loss is 5, not at most 1; .* time ran out"),
        (5.0, 1000, False, "too little progress: .* contradictory labels"),
    ],
)
def test_the_diagnosis(loss, updates, is_out_of_time, told):
    found = check.diagnosis({"train/loss": 10.0}, {"train/loss": loss}, updates, is_out_of_time)
    assert re.match(told, found) and bool(found) == bool(told)
