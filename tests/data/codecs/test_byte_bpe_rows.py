"""Rows of byte-level BPE: answers and tags belong to characters and words of the original text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.codecs.questions.spans import best_answers, windows
from bertjax.data.codecs.tagging.tagged_rows import sentence_rows
from tests.data.codecs import test_spans as spans
from tests.data.text import byte_bpe

CHUNKS = ("the cat", "서울은", "\u1112\u1161\u11ab글", "e\u0301t", "👍🏽", "中文", "a  b", "U.S.", "naïve", "\u200b")


@given(st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=9), st.data())
def test_any_answer_is_found(chunks, data):
    """With merged bytes a token may end within a word or a character, so the answer contains the right one."""
    context = " ".join(chunks)
    answer = data.draw(st.sampled_from(chunks))
    for tokenizer in (byte_bpe.trained(261), byte_bpe.trained()):
        assert answer in spans.recovered(spans.ask(context, answer), tokenizer, seq_len=96, doc_stride=20)


def test_spaces_are_no_answer():
    tokenizer, settings = byte_bpe.trained(261), spans.config(null_answers=True)
    question = spans.ask("a  b")
    (window,) = windows(question, tokenizer, settings)
    names = tokenizer.names(tokenizer.template.row(window.segments)[0])
    blank = window.first + 2
    assert names[window.first : -1] == ["Ġ", "##a", "Ġ", "Ġ", "##b"]
    logits = np.zeros((1, len(names)), np.float32)
    logits[0, blank] = 9
    best = best_answers(question, [window], logits, logits, settings)
    assert [each.score for each in best if not each.text] == [0.0]


@pytest.mark.parametrize("words", [["the", "서울은", "cat", "."], ["👍🏽", "e\u0301", "中文", "singing"]])
def test_a_word_is_tagged_at_its_first_token_of_the_running_text(words):
    tokenizer = byte_bpe.trained()
    (row,), _ = sentence_rows(words, tokenizer, 64)
    ids = row["input_ids"][1:-1].tolist()
    assert ids == tokenizer.encode_batch([" ".join(words)])[0]
    _, starts, ends = tokenizer.encode_with_offsets(" ".join(words))
    firsts = row["unit_starts"] - 1
    for word, first, last in zip(words, firsts, [*firsts[1:], len(ids)], strict=True):
        assert " ".join(words)[starts[first] : ends[last - 1]] == word
    assert not tokenizer.is_continuation[np.array(ids)[firsts]].any()
