import dataclasses
import logging
import unicodedata
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bertjax.configs import classification, glue
from bertjax.data import splits
from bertjax.data.codecs.labeled_text import (
    LabeledText,
    LabeledTextCodec,
    LabeledTextConfig,
    check_decimals,
    check_hidden,
    check_labels,
    label_names,
    with_default_name,
)
from bertjax.data.readers.lines import BadRows
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.errors import UserError
from tests.data.files import write
from tests.experiments.commands import settings_of


def config(**changes: object) -> LabeledTextConfig:
    values = {"source": "a.tsv", "text_columns": ("text",), **changes}
    return settings_of(LabeledTextConfig, "classification", **values)


def read(numeric: bool = False, **changes: object) -> list[LabeledText]:
    codec = codec_of(numeric, **changes)
    return list(codec.config.read(codec.config.source, "data.source", codec.labeled))


def read_splits(codec: LabeledTextCodec, seed: int) -> tuple[list[LabeledText], list[LabeledText]]:
    rows = list(splits.read_splits(codec.config, lambda *source: codec.config.read(*source, codec.labeled), seed))
    train, valid = ([row for split, row in rows if split == name] for name in ("train", "valid"))
    return train, valid


def codec_of(numeric: bool = False, seq_len: int = 8, **changes: object) -> LabeledTextCodec:
    return LabeledTextCodec(config(**changes), WordPiece([*SPECIALS, "a", "b", "c"], lowercase=True), seq_len, numeric)


def facts_of(*labels: str, split: str = "train") -> dict[str, Any]:
    survey = codec_of().survey()
    survey.add(split, [LabeledText("text", None, label, f"a.tsv:{number}") for number, label in enumerate(labels, 1)])
    return survey.facts()


def test_single_texts():
    write("a.tsv", 'text\tlabel\nan  inner space \t 1\n"\t0\n')
    assert read() == [LabeledText("an  inner space ", None, "1", "a.tsv:2"), LabeledText('"', None, "0", "a.tsv:3")]


def test_pairs_in_the_order_of_the_config():
    write("a.csv", "yes,b,a\nno,d,c\n")
    rows = read(source="a.csv", header=False, text_columns=("2", "1"), label_column="0")
    assert rows == [LabeledText("a", "b", "yes", "a.csv:1"), LabeledText("c", "d", "no", "a.csv:2")]


def test_pairs_are_duplicates_if_both_texts_are_equal():
    codec, first = codec_of(), LabeledText("a", "b", "yes", "a.csv:1")
    others = [first._replace(label="no", where="a.csv:2"), first._replace(second="c"), first._replace(second=None)]
    assert [codec.text(other) == codec.text(first) for other in others] == [True, False, False]


def test_numbers():
    write("a.tsv", "text\tlabel\nx\t5.000\ny\t-1e-3\nz\t 2 \n")
    assert [row.label for row in read(numeric=True)] == [5.0, -0.001, 2.0]
    write("a.jsonl", '{"text": "x", "label": 3}\n{"text": "x", "label": "2.5"}\n')
    assert [row.label for row in read(numeric=True, source="a.jsonl")] == [3.0, 2.5]


def test_labels_of_json_lines_keep_their_spelling():
    write("a.jsonl", "".join(f'{{"text": "x", "label": {label}}}\n' for label in ("1", '"1"', "true", '" yes "')))
    assert [row.label for row in read(source="a.jsonl")] == ["1", "1", "true", "yes"]


@pytest.mark.parametrize("name", ["München", "한국어"])
def test_labels_are_equal_in_all_normalization_forms(name):
    decomposed = unicodedata.normalize("NFD", name)
    write("a.tsv", f"text\tlabel\nx\t{name}\ny\t{decomposed}\n")
    assert [row.label for row in read()] == [name, name]
    check_labels(facts_of(name), ("other", decomposed))
    assert with_default_name(name, ("other", decomposed)) == decomposed


def test_rows_without_labels_can_be_read_but_not_trained_on():
    write("a.tsv", "text\nx\n")
    assert read(label_column="") == [LabeledText("x", None, None, "a.tsv:2")]
    with pytest.raises(UserError, match=r"data\.label_column: got ''; expected a column, because training needs"):
        codec_of(label_column="").splits()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": " ", "label": 1}', "an empty text in column 'text'; expected text. Fix: add the text"),
        ('{"text": 3, "label": 1}', "int in column 'text'; expected text"),
        ('{"text": "x", "label": ""}', "an empty label in column 'label'"),
        ('{"text": "x", "label": null}', "no label in column 'label'; expected the name or number of a class"),
        ('{"text": "x", "label": 1.0}', "1.0 in column 'label'; expected .*Fix: write 1 instead.*objective=regression"),
        (
            '{"label": 1, "body": "x"}',
            r"a row without column 'text'; its columns: 'label', 'body'; expected the "
            r"column of config\.data\.text_columns\. Fix: correct the row or --config\.data\.text_columns",
        ),
        ('{"text": "x"}', r"without column 'label'; .*--config\.data\.label_column"),
    ],
)
def test_bad_rows_are_errors_or_skipped(row, message, caplog):
    write("a.jsonl", f'{{"text": "x", "label": 1}}\n{row}\n')
    with pytest.raises(UserError, match=rf"a\.jsonl:2: got .*{message}.*on_bad_row=skip"):
        read(source="a.jsonl")
    with caplog.at_level(logging.INFO, "bertjax"):
        assert len(read(source="a.jsonl", on_bad_row="skip")) == 1
    assert caplog.messages == ["read a.jsonl: 1 rows, 1 bad rows skipped"]


