"""Settings of a model with a BERT, the shapes of its batches, and its examples."""

from types import SimpleNamespace

import numpy as np
import pytest

from bertjax.config import build
from bertjax.configs import parts
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from bertjax.tasks.bert import BertTask, batch_specs
from bertjax.tasks.fine_tuning import ClassifierConfig


class Encoder(BertTask):
    """A task with an encoder only."""

    examples = infer = record = record_fields = None


def settings(init_from):
    return SimpleNamespace(init_from=init_from, codec=lambda tokenizer: None)


def encoder(num_tokens, **changes):
    """The config of a tiny model with a vocabulary of this size."""
    model = {**parts.fine_tuning("classification", "tiny").model.to_dict(), **changes}
    return build(ClassifierConfig, model, "model").encoder([f"token{i}" for i in range(num_tokens)])


def test_the_encoder():
    bert = encoder(99)
    assert (bert.vocab_size, bert.hidden_size) == (99, 128)
    assert encoder(99, vocab_size=120).vocab_size == 120  # published weights, whose size is rounded up


@pytest.mark.parametrize(
    ("num_tokens", "vocab_size", "warns"), [(1000, 1100, False), (1000, 1200, True), (0, 30522, False)]
)
def test_a_vocabulary_much_smaller_than_the_weights_is_warned_about(caplog, num_tokens, vocab_size, warns):
    """A placeholder vocabulary has only special tokens."""
    tokenizer = WordPiece([*SPECIALS, *(f"token{i}" for i in range(num_tokens - len(SPECIALS)))], lowercase=True)
    Encoder(settings("bert"), tokenizer, encoder(num_tokens, vocab_size=vocab_size), None, 8)
    told = f"data.vocab_file has 1000 tokens for {vocab_size} embeddings: is it the vocabulary of these weights?"
    assert caplog.messages == [told] * warns


def test_a_vocabulary_larger_than_the_embeddings():
    with pytest.raises(
        UserError, match=r"data\.vocab_file: got .*121 tokens.*; expected at most 120.*omit --config\.model"
    ):
        encoder(121, vocab_size=120)


@pytest.mark.parametrize("shape", [(8, 30), (8, 4, 12)])
def test_shapes_of_batches(shape):
    (spec,) = batch_specs([shape], {"tags": np.int32}, {"labels": np.float32})
    assert {name: (field.shape, field.dtype) for name, field in spec.items()} == {
        **dict.fromkeys(("input_ids", "token_type_ids", "segment_ids", "tags"), (shape, np.int32)),
        **dict.fromkeys(("labels", "weights"), ((8,), np.float32)),
    }
