"""Settings of a model with a BERT, the shapes of its batches, and its examples."""

import dataclasses

import numpy as np
import pytest

from bertjax.configs import parts
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.errors import UserError
from bertjax.tasks.bert import batch_specs, check_two_segments, model_configs, shapes, to_example
from bertjax.tasks.fine_tuning import WarmStartConfig
from tests.tiny import check_message


@dataclasses.dataclass(frozen=True)
class Head:
    classifier_dropout: float
    lstm_size: int


def settings(**changes):
    """The config of a tiny model."""
    model = {**parts.fine_tuning("classification", "tiny").model.to_dict(), **changes}
    return WarmStartConfig("x", "", 0, 32, model, {})


def models(num_tokens, **changes):
    return model_configs(settings(**changes), Head, [f"token{i}" for i in range(num_tokens)])


def test_the_encoder_and_the_head():
    bert, head = models(99, classifier_dropout=0.25)
    assert (bert.vocab_size, bert.hidden_size, bert.next_sentence) == (99, 128, False)
    assert head == Head(0.25, 0)
    assert models(99, vocab_size=120)[0].vocab_size == 120  # published weights, whose size is rounded up


def test_a_much_smaller_vocabulary_is_warned_about(caplog):
    models(1000, vocab_size=1100)
    assert not caplog.messages
    models(1000, vocab_size=1200)
    assert caplog.messages == [
        "data.vocab_file has 1000 tokens for 1200 embeddings: is it the vocabulary of these weights?"
    ]


def test_a_placeholder_vocabulary_is_not_warned_about(caplog):
    assert model_configs(settings(vocab_size=30522), Head, SPECIALS)[0].vocab_size == 30522
    assert not caplog.messages


def test_a_vocabulary_larger_than_the_embeddings():
    with pytest.raises(UserError) as error:
        models(121, vocab_size=120)
    check_message(
        f"error: {error.value}",
        what="data.vocab_file",
        got="121 tokens",
        expected="at most 120",
        fix="omit --config.model",
    )


def test_an_unknown_key():
    message = r"config key model\.unheard_of_quantity: got an unknown key; .*classifier_dropout"
    with pytest.raises(UserError, match=message):
        models(99, unheard_of_quantity=4)


def test_two_segments_need_two_token_types():
    bert, _ = models(99)
    check_two_segments(bert)
    with pytest.raises(UserError, match=r"model\.type_vocab_size: got 1; expected at least 2, a token type for each"):
        check_two_segments(dataclasses.replace(bert, type_vocab_size=1))


def test_shapes_of_batches():
    specs = batch_specs(shapes(8, 30), {"tags": np.int32}, {"labels": np.float32})
    assert [spec["input_ids"].shape for spec in specs] == [(8, n) for n in (8, 12, 16, 24, 30)]
    for spec in specs:
        length = spec["input_ids"].shape[1]
        assert {name: (field.shape, field.dtype) for name, field in spec.items()} == {
            **dict.fromkeys(("input_ids", "token_type_ids", "segment_ids", "tags"), ((8, length), np.int32)),
            **dict.fromkeys(("labels", "weights"), ((8,), np.float32)),
        }


def test_the_rows_of_an_example_have_segments():
    rows = [{"input_ids": np.arange(n, dtype=np.int32), "labels": np.array(n)} for n in (3, 1)]
    made = to_example(rows, "source")
    assert made.source == "source"
    assert [row["segment_ids"].tolist() for row in made.rows] == [[1, 1, 1], [1]]
    assert made.rows[0]["segment_ids"].dtype == np.int32
    assert [row.keys() - {"segment_ids"} for row in made.rows] == [{"input_ids", "labels"}] * 2
    assert "segment_ids" not in rows[0]
