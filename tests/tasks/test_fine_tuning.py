"""Lengths of fine-tuning in epochs, and the check of packing."""

import importlib
import json
import math
import re

import pytest

from bertjax.config import build_part
from bertjax.errors import UserError
from bertjax.tasks import completion
from tests.tiny import check_message


def config(experiment="classification", **changes):
    """The config of an experiment, as `launch.py` passes it."""
    tree = importlib.import_module(f"bertjax.configs.{experiment}").get_config("tiny")
    tree.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
    return json.loads(tree.to_json())


def check(experiment="classification", **changes):
    """Raises UserError for values out of range."""
    module = importlib.import_module(f"bertjax.experiments.{experiment}")
    build_part(module.Config, config(experiment, data__seq_len=32, data__lowercase=True, **changes))


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
    ],
)
def test_lengths_follow_from_the_rows(num_rows, changes, expected):
    assert lengths(num_rows, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_steps": 7}, (7, 1, 7, 7)),
        ({"num_steps": 100}, (100, 10, 10, 10)),
        ({"optimizer__warmup_steps": 0}, (30, 0, 10, 10)),
        ({"optimizer__warmup_steps": 12}, (30, 12, 10, 10)),
        ({"evaluate_every": 4}, (30, 3, 4, 4)),
        ({"checkpoint__save_every": 6}, (30, 3, 10, 6)),
        ({"evaluate_every": 4, "checkpoint__save_every": 8}, (30, 3, 4, 8)),
    ],
)
def test_values_of_the_config_are_kept(changes, expected):
    assert lengths(320, **changes) == expected


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
    ("key", "value", "expected"),
    [
        ("num_epochs", 0.0, "above 0 and finite"),
        ("num_epochs", -1.0, "above 0 and finite"),
        ("num_epochs", math.nan, "above 0 and finite"),
        ("num_epochs", math.inf, "above 0 and finite"),
        ("warmup_fraction", -0.1, "at least 0 and at most 1"),
        ("warmup_fraction", 2.0, "at least 0 and at most 1"),
    ],
)
def test_lengths_out_of_range(key, value, expected):
    with pytest.raises(UserError) as error:
        check(**{key: value})
    fix = rf"change --config\.{key}"
    check_message(f"error: {error.value}", what=f"config key {key}$", got=str(value), expected=expected, fix=fix)


@pytest.mark.parametrize(
    ("experiment", "key", "value"), [("classification", "lstm_size", 8), ("tagging", "feature_layers", (-1,))]
)
def test_packing_is_refused_for_models_that_mix_examples(experiment, key, value):
    check(experiment, **{f"model__{key}": value})
    check(experiment, data__packing=True)
    with pytest.raises(UserError) as error:
        check(experiment, data__packing=True, **{f"model__{key}": value})
    check_message(
        f"error: {error.value}",
        what=r"config key data\.packing$",
        got=re.escape(f"True with model.{key}={value}"),
        expected="False",
        fix="omit",
    )