@pytest.mark.parametrize("value", ['"nan"', '"good"', '""', "null", "true"])
def test_labels_that_are_not_finite_numbers_are_errors(value):
    write("a.jsonl", f'{{"text": "x", "label": 1}}\n{{"text": "x", "label": {value}}}\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: got .* in column 'label'; expected a finite number"):
        read(numeric=True, source="a.jsonl")
    assert len(read(numeric=True, source="a.jsonl", on_bad_row="skip")) == 1


@pytest.mark.parametrize(
    ("content", "skipped"), [("", ""), ("text\tlabel\n", ""), ("text\tlabel\nx\n\t1\n", ", 2 bad rows skipped")]
)
def test_sources_without_rows_are_errors(content, skipped):
    write("a.tsv", content)
    with pytest.raises(UserError, match=rf"data\.source=a\.tsv: got no rows{skipped}; expected"):
        read(on_bad_row="skip")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("text_columns", (), r"data\.text_columns: got \(\); expected one column as in"),
        ("text_columns", ("label",), r"got \('label',\) and 'label'; expected different columns"),
    ],
)
def test_wrong_configs_are_errors(key, value, message):
    with pytest.raises(UserError, match=message):
        config(**{key: value})


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["10", "9", "0", "1", "9"], ("0", "1", "9", "10")),
        (["-1", "0.5", "0"], ("-1", "0", "0.5")),
        (["10", "9", "b", "B"], ("10", "9", "B", "b")),
        (["nan", "2", "10"], ("10", "2", "nan")),
        (["01", "1"], ("01", "1")),
    ],
)
def test_classes_are_sorted(labels, names):
    assert label_names(facts_of(*labels), ()) == label_names(facts_of(*reversed(labels)), ()) == names


def test_classes_keep_the_order_of_their_source():
    known = ("not_equivalent", "unknown", "equivalent")
    assert label_names(facts_of("equivalent", "not_equivalent"), known) == ("not_equivalent", "equivalent")
    assert label_names(facts_of("equivalent", "another"), known) == ("another", "equivalent")


def test_a_single_class_is_an_error():
    with pytest.raises(
        UserError,
        match=r"from a\.tsv:1 on: got the label 'yes' in all 2 rows; expected rows with different labels.*label_column",
    ):
        label_names(facts_of("yes", "yes"), ())


@pytest.mark.parametrize(("labels", "known"), [(("-1", "1"), ()), (("-1", "0.5", "0"), ()), (("0", "-1"), ("0", "-1"))])
def test_hidden_labels_are_not_a_class(labels, known):
    check_hidden(facts_of(*labels), known)
    message = r"a\.tsv:2: got the label -1 in 2 of 4 rows; expected .*--config\.data\.labels=\"\('-1', '0', '2'\)\""
    with pytest.raises(UserError, match=message):
        check_hidden(facts_of("0", "-1", "2", "-1"), ())


@pytest.mark.parametrize(("labels", "known"), [("1.0 2", ()), ("3.5 x", ()), ("0.5 1", ("0.5", "1", "2"))])
def test_numbers_with_fractions_are_no_classes(labels, known):
    check_decimals(facts_of(*labels.split()), known)
    with pytest.raises(UserError, match=r"a\.tsv:3: got 3 different numbers .*such as 0\.5, 3\.5; .*=regression"):
        check_decimals(facts_of("0", "3.5", "0.5"), known)


def test_validation_labels_must_be_classes():
    check_labels(facts_of("b", "a", "b", split="valid"), ("a", "b", "c"))
    check_labels(facts_of("0", "1"), ("LABEL_0", "LABEL_1"))
    message = r"a\.tsv:2: got label 'd', in rows of the classes a, d; expected one of a, b, c, the model's"
    with pytest.raises(UserError, match=message):
        check_labels(facts_of("a", "d"), ("a", "b", "c"))


