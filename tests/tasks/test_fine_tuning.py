"""Lengths of fine-tuning in epochs, the shapes of its batches, and its model's settings."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

from bertjax.data.text.vocabularies import SPECIALS
from bertjax.errors import UserError
from bertjax.tasks.bert import batch_specs, check_two_segments, model_configs, shapes, to_example
from bertjax.tasks.fine_tuning import WarmStartConfig, check_packing, resolve_lengths
from configs import parts
from tests.tiny import check_told


def config(**changes):
    """What all fine-tuning begins with, as `launch.py` gives it."""
    tree = parts.fine_tuning("classification", "tiny")
    tree.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
    return json.loads(tree.to_json())


def lengths(num_rows, **changes):
    """Steps, warm-up, and steps between evaluations and between checkpoints."""
    resolved = resolve_lengths(config(**changes), lambda: num_rows)
    steps, warmup = resolved["num_steps"], resolved["optimizer"]["warmup_steps"]
    return steps, warmup, resolved["evaluate_every"], resolved["checkpoint"]["save_every"]


@pytest.mark.parametrize(
    ("num_rows", "changes", "expected"),
    [
        (3668, {}, (345, 34, 115, 115)),  # MRPC: 115 batches of 32, the last of 20
        (64, {}, (6, 1, 2, 2)),
        (65, {}, (9, 1, 3, 3)),
        (1, {}, (3, 0, 1, 1)),
        (320, {"num_epochs": 0.5}, (5, 0, 5, 5)),  # half an epoch is evaluated at its end
        (320, {"num_epochs": 0.01}, (1, 0, 1, 1)),
        (320, {"num_epochs": 2.5, "warmup_fraction": 1.0}, (25, 25, 10, 10)),
        (320, {"warmup_fraction": 0.0}, (30, 0, 10, 10)),
        (320, {"batch_size": 16}, (60, 6, 20, 20)),
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
def test_what_the_config_sets_stays(changes, expected):
    assert lengths(320, **changes) == expected


def test_nothing_else_changes_and_the_config_given_stays():
    given = config()
    before = json.dumps(given)
    resolved = resolve_lengths(given, lambda: 320)
    assert json.dumps(given) == before
    assert resolve_lengths(resolved, lambda: 99_999) == resolved  # a run's own config
    for tree in (resolved, given):
        for key in ("num_steps", "evaluate_every"):
            del tree[key]
        del tree["optimizer"]["warmup_steps"], tree["checkpoint"]["save_every"]
    assert resolved == given


@pytest.mark.parametrize(
    ("key", "value", "expected", "fix"),
    [
        ("num_epochs", 0.0, "above 0", "use 3.0"),
        ("num_epochs", -1.0, "above 0", "use 3.0"),
        ("num_epochs", math.nan, "above 0", "use 3.0"),
        ("num_epochs", math.inf, "above 0", "use 3.0"),
        ("warmup_fraction", -0.1, "0 to 1", "0.1, as BERT"),
        ("warmup_fraction", 2.0, "0 to 1", "0.1, as BERT"),
    ],
)
def test_lengths_out_of_range(key, value, expected, fix):
    with pytest.raises(UserError) as error:
        resolve_lengths(config(**{key: value}), lambda: 320)
    check_told(f"error: {error.value}", what=f"config key {key}$", got=str(value), expected=expected, fix=fix)


def test_two_texts_take_two_token_types():
    bert, _ = models(99)
    check_two_segments(bert)
    with pytest.raises(UserError, match=r"model\.type_vocab_size: got 1; expected at least 2, a token type for each"):
        check_two_segments(dataclasses.replace(bert, type_vocab_size=1))


def test_the_shapes_of_batches():
    specs = batch_specs(shapes(8, 30), {"tags": np.int32}, {"labels": np.float32})
    assert [spec["input_ids"].shape for spec in specs] == [(8, n) for n in (8, 12, 16, 24, 30)]
    for spec in specs:
        length = spec["input_ids"].shape[1]
        assert {name: (field.shape, field.dtype) for name, field in spec.items()} == {
            **dict.fromkeys(("input_ids", "token_type_ids", "segment_ids", "tags"), ((8, length), np.int32)),
            **dict.fromkeys(("labels", "weights"), ((8,), np.float32)),
        }


@pytest.mark.parametrize("key", [{"lstm_size": 8}, {"feature_layers": (-1,)}])
def test_what_reads_on_from_one_example_into_the_next_is_not_packed(key):
    model = {"lstm_size": 0, "feature_layers": (), **key}
    check_packing(False, model)
    check_packing(True, {"lstm_size": 0})
    with pytest.raises(UserError) as error:
        check_packing(True, model)
    ((name, value),) = key.items()
    check_told(
        f"error: {error.value}",
        what=r"config key data\.packing$",
        got=re.escape(f"True with model.{name}={value}"),
        expected="False",
        fix="leave out",
    )


def test_the_rows_of_an_example_have_segments():
    rows = [{"input_ids": np.arange(n, dtype=np.int32), "labels": np.array(n)} for n in (3, 1)]
    made = to_example(rows, "source")
    assert made.source == "source"
    assert [row["segment_ids"].tolist() for row in made.rows] == [[1, 1, 1], [1]]
    assert made.rows[0]["segment_ids"].dtype == np.int32
    assert [row.keys() - {"segment_ids"} for row in made.rows] == [{"input_ids", "labels"}] * 2
    assert "segment_ids" not in rows[0]


@dataclasses.dataclass(frozen=True)
class Head:
    classifier_dropout: float
    lstm_size: int


def models(num_tokens, **changes):
    tree = config(**{f"model__{key}": value for key, value in changes.items()})
    settings = WarmStartConfig("x", "", 0, 32, tree["model"], {})
    return model_configs(settings, Head, [f"token{i}" for i in range(num_tokens)])


def test_the_encoder_and_the_head():
    bert, head = models(99, classifier_dropout=0.25)
    assert (bert.vocab_size, bert.hidden_size, bert.next_sentence) == (99, 128, False)
    assert head == Head(0.25, 0)
    assert models(99, vocab_size=120)[0].vocab_size == 120  # of published weights, rounded up


def test_a_vocabulary_that_leaves_many_embeddings_without_a_token_is_told(caplog):
    models(1000, vocab_size=1100)
    assert not caplog.messages
    models(1000, vocab_size=1200)
    assert caplog.messages == ["data.vocab_file has 1000 tokens for 1200 embeddings: is it that of the weights?"]


def test_nothing_is_told_of_a_vocabulary_that_is_not_there_yet(caplog):
    settings = WarmStartConfig("x", "", 0, 32, config(model__vocab_size=30522)["model"], {})
    assert model_configs(settings, Head, SPECIALS)[0].vocab_size == 30522
    assert not caplog.messages


def test_a_vocabulary_larger_than_the_models():
    with pytest.raises(UserError) as error:
        models(121, vocab_size=120)
    check_told(
        f"error: {error.value}",
        what="data.vocab_file",
        got="121 tokens",
        expected="at most 120",
        fix="leave out --config.model",
    )


def test_a_key_that_neither_knows():
    with pytest.raises(UserError, match=r"config key model\.pooling: got an unknown key; .*classifier_dropout"):
        models(99, pooling="mean")
