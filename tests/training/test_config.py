"""Checks of training settings that depend on each other."""

import dataclasses
import json

import pytest

from bertjax.config import build_part
from bertjax.configs import bert_pretraining as config_file
from bertjax.errors import UserError
from bertjax.experiments import bert_pretraining
from bertjax.training.config import TrainingConfig


def settings(num_steps, evaluate_every, **checkpoint):
    tree = json.loads(config_file.get_config("tiny").to_json_best_effort())
    found = build_part(TrainingConfig, bert_pretraining.resolve(tree, None))
    kept = dataclasses.replace(found.checkpoint, **checkpoint)
    return dataclasses.replace(found, num_steps=num_steps, evaluate_every=evaluate_every, checkpoint=kept)


@pytest.mark.parametrize(
    ("final", "available"),
    [("last:4", 3), ("last:9", 3), ("best:3", 2), ("latest", None), ("best", None), ("last:3", None), ("best:2", None)],
)
def test_more_checkpoints_than_a_run_will_have(final, available):
    """Of 50 updates, checkpoints are saved after 20, 40 and 50, and evaluated after 40 and 50."""
    config = settings(50, 40, save_every=20, keep=5, keep_best=4, best_metric="valid/loss", final=final)
    if available is None:
        config.check_final()
        return
    message = rf"final: got {final}, but only {available} .* at most {available}\. Fix: .*:{available},"
    with pytest.raises(UserError, match=message):
        config.check_final()


def test_checkpoints_that_are_not_kept():
    with pytest.raises(UserError, match=r"final: got last:3, but only 2"):
        settings(100, 10, save_every=10, keep=2, final="last:3").check_final()
    with pytest.raises(UserError, match=r"final: got best:3, but only 2"):
        settings(100, 10, save_every=10, keep_best=2, best_metric="valid/loss", final="best:3").check_final()


@pytest.mark.parametrize(("final", "kept"), [("50", True), ("40", True), ("20", False), ("30", False), ("60", False)])
def test_a_step_that_is_not_kept(final, kept):
    config = settings(50, 40, save_every=20, keep=2, final=final)
    if kept:
        config.check_final()
        return
    message = rf"got step {final}, whose checkpoint will not be kept; expected 50, or a multiple of 20 from 40 on"
    with pytest.raises(UserError, match=message):
        config.check_final()


@pytest.mark.parametrize(
    ("final", "got"), [("last:3", "but only 2"), ("best:3", "but only 2"), ("60", "a run that may")]
)
def test_a_run_that_stops_early_has_fewer_checkpoints(final, got):
    changes = {"save_every": 10, "keep": 9, "keep_best": 9, "best_metric": "valid/loss"}
    config = dataclasses.replace(settings(60, 10, **changes, final=final), evaluate_patience=2)
    with pytest.raises(UserError, match=rf"final: got .*{got}.*evaluate_patience"):
        config.check_final()
    dataclasses.replace(config, evaluate_patience=0).check_final()


def test_early_stopping_needs_a_metric():
    with pytest.raises(UserError, match=r"evaluate_patience: got 2, but no checkpoint\.best_metric"):
        dataclasses.replace(settings(60, 10, best_metric=""), evaluate_patience=2)


@pytest.mark.parametrize("final", ["best", "best:2"])
def test_the_best_checkpoint_without_a_metric(final):
    with pytest.raises(UserError, match=rf"final: got {final}, but no checkpoint.best_metric; expected a metric"):
        settings(100, 10, save_every=10, best_metric="", final=final).check_final()
