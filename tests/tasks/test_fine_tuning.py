"""Lengths of fine-tuning in epochs, and the check of packing."""

import json

import pytest

from bertjax import experiments
from bertjax.config import build_part
from bertjax.errors import UserError
from bertjax.tasks import completion
from tests.experiments.commands import tree_of


def config(experiment="classification", **changes):
    """The config of an experiment, as `launch.py` passes it."""
    return tree_of(experiment, "tiny", {key.replace("__", "."): value for key, value in changes.items()})


def check(experiment="classification", **changes):
    """Raises UserError for values out of range."""
    values = config(experiment, **{"data__seq_len": 32, "data__lowercase": True, "metrics": ("accuracy",), **changes})
    build_part(experiments.find(experiment).Config, values)


def lengths(num_rows, **changes):
    """Steps, warm-up, and the intervals of evaluation and saving."""
    resolved = completion.lengths(config(**changes), lambda: num_rows)
    steps, warmup = resolved["num_steps"], resolved["optimizer"]["warmup_steps"]
    return steps, warmup, resolved["evaluate_every"], resolved["checkpoint"]["save_every"]


@pytest.mark.parametrize(
    ("num_rows", "changes", "expected"),
    [
        (3668, {}, (345, 34, 115, 115)),  # MRPC: 115 batches; the last has 20 rows
        (64, {}, (6, 1, 2, 2)),
        (65, {}, (9, 1, 3, 3)),
        (1, {}, (3, 0, 1, 1)),
        (320, {"num_epochs": 0.5}, (5, 0, 5, 5)),  # half an epoch, evaluated at its end
        (320, {"num_epochs": 0.01}, (1, 0, 1, 1)),
        (320, {"num_epochs": 2.5, "warmup_fraction": 1.0}, (25, 25, 10, 10)),
        (320, {"warmup_fraction": 0.0}, (30, 0, 10, 10)),
        (320, {"batch_size": 16}, (60, 6, 20, 20)),
        (320, {"optimizer__schedule_steps": 10}, (30, 1, 10, 10)),
        # Values of the config are kept.
        (320, {"num_steps": 7}, (7, 1, 7, 7)),
        (320, {"num_steps": 100}, (100, 10, 10, 10)),
        (320, {"optimizer__warmup_steps": 0}, (30, 0, 10, 10)),
        (320, {"optimizer__warmup_steps": 12}, (30, 12, 10, 10)),
        (320, {"checkpoint__save_every": 6}, (30, 3, 10, 6)),
        (320, {"evaluate_every": 4, "checkpoint__save_every": 8}, (30, 3, 4, 8)),
    ],
)
def test_lengths_follow_from_the_rows(num_rows, changes, expected):
    assert lengths(num_rows, **changes) == expected


def test_other_keys_and_the_argument_are_not_changed():
    given = config()
    before = json.dumps(given)
    resolved = completion.lengths(given, lambda: 320)
    assert json.dumps(given) == before
    assert completion.lengths(resolved, lambda: 99_999) == resolved  # the config of a run
    for tree in (resolved, given):
        for key in ("num_steps", "evaluate_every"):
            del tree[key]
        del tree["optimizer"]["warmup_steps"], tree["checkpoint"]["save_every"]
    assert resolved == given


@pytest.mark.parametrize(
    ("experiment", "values", "got"),
    [
        ("classification", {"model__lstm_size": 8}, "model.lstm_size=8"),
        ("tagging", {"model__feature_layers": (-1,), "model__lstm_size": 8}, "model.lstm_size=8, model.feature"),
    ],
)
def test_packing_is_refused_for_models_that_mix_examples(experiment, values, got):
    check(experiment, **values)
    check(experiment, data__packing=True)
    with pytest.raises(UserError, match=rf"data\.packing: got True with {got}.*; expected False.* Fix: omit"):
        check(experiment, data__packing=True, **values)


def test_a_tagger_on_features_needs_a_bilstm():
    with pytest.raises(UserError, match=r"model\.lstm_size: got 0; expected at least 1 with model\.feature_layers"):
        check("tagging", model__feature_layers=(-1,))
