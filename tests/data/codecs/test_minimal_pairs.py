import gzip
import json
import logging

import pytest

from bertjax.data.codecs.minimal_pairs import Pair, SentenceCodec, read
from bertjax.data.text import byte_bpe_trainer
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError

TOKENIZER = WordPiece([*SPECIALS, ".", "the", "cat", "##s", "##ter", "see", "sees"], lowercase=True)
MASK = TOKENIZER.mask_id
PAIRS = [("The cat sees.", "The cats sees."), ("The cats see.", "The cat see.")]


def sentences(method="original", shift=0, max_positions=12, is_causal=False):
    return SentenceCodec(TOKENIZER, max_positions, method, is_causal, shift)


def ids(text):
    return TOKENIZER.encode_batch([text])[0]


def words(text):
    return sentences().words(text, "")


def pairs_in(path, per_paradigm=0, on_bad_row="stop", columns=()):
    found = read(str(path), "data.valid_source", sentences(), per_paradigm, on_bad_row, columns)
    return [pair._replace(where="") for pair in found]


def shown(rows):
    return [" ".join(TOKENIZER.vocab[i] for i in row["input_ids"]) for row in rows]


@pytest.mark.parametrize("shift", [0, -1])
def test_each_token_is_masked_once_and_predicted_there_or_before(shift):
    rows = sentences(shift=shift).rows(words("the cats see"))
    assert shown(rows) == [
        "[CLS] [MASK] cat ##s see [SEP]",
        "[CLS] the [MASK] ##s see [SEP]",
        "[CLS] the cat [MASK] see [SEP]",
        "[CLS] the cat ##s [MASK] [SEP]",
    ]
    for row in rows:
        assert row["input_ids"][row["masked_positions"] - shift] == MASK
    assert [row["masked_labels"] for row in rows] == ids("the cats see")


