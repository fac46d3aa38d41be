import json
import logging
import unicodedata

import pyarrow
import pytest
from pyarrow import parquet

from bertjax.data.codecs.tagging import sentences, tagged_words
from bertjax.data.codecs.tagging.column_files import ColumnsConfig
from bertjax.data.codecs.tagging.tagged_tables import TableFields
from bertjax.data.readers.lines import BadRows
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError

TEXT = "Jane\r\nsaw the cafe\u0301, 😀Bob's!"
SPANS = [[22, 25, "PER"], [0, 4, "PER"], [10, 19, "LOC"]]
OBJECTS = [{"id": 7, "start_offset": start, "end_offset": end, "label": kind} for start, end, kind in SPANS]
OF_SPANS = "Jane/B-PER saw/O the/B-LOC cafe\u0301/I-LOC ,/O 😀/O Bob/B-PER '/O s/O !/O"
KAGGLE = 'Sentence #,Word,POS,Tag\nSentence: 1,EU,NNP,B-org\n,"""",``,O\nSentence: 2,Go,VB,O\nSentence: 3,"1,5",CD,O\n'
EVERY_ROW = "tag,sentence_idx,word\nO,0,a\nB-x,0,b\n\nO,7,c\n"
TOKENS = [
    {"tokens": ["EU", "go"], "pos_tags": [1, 2], "ner_tags": [1, 0]},
    {"tokens": ["a b"], "pos_tags": [0], "ner_tags": [2]},
]
NAMES = {"feature": {"names": ["O", "B-ORG", "I-ORG"], "_type": "ClassLabel"}, "_type": "Sequence"}
LISTS = {"tokens": ["a", "b"], "tags": ["O", "O"]}


NUMBERED = {"tags_field": "0", "sentence_field": "1", "text_field": "2"}
FORM = {"text_field": "form", "tags_field": "upos"}


def read(path, on_bad_row="stop", **fields):
    options = ColumnsConfig(0, -1), BadRows(on_bad_row), TableFields(**fields)
    found = tagged_words.read_sentences(str(path), "data.source", *options)
    return [" ".join(f"{word}/{tag}" for word, tag in zip(*sentence[:2], strict=True)) for sentence in found]


def write(folder, content, name="rows.jsonl"):
    path = folder / name
    if not isinstance(content, str | bytes):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_digest_depends_on_the_columns_of_tables_if_there_is_one(tmp_path):
    def keys(path):
        config = tagged_words.SentencesConfig(source=str(path), valid_source="", valid_fraction=0.1, on_bad_row="stop")
        tokenizer = WordPiece(SPECIALS, lowercase=True)
        fields = TableFields(), TableFields(split_punctuation=False)
        return [tagged_words.TaggedCodec(config, ColumnsConfig(0, -1), tokenizer, 16, each).key() for each in fields]

    one, other = keys(write(tmp_path, [LISTS]))
    assert one != other
    one, other = keys(write(tmp_path, "a O\n", "a.conll"))
    assert one == other


def test_rows_may_name_their_columns_differently(tmp_path):
    other = {"text": "c", "labels": [[0, 1, "X"]]}
    assert read(write(tmp_path, [other, LISTS, {**LISTS, "words": []}]), "skip") == ["c/B-X", "a/O b/O"]


@pytest.mark.parametrize(
    ("row", "fields", "expected"),
    [
        (LISTS, {}, "a/O b/O"),
        ({"form": ["New York", "."], "upos": ["X", "Y"]}, FORM, "New York/X ./Y"),
        ({"id": 3, "text": TEXT, "label": SPANS, "Comments": []}, {}, OF_SPANS),
        ({"text": TEXT, "entities": OBJECTS, "relations": []}, {}, OF_SPANS),
        ({"text": "a bcd.", "labels": [[0, 3, "X"], [3, 5, "X"]]}, {}, "a/B-X b/I-X cd/B-X ./O"),
        ({"text": "a b.", "label": []}, {"split_punctuation": False}, "a/O b./O"),
    ],
)
def test_lists_and_spans(tmp_path, row, fields, expected, caplog):
    with caplog.at_level(logging.INFO, "bertjax"):
        assert read(write(tmp_path, [row]), **fields) == [expected]
    assert caplog.messages == [f"{tmp_path}/rows.jsonl: words divided where a span begins or ends: 1"] * (
        "/B-PER" in expected or "bcd" in row.get("text", "")
    )


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        (KAGGLE, {}, ['EU/B-org "/O', "Go/O", "1,5/O"]),
        (EVERY_ROW, {}, ["a/O b/B-x", "c/O"]),
        (EVERY_ROW.partition("\n")[2], {"header": False, **NUMBERED}, ["a/O b/B-x", "c/O"]),
    ],
)
def test_a_word_in_each_row(tmp_path, text, fields, expected, monkeypatch):
    path = write(tmp_path, text, "ner.csv")
    assert read(path, **fields) == expected
    monkeypatch.setattr(sentences, "MAX_WORDS", 1)
    with pytest.raises(UserError, match=r"ner.csv:[12]: got a sentence of more than 1 words; .*correct config.data.s"):
        read(path, **fields)


