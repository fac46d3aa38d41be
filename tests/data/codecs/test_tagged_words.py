import json

import numpy as np
import pytest

from bertjax.data.codecs.tagging import sentences
from bertjax.data.codecs.tagging.column_files import ColumnsConfig
from bertjax.data.codecs.tagging.tagged_rows import sentence_rows
from bertjax.data.codecs.tagging.tagged_words import SentencesConfig, TaggedCodec, Tags, read_sentences
from bertjax.data.readers.lines import BadRows
from bertjax.data.rows.stored import Ragged
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from tests.data.files import write

ENTITIES = ColumnsConfig(word_column=0, tag_column=-1)
PARTS_OF_SPEECH = ColumnsConfig(word_column=1, tag_column=3)
VOCAB = [*SPECIALS, "a", "##a", "b", "##b", "c", ","]
TOKENIZER = WordPiece(VOCAB, lowercase=True)


def read(text, columns=ENTITIES, name="text.conll"):
    sentences = list(read_sentences(str(write(name, text)), "data.source", columns, BadRows("stop")))
    lines = [int(sentence.where.removeprefix(f"{name}:")) for sentence in sentences]
    return [list(zip(sentence.words, sentence.tags, strict=True)) for sentence in sentences], lines


@pytest.mark.parametrize("name", ["text.conll", "text.txt.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_columns_separated_by_spaces(name, end):
    text = "-DOCSTART- -X- O\n\n\nU.N. NNP  B-ORG\n# X O\n  \n-DOCSTART- -X- O\nx\xa0y\u3000 Z  B-PER"
    sentences, lines = read(text.replace("\n", end), name=name)
    assert sentences == [[("U.N.", "B-ORG"), ("#", "O")], [("x\xa0y\u3000", "B-PER")]]
    assert lines == [4, 8]


def test_columns_separated_by_tabs():
    sentences, lines = read("\ufeffNew York\tB-LOC\n#\t O\n\t\n\nx y\tO\n-DOCSTART-\tO\nz\tO\n\n")
    assert sentences == [[("New York", "B-LOC"), ("#", "O")], [("x y", "O")], [("z", "O")]]
    assert lines == [1, 5, 7]


CONLLU = """# newdoc id = 1
# text = Don't # go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\t_\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\t_\t_\t1\tdep\t_\t_
# a comment
2.1\tx\tx\tX\t_\t_\t_\t_\t_\t_
3\t#\t#\tSYM\t_\t_\t1\tdep\t_\t_

# text = go
1\tgo\tgo\tVERB\t_\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz", "a.txt"])
def test_conllu(name):
    sentences, lines = read(CONLLU, PARTS_OF_SPEECH, name)
    assert sentences == [[("Do", "AUX"), ("n't", "PART"), ("#", "SYM")], [("go", "VERB")]]
    assert lines == [4, 11]


def test_conllu_is_detected_by_the_file_name():
    text = "# text = a\tb\n1-2\tab\t_\t_\n1\ta\t_\tX\n"
    assert read(text, PARTS_OF_SPEECH, "a.conllu") == ([[("a", "X")]], [3])
    assert read(text.partition("\n")[2], PARTS_OF_SPEECH, "a.txt") == ([[("ab", "_"), ("a", "X")]], [1])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CONLLU, "a.txt"),
        (CONLLU.rpartition("\n\n")[2], "a.conllu"),
        ("1\tEU\tB-ORG\n2\tcalls\tO\n\n1\tgo\tO\n", "a.conll"),
        ("1 EU B-ORG\n2 calls O\n", "a.conll"),
    ],
)
def test_ids_are_not_read_as_words(text, name):
    with pytest.raises(UserError, match=r"got the ids 1, 2, ... of the words, in column 0.*tagging.py:conllu") as error:
        read(text, ENTITIES, name)
    assert str(error.value).startswith(name)


def test_numbers_are_words_unless_they_count_the_words():
    text = "1 O\n\n1 O\n3 O\n\n1 O\n2 O\n"
    assert [len(sentence) for sentence in read(text)[0]] == [1, 2, 2]


def test_several_files_in_order_and_a_sentence_ends_with_its_file():
    write("b.conll", "b O")
    write("a.conll", "a\tO")
    sentences = read_sentences("b.conll,a*.conll", "data.source", ENTITIES, BadRows("stop"))
    assert [sentence.words for sentence in sentences] == [("b",), ("a",)]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a O\nb\n", ENTITIES, ":2: got a row of 1 column, 'b'; expected columns separated by blanks"),
        ("a O\n", PARTS_OF_SPEECH, ":1: got a row of 2 columns, 'a | O'; expected columns separated by blanks (the f"),
        (
            "a O\n",
            ColumnsConfig(0, -3),
            "word_column 0 and tag_column -3. Fix: correct the row, set config.data.word_column",
        ),
        ("a\tO\nb O\n", ENTITIES, ":2: got a row of 1 column, 'b O'; expected columns separated by a tab"),
        ("a\tO\n\tO\n", ENTITIES, ":2: got an empty word in ' | O'; expected a word and a tag, word_column 0"),
        ("a\tO\nb\t\n", ENTITIES, ":2: got an empty tag in 'b | '; expected a word and a tag"),
        ("\n-DOCSTART- O\n\n", ENTITIES, "text.conll: got no sentences; expected a word"),
    ],
)
def test_bad_files_are_errors(text, columns, message):
    with pytest.raises(UserError) as error:
        read(text, columns)
    assert str(error.value).startswith("text.conll")
    assert message in str(error.value)


def test_sentences_with_bad_rows_can_be_skipped():
    path = write("text.conll", b"a O\n\nb\xff O\nb O\n\nc\nc O\n-DOCSTART-\nd O")
    bad_rows = BadRows("skip")
    found = list(read_sentences(str(path), "data.source", ENTITIES, bad_rows))
    assert [sentence.words for sentence in found] == [("a",), ("d",)]
    assert bad_rows.count == 2
    with pytest.raises(UserError, match=r"got no sentences, 1 sentences with bad rows skipped;"):
        list(read_sentences(str(write("text.conll", "a")), "data.source", ENTITIES, BadRows("skip")))


def test_a_file_without_blank_lines_is_an_error(monkeypatch):
    monkeypatch.setattr(sentences, "MAX_WORDS", 3)
    assert read("\n" + "a O\n" * 3)[1] == [2]
    with pytest.raises(UserError, match=r":2: got a sentence of more than 3 words; .* Fix: separate the sentences"):
        read("\n" + "a O\n" * 4)


def test_rows_of_a_short_sentence():
    (row,), _ = sentence_rows(["Ab,", "\u200b", "zz", "c"], TOKENIZER, 20)
    ids = [VOCAB[id_] for id_ in row["input_ids"]]
    assert ids == ["[CLS]", "a", "##b", ",", "[UNK]", "[UNK]", "c", "[SEP]"]
    assert row["unit_starts"].tolist() == [1, 4, 5, 6]
    assert row["token_type_ids"].tolist() == [0] * 8
    assert {array.dtype for array in row.values()} == {np.dtype(np.int32)}


def test_rows_of_a_long_sentence_with_a_word_longer_than_a_row():
    words = ["a", "ba", "c", "ab" * 9, "c", "a"]
    found, is_cut = sentence_rows(words, TOKENIZER, 7)
    assert is_cut
    texts = ["".join(VOCAB[id_] for id_ in row["input_ids"]) for row in found]
    assert texts == ["[CLS]ab##ac[SEP]", "[CLS]a##b##a##b##a[SEP]", "[CLS]ca[SEP]"]
    assert [row["unit_starts"].tolist() for row in found] == [[1, 2, 4], [1], [1, 2]]


@pytest.mark.parametrize(("source", "valid_source", "scheme"), [("a", "b", "IO"), ("a", "", "BIO"), ("", "b", "BIO")])
def test_validation_sentences_of_their_own_source_do_not_determine_the_scheme(source, valid_source, scheme):
    config = SentencesConfig(source=source, valid_source=valid_source, valid_fraction=0.1, on_bad_row="stop")
    survey = TaggedCodec(config, ENTITIES, TOKENIZER, 16).survey()
    survey.add("train", [sentences.Sentence(("a",), ("I-X",), "a:1")] if source else [])
    survey.add("valid", [sentences.Sentence(("a",), ("B-X",), "b:1")])
    assert survey.facts()["scheme"] == scheme


@pytest.mark.parametrize(
    ("tags", "scheme", "orders"),
    [
        ("I-Y O I-X I-X", "auto", {"labels": ["O", "B-X", "I-X", "B-Y", "I-Y"], "as_written": ["I-X", "I-Y", "O"]}),
        ("I-Y O I-X I-X", "plain", {"labels": ["O", "B-X", "I-X", "B-Y", "I-Y"], "as_written": ["I-X", "I-Y", "O"]}),
        ("NOUN VERB ADJ NOUN", "auto", {"labels": ["ADJ", "NOUN", "VERB"]}),
    ],
)
def test_rows_of_version_1_have_indices_in_the_sorted_tags(tags, scheme, orders):
    config = SentencesConfig(source="a", valid_source="b", valid_fraction=0.1, on_bad_row="stop")
    codec = TaggedCodec(config, ENTITIES, TOKENIZER, 16)
    example = sentences.Sentence(("ba", "c", "ab", "a"), tuple(tags.split()), "a:1")
    assert codec.restored(json.loads(json.dumps(example))) == example
    survey = codec.survey()
    survey.add("train", [example])
    learned = Tags(survey.facts(), scheme)
    labels = learned.labels(())[::-1]
    fields, _, names, _ = codec.training([example])
    expected = learned.learned(fields, names, labels)
    places = [1, 3, 4, 6]
    written = tags.split() if scheme == "plain" or "as_written" not in orders else ["B-Y", "O", "B-X", "I-X"]
    assert [labels[number] for number in expected["labels"].values[places]] == written
    earlier = {name: field for name, field in fields.items() if name not in names}
    for name, order in orders.items():
        numbers = np.zeros(8, np.int32)
        numbers[places] = [order.index(["", *names[name]][number]) for number in fields[name].values[places]]
        earlier[name] = Ragged(numbers, fields[name].lengths)
    of_earlier = learned.learned(earlier, {}, labels)
    assert of_earlier.keys() == expected.keys() == {"input_ids", "token_type_ids", "labels", "label_weights"}
    np.testing.assert_array_equal(of_earlier["labels"].values, expected["labels"].values)
