import numpy as np
import pytest

from bertjax.data.codecs.summarization.summary_rows import TARGET_TOKENS, SummaryRows, sentences, target, target_ids
from bertjax.data.rows.stored import fields_of
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError

VOCAB = [*SPECIALS, *TARGET_TOKENS, "play", "##ing", "the", "dog", "."]
TOKENIZER = WordPiece(VOCAB, lowercase=True)


def shown(ids):
    return " ".join(VOCAB[id_] for id_ in ids)


def test_targets_have_marks_between_sentences_and_at_the_end():
    summary = ["The dog.", "Playing"]
    assert shown(target(summary, TOKENIZER, "bert")) == "the dog . [unused2] play ##ing [unused1]"
    assert shown(target([], TOKENIZER, "bert")) == "[unused1]"
    assert shown(target(["The dog ."], TOKENIZER, "spaces")) == "the dog . [unused1]"
    assert shown(target(["The dog."], TOKENIZER, "spaces")) == "the [UNK] [unused1]"  # "dog." is one word


def test_generated_tokens_become_sentences():
    ids = [*target(["The dog.", "Playing"], TOKENIZER, "bert").tolist(), VOCAB.index("dog")]
    assert sentences(ids, TOKENIZER) == ["the dog .", "playing"]
    _, end, between = target_ids(TOKENIZER)
    assert sentences([between, between, end], TOKENIZER) == []
    assert sentences([VOCAB.index("##ing"), between, VOCAB.index("the")], TOKENIZER) == ["##ing", "the"]


def test_a_vocabulary_without_marks_is_an_error():
    with pytest.raises(UserError, match=r"got no \[unused0\], \[unused1\], \[unused2\]; .* Fix: use BERT's"):
        target_ids(WordPiece(SPECIALS, lowercase=True))


def test_batches():
    made = [
        {"input_ids": np.full(size, size, np.int32), "labels": np.arange(1, size // 2 + 1, dtype=np.int32)}
        for size in (2, 5, 8)
    ]
    rows = SummaryRows(fields_of(made), target_len=6)
    assert rows.lengths.tolist() == [2, 5, 8]
    batch = rows.padded(np.array([2, -1, 0]), 8)
    assert batch["input_ids"].tolist() == [[8] * 8, [0] * 8, [2, 2, 0, 0, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3, 4, 0, 0], [0] * 6, [1, 0, 0, 0, 0, 0]]
    assert batch["target_segment_ids"].tolist() == [[1, 1, 1, 1, 0, 0], [0] * 6, [1, 0, 0, 0, 0, 0]]
    assert batch["weights"].tolist() == [1, 0, 1]
