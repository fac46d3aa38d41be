import numpy as np
import pytest

from bertjax.config import build
from bertjax.configs import classification
from bertjax.data.codecs.label_sets import LabelSetCodec, LabelSetsConfig, indicators
from bertjax.data.codecs.labeled_text import label_names
from bertjax.errors import UserError
from tests.data.codecs.test_labeled_text import codec_of, config
from tests.data.files import write

COLUMNS = {"label_column": "toxic, insult,threat"}


def rows_of(source: str, **changes: object) -> LabelSetCodec:
    values = {**vars(config(source=source, valid_source=source)), **changes}
    return LabelSetCodec(build(LabelSetsConfig, values, "data"), codec_of().tokenizer, seq_len=8, is_numeric=False)


def classes(source: str, **changes: object) -> list[tuple[str, ...]]:
    return [tuple(row.classes) for split, row in rows_of(source, **changes).splits() if split == "train"]


def test_columns_of_0_and_1():
    write("a.csv", "text,threat,toxic,insult\na,0,1,1\nb,0,0,0\nc,TRUE,False,0.0\n")
    assert classes("a.csv", **COLUMNS) == [("toxic", "insult"), (), ("threat",)]
    write("a.jsonl", '{"text": "a", "toxic": true, "insult": 0, "threat": 1}\n')
    assert classes("a.jsonl", **COLUMNS) == [("toxic", "threat")]


def test_a_column_of_lists():
    write("a.jsonl", "".join(f'{{"text": "x", "label": {label}}}\n' for label in ('["b", " a "]', "[]", "[2, true]")))
    assert classes("a.jsonl") == [("b", "a"), (), ("2", "true")]
    write("a.tsv", 'text\tlabel\na\tb, a\nb\t\nc\t["d,e", "f"]\nd\t2\n')
    assert classes("a.tsv") == [("b", "a"), (), ("d,e", "f"), ("2",)]
    assert classes("a.tsv", label_separator="|")[0] == ("b, a",)


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        ('{"toxic": 2, "insult": 0, "threat": 0}', COLUMNS, "2 in column 'toxic'; expected 0, 1, true or false"),
        ('{"toxic": 1, "insult": "", "threat": 0}', COLUMNS, "'' in column 'insult'; expected 0, 1"),
        ('{"toxic": 1, "insult": null, "threat": 0}', COLUMNS, "None in column 'insult'; expected 0, 1"),
        ('{"toxic": 1, "insult": 0}', COLUMNS, r"a row without column 'threat'.*data\.label_column"),
        ('{"label": ["a", "b", "a"]}', {}, "class 'a' twice in column 'label'; expected each class once"),
        ('{"label": ["a", " "]}', {}, "an empty label in column 'label'"),
        ('{"label": ["a", 0.5]}', {}, "0.5 in column 'label'; expected the name or number of a class"),
        ('{"label": ["a", ["b"]]}', {}, "list in column 'label'; expected the name or number"),
        ('{"label": "a,,b"}', {}, "an empty label in column 'label'"),
        ('{"label": "[\'a\']"}', {}, r"not valid JSON; expected a JSON list, such as \[\"a\", \"b\"\], or classes sep"),
        ('{"label": null}', {}, "no label in column 'label'; expected a list of classes, empty for no class"),
        ('{"label": 3}', {}, "int in column 'label'; expected a list of classes"),
        ('{"label": ["\\ud800"]}', {}, "half of a surrogate pair"),
    ],
)
def test_bad_labels_are_bad_rows(content, changes, message):
    write("a.jsonl", f'{{"text": "x", {content[1:]}\n')
    with pytest.raises(UserError, match=rf"a\.jsonl:1: got .*{message}.*on_bad_row=skip"):
        classes("a.jsonl", **changes)


def test_rows_are_encoded_with_all_of_their_classes():
    write("a.tsv", "text\tlabel\na\tz,y\nb\t\nc\tz\n")
    rows = rows_of("a.tsv")
    train = [row for split, row in rows.splits() if split == "train"]
    survey = rows.survey()
    survey.add("train", train)
    fields, counts, names, _ = rows.training(train)
    assert (names, counts) == ({"labels": ["z", "y"]}, {"truncated": 0, "without_labels": 1})
    assert fields["labels"].values.tolist() == [1, 2, 1] and fields["labels"].lengths.tolist() == [2, 0, 1]
    assert label_names(survey.facts(), ()) == ("y", "z")
    numbers = fields["labels"]._replace(values=fields["labels"].values - 1)
    assert indicators(numbers, np.array([1, 0], np.int32), 2).tolist() == [[True, True], [False, False], [False, True]]


@pytest.mark.parametrize(
    ("content", "changes", "got"),
    [
        ("text\tlabel\na\tz,y\nb\ty,z\n", {}, "the label 'y' and the label 'z' in all 2 rows"),
        ("text\tlabel\na\t\nb\t\n", {}, "no label in all 2 rows"),
        ("text\ty\tz\na\t0\t0\n", {"label_column": "y,z"}, "no label in all 1 rows"),
    ],
)
def test_equal_labels_in_all_rows_are_an_error(content, changes, got):
    write("a.tsv", content)
    rows = rows_of("a.tsv", **changes)
    survey = rows.survey()
    survey.add("train", [row for split, row in rows.splits() if split == "train"])
    with pytest.raises(UserError, match=rf"labels of the training rows.*: got {got}; expected rows with different"):
        label_names(survey.facts(), ())


def test_columns_are_checked_against_each_other_and_the_classes():
    for column in ("y,y", "y,", "y,text"):
        with pytest.raises(UserError, match=r"text_columns,label_column}: got .*; expected different columns"):
            rows_of("a.tsv", label_column=column).config.check_columns()
    settings = rows_of("a.tsv", **COLUMNS).config
    settings.check_labels(("insult", "threat", "toxic"))
    with pytest.raises(UserError, match=r"label_column: got 'toxic, .*; expected a column for each of toxic, insult"):
        settings.check_labels(("toxic", "insult"))


@pytest.mark.parametrize(
    ("variant", "name", "content", "expected"),
    [
        ("goemotions", "a.tsv", "a\t2,27\tid1\nb\t14\tid2\n", [("2", "27"), ("14",)]),
        (
            "jigsaw",
            "a.csv",
            'id,comment_text,toxic,severe_toxic,obscene,threat,insult,identity_hate\n1,"a\nb",1,0,1,0,0,0\n2,c,0,0,0,0,0,0\n',
            [("toxic", "obscene"), ()],
        ),
    ],
)
def test_published_files(variant, name, content, expected):
    write(name, content)
    data = classification.get_config(variant).data.to_dict()
    keys = ("header", "text_columns", "label_column", "label_separator")
    assert classes(name, **{key: data[key] for key in keys}) == expected


def test_single_labels_keep_their_prepared_rows():
    """The keys of multi-label rows are not part of the digest of others."""
    write("a.tsv", "text\tlabel\na\ty\n")
    assert "label_separator" in str(rows_of("a.tsv").key())
    assert "label_separator" not in str(codec_of(source="a.tsv").key())
