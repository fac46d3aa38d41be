import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.rows.text_rows import text_fields, truncated_sizes, unit_rows
from bertjax.data.text.wordpiece import SPECIALS, WordPiece

TOKENIZER = WordPiece([*SPECIALS, "a", "b"], lowercase=True)


def one_by_one(sizes, room):
    """The published procedure: removes one token at a time from the longer text, or the second of equal ones."""
    first, second = sizes
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return [first, second]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_pairs_are_truncated_as_published(first, second, room):
    assert truncated_sizes([first, second], room) == one_by_one((first, second), room)


@pytest.mark.parametrize(("is_left", "one", "pair"), [(False, [5, 6], [5, 3, 8]), (True, [6, 5], [5, 3, 6])])
def test_texts_are_truncated_at_the_end_that_the_template_states(is_left, one, pair):
    template = dataclasses.replace(TOKENIZER.template, truncates_left=is_left)
    tokenizer = TOKENIZER.with_template(template)
    for texts, limit, expected in (([[5, 6, 5]], 4, one), ([[5], [8, 6]], 5, pair)):
        ids = text_fields([texts], tokenizer, limit)["input_ids"].values.tolist()
        assert ids[1 : len(expected) + 1] == expected, texts
    rows, _ = unit_rows([[[5, 6, 5]]], tokenizer, 4)
    assert rows[0]["input_ids"].tolist() == [TOKENIZER.cls_id, *one, TOKENIZER.sep_id]
    assert (tokenizer != TOKENIZER, tokenizer.key != TOKENIZER.key) == (is_left, is_left)


def test_units_of_a_pair():
    """A pair that does not fit into one row continues in a second row, which repeats the last unit of the first."""
    cls, sep = TOKENIZER.cls_id, TOKENIZER.sep_id
    (row,), _ = unit_rows([[[10, 11], [12]], [[20]]], TOKENIZER, 8)
    assert row["input_ids"].tolist() == [cls, 10, 11, 12, sep, 20, sep]
    assert row["token_type_ids"].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert (row["unit_starts"].tolist(), row["unit_lengths"].tolist()) == ([1, 3, 5], [2, 1, 1])
    (first, second), _ = unit_rows([[[10, 11], [12]], [[20], [21]]], TOKENIZER, 7)
    assert first["input_ids"].tolist() == [cls, 10, 11, 12, sep, 20, sep]
    assert second["input_ids"].tolist() == [cls, 12, sep, 20, 21, sep]
    assert (first["unit_starts"].tolist(), second["unit_starts"].tolist()) == ([1, 3], [3, 4])


def test_a_text_without_units_has_no_rows():
    assert unit_rows([[]], TOKENIZER, 8) == unit_rows([[], []], TOKENIZER, 8) == ([], False)


@given(st.lists(st.lists(st.integers(1, 7), max_size=30), min_size=1, max_size=2), st.integers(8, 20))
def test_each_unit_is_owned_once_and_in_order(counts, seq_len):
    number, texts = iter(range(100, 1000)), []
    for of_text in counts:
        texts.append([[next(number) for _ in range(count)] for count in of_text])
    found = []
    rows, is_cut = unit_rows(texts, TOKENIZER, seq_len)
    for row in rows:
        assert len(row["input_ids"]) == len(row["token_type_ids"]) <= seq_len
        assert np.sum(row["input_ids"] == TOKENIZER.sep_id) == len(texts)
        for start, length in zip(row["unit_starts"], row["unit_lengths"], strict=True):
            (kind,) = set(row["token_type_ids"][start : start + length].tolist())
            found.append((kind, row["input_ids"][start : start + length].tolist()))
    limit = seq_len - 1 - len(texts)
    assert found == [(kind, unit[:limit]) for kind, text in enumerate(texts) for unit in text]
    assert is_cut == any(len(unit) > limit for text in texts for unit in text)
