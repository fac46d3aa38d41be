import gzip
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.config import build
from bertjax.data.fine_tuning import tagged_words
from bertjax.data.fine_tuning.tagged_words import (
    Columns,
    SentencesConfig,
    TaggedRows,
    read_sentences,
    sentence_rows,
)
from bertjax.data.readers.lines import BadRows
from bertjax.data.text.tokenizers import SPECIALS, WordPiece
from bertjax.errors import UserError

ENTITIES = Columns(word_column=0, tag_column=-1)
PARTS_OF_SPEECH = Columns(word_column=1, tag_column=3)
VOCAB = [*SPECIALS, "a", "##a", "b", "##b", "c", ","]
TOKENIZER = WordPiece(VOCAB, lowercase=True)


def write(tmp_path, text, name="text.conll"):
    path = tmp_path / name
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(tmp_path, text, columns=ENTITIES, name="text.conll"):
    sentences = list(read_sentences(str(write(tmp_path, text, name)), "data.source", columns, BadRows("stop")))
    lines = [int(sentence.where.removeprefix(f"{tmp_path / name}:")) for sentence in sentences]
    return [list(zip(sentence.words, sentence.tags, strict=True)) for sentence in sentences], lines


@pytest.mark.parametrize("name", ["text.conll", "text.txt.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_columns_separated_by_spaces(tmp_path, name, end):
    text = "-DOCSTART- -X- O\n\n\nU.N. NNP  B-ORG\n# X O\n  \n-DOCSTART- -X- O\nx\xa0y\u3000 Z  B-PER"
    sentences, lines = read(tmp_path, text.replace("\n", end), name=name)
    assert sentences == [[("U.N.", "B-ORG"), ("#", "O")], [("x\xa0y\u3000", "B-PER")]]
    assert lines == [4, 8]


def test_columns_separated_by_tabs(tmp_path):
    sentences, lines = read(tmp_path, "\ufeffNew York\tB-LOC\n#\t O\n\t\n\nx y\tO\n-DOCSTART-\tO\nz\tO\n\n")
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
def test_conllu(tmp_path, name):
    sentences, lines = read(tmp_path, CONLLU, PARTS_OF_SPEECH, name)
    assert sentences == [[("Do", "AUX"), ("n't", "PART"), ("#", "SYM")], [("go", "VERB")]]
    assert lines == [4, 11]


def test_conllu_is_detected_by_the_file_name(tmp_path):
    text = "# text = a\tb\n1-2\tab\t_\t_\n1\ta\t_\tX\n"
    assert read(tmp_path, text, PARTS_OF_SPEECH, "a.conllu") == ([[("a", "X")]], [3])
    assert read(tmp_path, text.partition("\n")[2], PARTS_OF_SPEECH, "a.txt") == ([[("ab", "_"), ("a", "X")]], [1])


def test_comments_do_not_determine_the_separator(tmp_path):
    assert read(tmp_path, "# a\tb\n" + CONLLU, PARTS_OF_SPEECH, "a.txt")[1] == [5, 12]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CONLLU, "a.txt"),
        (CONLLU.rpartition("\n\n")[2], "a.conllu"),
        ("1\tEU\tB-ORG\n2\tcalls\tO\n\n1\tgo\tO\n", "a.conll"),
        ("1 EU B-ORG\n2 calls O\n", "a.conll"),
    ],
)
def test_ids_are_not_read_as_words(tmp_path, text, name):
    with pytest.raises(UserError, match=r"got the ids 1, 2, ... of the words, in column 0.*tagging.py:conllu") as error:
        read(tmp_path, text, ENTITIES, name)
    assert str(error.value).startswith(str(tmp_path / name))


def test_numbers_are_words_unless_they_count_the_words(tmp_path):
    text = "1 O\n\n1 O\n3 O\n\n1 O\n2 O\n"
    assert [len(sentence) for sentence in read(tmp_path, text)[0]] == [1, 2, 2]