def test_within_words_the_later_tokens_are_masked_too():
    rows = sentences("within_word_l2r").rows(words("the catster sees cats"))
    assert shown(rows) == [
        "[CLS] [MASK] cat ##s ##ter sees cat ##s [SEP]",
        "[CLS] the [MASK] [MASK] [MASK] sees cat ##s [SEP]",
        "[CLS] the cat [MASK] [MASK] sees cat ##s [SEP]",
        "[CLS] the cat ##s [MASK] sees cat ##s [SEP]",
        "[CLS] the cat ##s ##ter [MASK] cat ##s [SEP]",
        "[CLS] the cat ##s ##ter sees [MASK] [MASK] [SEP]",
        "[CLS] the cat ##s ##ter sees cat [MASK] [SEP]",
    ]
    assert [row["masked_positions"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]


def test_a_word_ends_at_a_space_and_at_punctuation():
    assert words("the catsters") == [ids("the"), ids("catsters")]
    texts = ["The ex-husband wasn't rough."]
    bpe = byte_bpe_trainer.train(byte_bpe_trainer.count_words(texts * 2, False), 268, lowercase=False)
    found = SentenceCodec(bpe, 64, "original", False, 0).words(texts[0], "")
    shown = ["".join(bpe.vocab[token] for token in word).strip("Ġ") for word in found]
    assert shown[:4] == ["The", "ex", "-", "husband"] and shown[-2:] == ["rough", "."]


@pytest.mark.parametrize(("shift", "positions"), [(-1, [0, 1, 2]), (1, [2, 3, 4])])
def test_a_causal_model_reads_the_sentence_once(shift, positions):
    (row,) = sentences(shift=shift, is_causal=True).rows(words("the cat sees"))
    assert shown([row]) == ["[CLS] the cat sees [SEP]"]
    assert row["masked_positions"].tolist() == positions
    assert row["masked_labels"].tolist() == ids("the cat sees")


def expected(phenomenon="", paradigm=""):
    return [Pair((phenomenon, paradigm), words(good), words(bad), "") for good, bad in PAIRS]


def test_blimp_files_have_phenomena_and_paradigms(tmp_path):
    names = ("good", "bad", "phenomenon", "paradigm"), ("sentence_good", "sentence_bad", "linguistics_term", "UID")
    for columns in names:
        rows = [dict(zip(columns, (*pair, "number / agreement", "det_noun"), strict=True)) for pair in PAIRS]
        text = "".join(json.dumps({"field": "syntax", **row}) + "\n" for row in rows)
        (tmp_path / "pairs.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        assert pairs_in(tmp_path / "pairs.jsonl.gz") == expected("number_agreement", "det_noun")


@pytest.mark.parametrize(
    ("name", "separator", "header", "columns"),
    [
        ("pairs.tsv", "\t", ("good", "bad"), ()),
        ("pairs.csv", ",", ("bad", "good"), ()),
        ("pairs.csv", ",", ("right", "wrong"), ("right", "wrong")),
        ("pairs.tsv", "\t", (), ()),
        ("pairs.txt", "\t", (), ()),
    ],
)
def test_tables_and_lines(tmp_path, name, separator, header, columns):
    lines = [separator.join(header)] if header else []
    lines += [separator.join(reversed(pair) if header[:1] == ("bad",) else pair) for pair in PAIRS]
    (tmp_path / name).write_text("\n".join(lines) + "\n\n")
    assert pairs_in(tmp_path / name, columns=columns) == expected()


def test_the_first_pairs_of_each_paradigm_are_taken(tmp_path):
    rows = [{"good": g, "bad": b, "paradigm": name} for name in "xyx" for g, b in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert pairs_in(tmp_path / "pairs.jsonl", 1) == [expected("", name)[0] for name in "xy"]
    assert len(pairs_in(tmp_path / "pairs.jsonl", 3)) == 5


def test_equal_sentences_are_ties_and_are_logged(tmp_path, caplog):
    (tmp_path / "pairs.txt").write_text("the cat\tthe cats\nthe cat\tThe cat\nthe cat\tthe cat\n")
    with caplog.at_level(logging.WARNING):
        assert len(pairs_in(tmp_path / "pairs.txt")) == 3
    assert "2 pairs are ties: their sentences have the same tokens" in caplog.text and "pairs.txt:2" in caplog.text


BAD = [
    ("pairs.txt", "the cat", "got one sentence; expected a good and a bad sentence, separated by a tab"),
    ("pairs.txt", "the\tcat\tsees", "got 3 sentences; expected a good and a bad"),
    ("pairs.txt", "the cat\t", "an empty text"),
    ("pairs.txt", f"the cat\t{'the ' * 11}", "got 11 tokens; expected a sentence of 1 to 10 tokens"),
    ("pairs.txt", "the cat\t\u200b", "got 0 tokens; expected a sentence of 1 to 10 tokens"),
    ("pairs.jsonl", '{"good": "the cat"}', "got the columns good; expected the columns good and bad"),
    ("pairs.jsonl", '{"good": "the cat", "bad": ["the"]}', "got list in column 'bad'; expected text"),
]


@pytest.mark.parametrize(("name", "line", "message"), BAD)
def test_a_bad_row_is_reported_with_file_and_line_or_skipped(tmp_path, caplog, name, line, message):
    good = "the cat\tthe cats" if name == "pairs.txt" else '{"good": "the cat", "bad": "the cats"}'
    (tmp_path / name).write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(UserError, match=rf"{name}:2: .*{message}"):
        pairs_in(tmp_path / name)
    with caplog.at_level(logging.INFO):
        assert len(pairs_in(tmp_path / name, on_bad_row="skip")) == 2
    assert "1 bad rows skipped" in caplog.text


def test_a_source_without_pairs_is_an_error(tmp_path):
    (tmp_path / "pairs.jsonl").write_text("\n")
    with pytest.raises(UserError, match=r"data\.valid_source=.*pairs\.jsonl: got no rows; expected pairs of sentences"):
        pairs_in(tmp_path / "pairs.jsonl")
    with pytest.raises(UserError, match=r"data\.valid_source: got no files; expected files of minimal pairs"):
        pairs_in("")