def test_texts_are_encoded_with_the_number_of_their_class():
    write("a.tsv", "one\ttwo\tlabel\na b\tc\t10\nb\ta b c a b c\t9\n")
    write("b.tsv", "one\ttwo\tlabel\nc\tb\t9\n")
    rows = codec_of(text_columns=("one", "two"), valid_source="b.tsv")
    fields, counts, names, _ = rows.training([row for split, row in rows.splits() if split == "train"])
    cls, sep, a, b, c = (rows.tokenizer.vocab.index(token) for token in ("[CLS]", "[SEP]", "a", "b", "c"))
    expected = [cls, a, b, sep, c, sep], [cls, b, sep, a, b, c, a, sep]
    assert fields["input_ids"].values.tolist() == [*expected[0], *expected[1]]
    assert fields["input_ids"].lengths.tolist() == [6, 8]
    assert fields["token_type_ids"].values.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    assert fields["labels"].tolist() == [1, 2] and names == {"labels": ["10", "9"]} and counts == {"truncated": 1}
    assert fields["labels"].dtype == fields["input_ids"].values.dtype == np.int32


@pytest.mark.parametrize("task", glue.TASKS)
def test_glue_from_tfds(task):
    with tfds.testing.mock_data(num_examples=20, policy=tfds.testing.MockPolicy.USE_CODE):
        train, valid = read_splits(codec_of(task == "stsb", **glue.tfds(task)), seed=0)
    assert len(train) == len(valid) == 20
    for row in train + valid:
        assert (row.second is None) == (task in ("cola", "sst2"))
        assert isinstance(row.label, float if task == "stsb" else str)


HEADERS = {
    "cola": "gj04\t1\t\tfirst",
    "sst2": "sentence\tlabel",
    "mrpc": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
    "wnli": "index\tsentence1\tsentence2\tlabel",
}


@pytest.mark.parametrize("task", glue.TASKS)
def test_glue_in_the_published_files(task):
    number = HEADERS[task].count("\t") + 1
    write("a.tsv", f"{HEADERS[task]}\n" + "\t".join(map(str, range(number))) + "\n")
    row = read(**glue.tsv(task))[-1]
    assert (row.second is None) == (task in ("cola", "sst2"))
    assert row.label == {"cola": "1", "mrpc": "0"}.get(task, str(number - 1))


@pytest.mark.parametrize(
    ("task", "name", "content", "expected"),
    [
        # An empty review, and quotes that are not closed.
        (
            "nsmc",
            "ratings_train.txt",
            'id\tdocument\tlabel\n1\t"재밌네\t1\n2\t\t0\n3\t지루하다.."\t0\n',
            [('"재밌네', None, "1"), ('지루하다.."', None, "0")],
        ),
        (
            "klue_nli",
            "klue-nli-v1.1_dev.json",
            '[\n {\n  "guid": "klue-nli-v1_dev_00000",\n  "premise": "하나",\n  "hypothesis": "둘",\n'
            '  "gold_label": "neutral",\n  "author": "neutral",\n  "label2": "entailment"\n }\n]\n',
            [("하나", "둘", "neutral")],
        ),
        (
            "klue_sts",
            "klue-sts-v1.1_dev.json",
            '[\n {\n  "sentence1": "하나",\n  "sentence2": "둘",\n  "labels": {\n'
            '   "label": 4.9,\n   "real-label": 4.857142857142857,\n   "binary-label": 1\n  }\n }\n]\n',
            [("하나", "둘", 4.857142857142857)],
        ),
        (
            "korsts",
            "sts-train.tsv",
            "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\n"
            'main-forum\tdeft-forum\t2014\t0000\t3\t"하나\t둘 "셋"\n',
            [('"하나', '둘 "셋"', 3.0)],
        ),
    ],
)
def test_korean_tasks_in_the_published_files(task, name, content, expected):
    write(name, content)
    settings = classification.get_config(task)
    is_numeric = settings.objective == "regression"
    data = settings.data.to_dict()
    keys = ("header", "separator", "text_columns", "label_column", "on_bad_row")
    rows = read(is_numeric, source=name, **{key: data[key] for key in keys})
    assert [row[:3] for row in rows] == expected
    assert is_numeric == task.endswith("sts")


def test_a_codec_that_extends_another_needs_a_kind_of_its_own():
    with pytest.raises(TypeError, match=r"Offsets needs a `kind` of its own: 'LabeledRows' is that of the class"):

        class Offsets(LabeledTextCodec):
            pass

    class Spans(LabeledTextCodec):
        kind = "Spans"

    assert Spans.version == 1 < LabeledTextCodec.version


def test_published_classifiers_take_pairs_from_python():
    """Lines of text with a tab are no pairs, since a text may have a tab."""
    codec = dataclasses.replace(codec_of(), takes_pairs=True)
    of_columns = codec_of(text_columns=("sentence", "other"))
    examples = [codec.parse_object(value, "input 1") for value in (("a b", "c"), "a", ["b", "a c"])]
    pairs = of_columns.encode([examples[0], examples[2]]).fields["token_type_ids"].values
    mixed = codec.encode(examples).fields["token_type_ids"].values
    np.testing.assert_array_equal(mixed, np.insert(pairs, 6, [0, 0, 0]))
    for value in (("a", "b", "c"), ()):
        with pytest.raises(UserError):
            codec.parse_object(value, "input 1")
    with pytest.raises(UserError, match="got 2 texts; expected one text"):
        next(codec.lines(["a\tb"], BadRows("stop")))