def test_several_files_in_order_and_a_sentence_ends_with_its_file(tmp_path):
    write(tmp_path, "b O", "b.conll")
    write(tmp_path, "a\tO", "a.conll")
    source = f"{tmp_path}/b.conll,{tmp_path}/a*.conll"
    sentences = read_sentences(source, "data.source", ENTITIES, BadRows("stop"))
    assert [sentence.words for sentence in sentences] == [("b",), ("a",)]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a O\nb\n", ENTITIES, ":2: got a row of 1 column, 'b'; expected columns separated by blanks"),
        ("a O\n", PARTS_OF_SPEECH, ":1: got a row of 2 columns, 'a | O'; expected columns separated by blanks (the f"),
        ("a O\n", Columns(2, 0), "no tab), including word_column 2 and tag_column 0. Fix: correct the row, set"),
        ("a O\n", Columns(0, -3), "word_column 0 and tag_column -3. Fix: correct the row, set config.data.word_column"),
        ("a O\n", Columns(1, -1), ":1: got a row of 2 columns"),
        ("a\tO\nb O\n", ENTITIES, ":2: got a row of 1 column, 'b O'; expected columns separated by a tab"),
        ("a\tO\n\tO\n", ENTITIES, ":2: got an empty word in ' | O'; expected a word and a tag, word_column 0"),
        ("a\tO\nb\t\n", ENTITIES, ":2: got an empty tag in 'b | '; expected a word and a tag"),
        (b"a O\n\nb\xff O\n", ENTITIES, ":3: got byte 0xff"),
        (f"a O\n{'b' * 2**20} O\n", ENTITIES, ":2: got a line that is too long"),
        (f"a O\n{' ' * 2**20} b O\n", ENTITIES, ":2: got a line that is too long"),
        ("\n-DOCSTART- O\n\n", ENTITIES, "text.conll: got no sentences; expected a word"),
        ("", ENTITIES, "Fix: remove the file from data.source, or restore it"),
    ],
)
def test_bad_files_are_errors(tmp_path, text, columns, message):
    with pytest.raises(UserError) as error:
        read(tmp_path, text, columns)
    assert str(error.value).startswith(str(tmp_path / "text.conll"))
    assert message in str(error.value)


def test_sentences_with_bad_rows_can_be_skipped(tmp_path):
    path = write(tmp_path, b"a O\n\nb\xff O\nb O\n\nc\nc O\n-DOCSTART-\nd O")
    bad_rows = BadRows("skip")
    found = list(read_sentences(str(path), "data.source", ENTITIES, bad_rows))
    assert [sentence.words for sentence in found] == [("a",), ("d",)]
    assert bad_rows.count == 2
    with pytest.raises(UserError, match=r"got no sentences, 1 sentences with bad rows skipped;"):
        list(read_sentences(str(write(tmp_path, "a")), "data.source", ENTITIES, BadRows("skip")))


def test_a_file_without_blank_lines_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tagged_words, "MAX_WORDS", 3)
    assert read(tmp_path, "\n" + "a O\n" * 3)[1] == [2]
    with pytest.raises(UserError, match=r":2: got a sentence of more than 3 words; .* Fix: separate the sentences"):
        read(tmp_path, "\n" + "a O\n" * 4)


def test_rows_of_a_short_sentence():
    (row,) = sentence_rows(["Ab,", "\u200b", "zz", "c"], TOKENIZER, 20)
    ids = [VOCAB[id_] for id_ in row["input_ids"]]
    assert ids == ["[CLS]", "a", "##b", ",", "[UNK]", "[UNK]", "c", "[SEP]"]
    assert row["unit_starts"].tolist() == [1, 4, 5, 6]
    assert row["token_type_ids"].tolist() == [0] * 8
    assert {array.dtype for array in row.values()} == {np.dtype(np.int32)}


def test_rows_of_a_long_sentence_with_a_word_longer_than_a_row():
    words = ["a", "ba", "c", "ab" * 9, "c", "a"]
    found = sentence_rows(words, TOKENIZER, 7)
    texts = ["".join(VOCAB[id_] for id_ in row["input_ids"]) for row in found]
    assert texts == ["[CLS]ab##ac[SEP]", "[CLS]a##b##a##b##a[SEP]", "[CLS]ca[SEP]"]
    assert [row["unit_starts"].tolist() for row in found] == [[1, 2, 4], [1], [1, 2]]