def test_numbers_are_tags_if_the_file_names_them(tmp_path):
    metadata = {"huggingface": json.dumps({"info": {"features": {"ner_tags": NAMES}}})}
    table = pyarrow.Table.from_pylist(TOKENS).replace_schema_metadata(metadata)
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    for source in (tmp_path / "rows.parquet", f"hf:{tmp_path}"):
        assert read(source) == ["EU/B-ORG go/O", "a b/I-ORG"]
    message = r"row 1, column 'pos_tags': got the number 1 as a tag; .*\(ClassLabel\). Fix: "
    with pytest.raises(UserError, match=message):
        read(tmp_path / "rows.parquet", tags_field="pos_tags")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a"], "tags": ["O", "O"]}, "got 1 words and 2 tags; expected a tag for each word. Fix: correct"),
        ({"tokens": [], "tags": []}, ", column 'tokens': got an empty list; expected a list of words"),
        ({"tokens": ["a", " "], "tags": ["O", "O"]}, ", column 'tokens': got an empty word; expected text"),
        ({"tokens": ["a", None], "tags": ["O", "O"]}, ", column 'tokens': got NoneType as a word"),
        ({"tokens": ["a"], "tags": ["\ud800"]}, ", column 'tags': got half of a surrogate pair"),
        ({"tokens": "a b", "tags": "O O"}, "got str, column 'tokens', and str, column 'tags'; .*data.sentence_field"),
        ({"tokens": ["a"], "tags": "O"}, "got list, column 'tokens', and str, column 'tags'; .*data.text_field"),
        ({"tokens": "a b", "tags": [[0, 1, "X"], [0, 2, "Y"]]}, "overlapping spans: [0, 1, 'X'] and [0, 2, 'Y']"),
        ({"tokens": "a b", "tags": [[0, 4, "X"]]}, "got the span [0, 4, 'X']; expected 0 <= start < end <= 3, the"),
        ({"tokens": "a b", "tags": [[0, 1.0, "X"]]}, "the span [0, 1.0, 'X']; expected .* offsets are integers"),
        ({"tokens": "a b", "tags": [[1, 2, "X"]]}, "got a span of white space, 1 to 2; expected spans with words"),
        ({"tokens": "a b", "tags": [{"start": 0, "end": 1, "label": ""}]}, "column 'tags': got an empty type"),
        ({"tokens": " ", "tags": []}, "got an empty text; expected a text. Fix: add"),
    ],
)
def test_bad_rows(tmp_path, row, message):
    path = write(tmp_path, [LISTS, row, LISTS])
    with pytest.raises(UserError) as error:
        read(path)
    place, _, rest = message.partition(".*")
    assert str(error.value).startswith(f"{path}:2") and place in str(error.value) and rest in str(error.value)
    assert read(path, "skip") == ["a/O b/O"] * 2


@pytest.mark.parametrize(
    ("row", "fields", "message"),
    [
        ({"text": "a", "tokens": ["a"], "tags": ["O"]}, {}, "'tokens', 'tags'; expected config.data.text_field, or ex"),
        ({"tokens": ["a"], "upos": ["X"]}, {}, "'tokens', 'upos'; expected config.data.tags_field, or exactly one"),
        ({"tokens": "a", "tags": "O"}, {"sentence_field": "n"}, "without column 'n'.*of config.data.sentence_field"),
    ],
)
def test_columns_that_are_not_clear(tmp_path, row, fields, message):
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, [row]), **fields)


def test_tags_are_equal_in_all_normalization_forms(tmp_path):
    decomposed = unicodedata.normalize("NFD", "B-사람")
    assert read(write(tmp_path, [{"tokens": ["a"], "tags": [decomposed]}])) == ["a/B-사람"]
    assert read(write(tmp_path, f"a {decomposed}\n", "a.conll")) == ["a/B-사람"]


def test_sentences_of_bad_words_are_skipped(tmp_path):
    """A row that cannot be read may be the first of a sentence, so the sentences on both sides of it are skipped."""
    text = KAGGLE.replace(",``", "").replace("Go", "caf\xe9") + "Sentence: 4,x,X,O\n"
    path = write(tmp_path, text.encode("latin-1"), "ner.csv")
    assert read(path, "skip") == ["x/O"]
    with pytest.raises(UserError, match=r"ner.csv:3: got 3 fields; expected 4"):
        read(path)
    path = write(tmp_path, KAGGLE.replace("Go", "caf\xe9").encode("latin-1"), "ner.csv")
    with pytest.raises(UserError, match=r"ner.csv:4: got byte 0xe9 .*Fix: convert .* with iconv, or"):
        read(path)
