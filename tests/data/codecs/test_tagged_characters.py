"""Characters as the units that are tagged, as in KLUE-NER."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.configs import tagging
from bertjax.data.codecs.tagging.column_files import ColumnsConfig
from bertjax.data.codecs.tagging.tagged_rows import character_rows
from bertjax.data.codecs.tagging.tagged_tables import TableFields
from bertjax.data.codecs.tagging.tagged_words import SentencesConfig, TaggedCodec, read_sentences
from bertjax.data.readers.lines import BadRows
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError

COLUMNS = ColumnsConfig(0, -1)
CHARACTERS = TableFields(units="characters")
VOCAB = [*SPECIALS, "샘", "밀", "##란", "##란은", "커", "##플", "##리", ".", "ab", "a"]
TOKENIZER = WordPiece(VOCAB, lowercase=False)
# As published: comments, one of them with a tab; a space is a character; its tag may be that of an entity.
KLUE = """## 토큰, 레이블 구분자 : \\t
## 컬럼명 : CHAR\tNE_TAG
## klue-ner-v1_dev_00000-nsmc\t<샘 밀란:PS>은 #1.
샘\tB-PS
 \tI-PS
밀\tI-PS
란\tI-PS
은\tO
 \tO
#\tO
1\tB-QT

## klue-ner-v1_dev_00001-nsmc\t<밀란:LC>
밀\tB-LC
란\tI-LC
"""
SENTENCES = [
    (("샘 ", "밀", "란", "은 ", "#", "1"), ("B-PS", "I-PS", "I-PS", "O", "O", "B-QT")),
    (("밀", "란"), ("B-LC", "I-LC")),
]


def read(tmp_path, content, name, fields=CHARACTERS):
    (tmp_path / name).write_text(content, encoding="utf-8")
    return [
        sentence[:2]
        for sentence in read_sentences(str(tmp_path / name), "data.source", COLUMNS, BadRows("stop"), fields)
    ]


def codec(path="", fields=CHARACTERS):
    return TaggedCodec(SentencesConfig(source=str(path)), COLUMNS, TOKENIZER, 16, fields)


def test_the_published_file(tmp_path):
    data = tagging.get_config("klue_ner").data
    fields = TableFields(units=data.units)
    assert read(tmp_path, KLUE, "klue-ner-v1.1_dev.tsv", fields) == SENTENCES
    assert (data.word_column, data.tag_column, data.scheme) == (0, -1, "BIO")
    with pytest.raises(UserError, match=r"dev\.tsv:1: got a sentence of white space; expected a sentence with charact"):
        read(tmp_path, " \tO\n", "dev.tsv")


def test_lists_and_spans_in_tables(tmp_path):
    """The lists of Hugging Face's `klue`, and spans of characters, one of which begins at a space."""
    lists = {"tokens": ["샘", " ", "밀", "란"], "ner_tags": ["B-PS", "I-PS", "I-PS", "I-PS"]}
    spans = {"tokens": "샘 밀란", "ner_tags": [[0, 1, "PS"], [1, 3, "LC"]]}
    rows = "".join(json.dumps(row) + "\n" for row in (lists, spans))
    assert read(tmp_path, rows, "a.jsonl") == [
        (("샘 ", "밀", "란"), ("B-PS", "I-PS", "I-PS")),
        (("샘 ", "밀", "란"), ("B-PS", "I-LC", "O")),
    ]


def test_rows_encode_running_text():
    """The unknown word has one token. All its characters have the position of this token."""
    characters = ("샘", "커", "힣", "플 ", "밀", "란", "은 ", ".")
    (row,), is_truncated = character_rows(characters, TOKENIZER, 16)
    assert [VOCAB[id_] for id_ in row["input_ids"]] == ["[CLS]", "[UNK]", "밀", "##란은", ".", "[SEP]"]
    assert row["unit_starts"].tolist() == [1, 1, 1, 1, 2, 3, 3, 4]
    assert not is_truncated
    (row,), _ = character_rows(("\u200b",), TOKENIZER, 16)
    assert (row["input_ids"][1], row["unit_starts"].tolist()) == (TOKENIZER.unk_id, [1])


@given(st.lists(st.sampled_from(["샘", "밀", "란 ", "은", "커", "힣 ", "a", "b", "\u200b"]), min_size=1, max_size=40))
def test_each_character_has_its_token_in_any_window(characters):
    (full,), _ = character_rows(characters, TOKENIZER, 64)
    rows, _ = character_rows(characters, TOKENIZER, 7)
    tokens = [row["input_ids"][row["unit_starts"]].tolist() for row in rows]
    assert list(itertools.chain(*tokens)) == full["input_ids"][full["unit_starts"]].tolist()
    assert all(len(row["input_ids"]) <= 7 for row in rows)


def test_a_token_has_the_tag_of_its_first_character():
    """In the last word, the tag changes inside a token; in the first, B goes on as I."""
    examples = [codec().restored([["a", "b ", "밀", "란", "은"], ["B-PS", "I-PS", "B-LC", "I-LC", "O"], "a:1"])]
    fields, counts, names, _ = codec().training(examples)
    labels = ["", *names["labels"]]
    assert [labels[number] for number in fields["labels"].values] == ["", "B-PS", "B-LC", "I-LC", ""]
    assert fields["label_weights"].values.tolist() == [0, 1, 1, 1, 0]
    assert counts["tags_that_change_inside_a_token"] == 1


def test_inputs_to_predict_on():
    for value in (" 샘 밀", [" ", "샘", " ", "밀"]):
        sentence = codec().parse_object(value, "input 1")
        assert sentence.words == ("샘 ", "밀")
        assert codec().text(sentence) == (value if isinstance(value, str) else "샘 밀")
    with pytest.raises(UserError, match="input 1: got a sentence of white space"):
        codec().parse_object([" "], "input 1")


def test_words_keep_their_prepared_rows(tmp_path):
    (tmp_path / "a.conll").write_text("a\tO\n")
    (tmp_path / "a.jsonl").write_text("{}\n")
    for name in ("a.conll", "a.jsonl"):
        keys = [str(codec(tmp_path / name, fields).key()) for fields in (TableFields(), CHARACTERS)]
        assert ["'units'" in key for key in keys] == [False, True]