@given(st.lists(st.text("abc,\u200b", min_size=1, max_size=9), min_size=1, max_size=40), st.integers(3, 20))
def test_each_word_is_found_at_its_position(words, seq_len):
    first = [(*ids, TOKENIZER.unk_id)[0] for ids in TOKENIZER.encode_batch(words)]
    found = sentence_rows(words, TOKENIZER, seq_len)
    owned = [id_ for row in found for id_ in row["input_ids"][row["unit_starts"]]]
    assert owned == first
    assert all(len(row["input_ids"]) <= seq_len for row in found)


def test_a_seq_len_without_room_is_an_error():
    with pytest.raises(UserError, match=r"config key data.seq_len: got 2; expected at least 3: .* Fix: use 128"):
        sentence_rows(["a"], TOKENIZER, 2)


@pytest.mark.parametrize(
    ("name", "columns", "sentences", "words", "tags"),
    [
        ("wikigold/train.conll", ENTITIES, 1317, 30439, 5),
        ("wikigold/test.conll", ENTITIES, 155, 3690, 5),
        ("wnut17/dev.conll", ENTITIES, 1009, 15733, 13),
        ("ud_english_ewt/dev.conllu.gz", PARTS_OF_SPEECH, 2001, 25147, 17),
    ],
)
def test_published_data(name, columns, sentences, words, tags):
    if "BERTJAX_DATA" not in os.environ:
        pytest.skip("BERTJAX_DATA, the folder of real data sets, is unset")
    data = Path(os.environ["BERTJAX_DATA"])
    tokenizer = WordPiece.from_file(data / "vocab" / "bert-base-cased-vocab.txt", lowercase=False)
    found = list(read_sentences(str(data / name), "data.source", columns, BadRows("stop")))
    counts = Counter(tag for sentence in found for tag in sentence.tags)
    assert (len(found), counts.total(), len(counts)) == (sentences, words, tags)
    for sentence in found[:200]:
        windows = sentence_rows(sentence.words, tokenizer, 16)
        assert sum(len(row["unit_starts"]) for row in windows) == len(sentence.words)


def splits(source, valid_source="", valid_fraction=0.2, on_bad_row="stop"):
    values = {"source": str(source), "valid_source": str(valid_source)}
    values |= {"valid_fraction": valid_fraction, "on_bad_row": on_bad_row}
    rows = list(TaggedRows(build(SentencesConfig, values, "data"), ENTITIES, TOKENIZER, 20).read())
    return tuple([sentence.words[0] for of, sentence in rows if of == split] for split in ("train", "valid"))


def test_the_validation_split_depends_on_sentence_numbers(tmp_path):
    source = write(tmp_path, "\n\n".join(f"{number} O" for number in range(500)))
    train, valid = splits(source)
    assert sorted([*train, *valid], key=int) == [str(number) for number in range(500)]
    assert [train, valid] == [sorted(train, key=int), sorted(valid, key=int)]
    assert 60 < len(valid) < 140
    first = write(tmp_path, "\n\n".join(f"{number} O" for number in range(100)), "first.conll")
    assert splits(first)[1] == [number for number in valid if int(number) < 100]
    assert splits(source, valid_source=first) == ([str(n) for n in range(500)], [str(n) for n in range(100)])


def test_wrong_splits_are_errors(tmp_path):
    source = write(tmp_path, "a O\n\nb\n\nc O\n\nd O")
    with pytest.raises(UserError, match=r"data\.on_bad_row: got 'ignore'"):
        splits(source, on_bad_row="ignore")
    with pytest.raises(UserError, match=r"data\.valid_fraction: got 0\.0; expected a fraction above 0"):
        splits(source, valid_fraction=0.0)
    with pytest.raises(UserError, match=r"text\.conll:3: got a row of 1 column.*on_bad_row=skip"):
        splits(source)
    with pytest.raises(UserError, match=r"got 0 of 3 rows of .*text\.conll in the validation split; expected at"):
        splits(source, valid_fraction=1e-6, on_bad_row="skip")
