import numpy as np
import pytest

from bertjax.data.codecs.summarization.article_rows import ArticleRowsConfig, merge_scores, rows, sentence_labels
from bertjax.data.rows.stored import ragged
from bertjax.data.text.templates import Template
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from tests.experiments.commands import settings_of

TOKENIZER = WordPiece([*SPECIALS, "a", "b", "c", "##c", ".", "Us", "us", "!"], lowercase=True)
PAD, UNK, CLS, SEP, MASK, A, B, C, MORE, STOP, CASED, US, MARK = range(13)


def config(**changes):
    return settings_of(ArticleRowsConfig, "bertsum_ext", **{"seq_len": 12, "window_overlap": 3, **changes})


def ids(row):
    return row.inputs["input_ids"].tolist()


def test_a_row():
    (row,) = rows(["a b.", "C", "bc US!"], TOKENIZER, config(seq_len=14))
    assert ids(row) == [CLS, A, B, STOP, SEP, CLS, C, SEP, CLS, B, MORE, US, MARK, SEP]
    assert row.inputs["token_type_ids"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert row.inputs["sentence_starts"].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0]
    assert row.inputs["first_sentences"].tolist() == 0
    assert row.inputs["cls_positions"].tolist() == [0, 5, 8, 0, 0, 0, 0]
    assert row.part == (range(3), range(3))
    assert {name: array.dtype for name, array in row.inputs.items()} == dict.fromkeys(row.inputs, np.int32)


def test_sentences_of_two_tokens():
    """Some tokenizers add one special token to a text."""
    tokenizer = TOKENIZER.with_template(Template((CLS,), (), (), second_type=0))
    (row,) = rows(["a"] * 7, tokenizer, config(seq_len=14))
    assert ids(row) == [CLS, A] * 7
    assert row.inputs["cls_positions"].tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_without_interval_segments_all_types_are_0():
    (row,) = rows(["a", "b", "c"], TOKENIZER, config(interval_segments=False))
    assert not row.inputs["token_type_ids"].any()


def test_words_between_spaces_are_not_split():
    sentence = "a b. Us  ! c"
    (row,) = rows([sentence], TOKENIZER, config(words="spaces"))
    assert ids(row) == [CLS, A, UNK, US, MARK, C, SEP]
    cased = WordPiece(TOKENIZER.vocab, lowercase=False)
    (row,) = rows([sentence], cased, config(words="spaces"))
    assert ids(row) == [CLS, A, UNK, CASED, MARK, C, SEP]
    (row,) = rows([sentence], TOKENIZER, config())
    assert ids(row) == [CLS, A, B, STOP, US, MARK, C, SEP]


@pytest.mark.parametrize("words", ["bert", "spaces"])
def test_an_empty_sentence_is_unknown(words):
    (row,) = rows(["\u200b" if words == "bert" else " ", "a"], TOKENIZER, config(words=words))
    assert ids(row) == [CLS, UNK, SEP, CLS, A, SEP]


def test_long_articles_are_cut():
    # The third sentence has room for its first word, the fourth for none.
    sentences = ["a a a", "b", "c c", "a"]
    (row,) = rows(sentences, TOKENIZER, config(seq_len=11, long_articles="cut"))
    assert ids(row) == [CLS, A, A, A, SEP, CLS, B, SEP, CLS, C, SEP]
    assert row.part == (range(3), range(3))
    (row,) = rows(sentences, TOKENIZER, config(seq_len=10, long_articles="cut"))
    assert ids(row) == [CLS, A, A, A, SEP, CLS, B, SEP]
    # PreSumm's code only requires room for the sentence's [CLS].
    for seq_len, shown in ((11, 3), (10, 3), (9, 3), (8, 2), (6, 2), (5, 1)):
        (row,) = rows(sentences, TOKENIZER, config(seq_len=seq_len, long_articles="cut_presumm", window_overlap=0))
        assert ids(row) == [*[CLS, A, A, A, SEP, CLS, B, SEP, CLS, C, C][: seq_len - 1], SEP]
        assert row.part.covers == range(shown)
        assert np.flatnonzero(row.inputs["sentence_starts"]).tolist() == [0, 5, 8][:shown]
    (row,) = rows(["a " * 30, "b"], TOKENIZER, config(long_articles="cut"))
    assert ids(row) == [CLS, *[A] * 10, SEP] and row.part.covers == range(1)
    assert merge_scores([row.part], [np.array([0.5, 0.7])], 2).tolist() == [0.5, -np.inf]


def test_windows_and_their_labels():
    sentences = ["a", "b", "c", "a b", "b c", "c"]
    first, second = rows(sentences, TOKENIZER, config(seq_len=14, window_overlap=8))
    assert ids(first) == [CLS, A, SEP, CLS, B, SEP, CLS, C, SEP, CLS, A, B, SEP]
    assert ids(second) == [CLS, C, SEP, CLS, A, B, SEP, CLS, B, C, SEP, CLS, C, SEP]
    parts = [first.part, second.part]
    assert parts == [(range(4), range(3)), (range(2, 6), range(3, 6))]
    assert (first.inputs["first_sentences"], second.inputs["first_sentences"]) == (0, 2)
    assert second.inputs["token_type_ids"].tolist() == [0] * 3 + [1] * 4 + [0] * 4 + [1] * 3
    starts = ragged([first.inputs["sentence_starts"], second.inputs["sentence_starts"]])
    labels, weights = sentence_labels(starts, [(part, (1, 0, 1, 1, 0, 1)) for part in parts]).values()
    assert np.flatnonzero(labels.values).tolist() == [0, 6, 13 + 3, 13 + 11]
    assert np.flatnonzero(weights.values).tolist() == [0, 3, 6, 13 + 3, 13 + 7, 13 + 11]
    assert labels.values.dtype == weights.values.dtype == np.float32
    assert labels.lengths.tolist() == weights.lengths.tolist() == [13, 14]
    scores = [np.array([0.0, 1, 2, 99, 99, 99]), np.array([99.0, 3, 4, 5, 99])]
    assert merge_scores(parts, scores, 6).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("overlap", [12, -1])
def test_windows_overlap_by_less_than_their_length(overlap):
    with pytest.raises(UserError, match=rf"window_overlap: got {overlap}; expected at least 0 and less than data\.seq"):
        config(window_overlap=overlap)
