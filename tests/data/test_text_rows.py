"""One text or two between their special tokens, cut as Google's code cuts them."""

from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.text_rows import text_row, truncate
from bertjax.data.tokenizers import SPECIALS, WordPiece


def one_by_one(segments, seq_len):
    """The published procedure: a token at a time from the longer one, of equals from the second."""
    first, second = map(list, segments)
    while len(first) + len(second) > seq_len - 3:
        (first if len(first) > len(second) else second).pop()
    return [first, second]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(4, 40))
def test_pairs_are_cut_as_published(first, second, seq_len):
    segments = [list(range(first)), list(range(100, 100 + second))]
    assert truncate(segments, seq_len) == one_by_one(segments, seq_len)


def test_one_text_is_cut_at_its_end():
    assert truncate([[1, 2, 3, 4]], 5) == [[1, 2, 3]]
    assert truncate([[1, 2]], 5) == [[1, 2]]


def test_rows():
    tokenizer = WordPiece([*SPECIALS, "a", "b"], lowercase=True)
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    row = text_row([[5, 6], [6]], tokenizer)
    assert row["input_ids"].tolist() == [cls, 5, 6, sep, 6, sep]
    assert row["token_type_ids"].tolist() == [0, 0, 0, 0, 1, 1]
    assert text_row([[5]], tokenizer)["token_type_ids"].tolist() == [0, 0, 0]
