"""The vocabulary of a model with a BERT."""

from types import SimpleNamespace

import pytest

from bertjax.config import build
from bertjax.configs import parts
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from bertjax.tasks.bert import BertTask
from bertjax.tasks.fine_tuning import ClassifierConfig


class Encoder(BertTask):
    """A task with an encoder only."""

    examples = infer = record = record_fields = None


def encoder(num_tokens, **changes):
    """The config of a tiny model with a vocabulary of this size."""
    model = {**parts.fine_tuning("classification", "tiny").model.to_dict(), **changes}
    return build(ClassifierConfig, model, "model").encoder([f"token{i}" for i in range(num_tokens)])


@pytest.mark.parametrize(
    ("num_tokens", "vocab_size", "warns"), [(1000, 1100, False), (1000, 1200, True), (0, 30522, False)]
)
def test_a_vocabulary_much_smaller_than_the_weights_is_warned_about(caplog, num_tokens, vocab_size, warns):
    """A placeholder vocabulary has only special tokens."""
    tokenizer = WordPiece([*SPECIALS, *(f"token{i}" for i in range(num_tokens - len(SPECIALS)))], lowercase=True)
    settings = SimpleNamespace(init_from="bert", codec=lambda tokenizer: None)
    Encoder(settings, tokenizer, encoder(num_tokens, vocab_size=vocab_size), None, 8)
    told = f"data.vocab_file has 1000 tokens for {vocab_size} embeddings: is it the vocabulary of these weights?"
    assert caplog.messages == [told] * warns


def test_a_vocabulary_larger_than_the_embeddings():
    with pytest.raises(UserError, match=r"data\.vocab_file: got .*121 tokens.*; expected at most 120.*omit --config"):
        encoder(121, vocab_size=120)
