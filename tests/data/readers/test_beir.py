"""Folders in BEIR's form: rules for ids, titles and judgments, and one error for each kind of bad row."""

import json
import re

import pytest

from bertjax.data.readers import beir
from bertjax.errors import UserError

DOCUMENTS = [
    {"_id": "d1", "title": "", "text": "the cat"},
    {"_id": "d2", "title": "dogs", "text": "the dog"},
    {"_id": 10, "text": "the bird"},
]
QUERIES = [{"_id": "q1", "text": "cat"}, {"_id": "q2", "text": "dog"}, {"_id": "q3", "text": "of another split"}]
JUDGMENTS = ["q1\td1\t2", "q1\t10\t0", "q2\td2\t0"]


def write(folder, documents=DOCUMENTS, queries=QUERIES, judgments=JUDGMENTS):
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus.jsonl", documents), ("queries.jsonl", queries)):
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judgments, ""]))
    return folder


def read(folder, qrels="test", on_bad_row="stop"):
    return beir.Folder(str(folder), "data.test_source", qrels, on_bad_row).read()


def test_a_folder(tmp_path):
    found = read(write(tmp_path))
    assert found.queries == {"q1": "cat"}
    assert (found.documents, found.left_out) == (["10", "d1", "d2"], 1)
    assert found.relevant == {"q1": {"d1": 2, "10": 0}}
    assert dict(found.texts()) == {"d1": "the cat", "d2": "dogs the dog", "10": "the bird"}


@pytest.mark.parametrize(
    ("rows", "where", "got"),
    [
        ({"documents": [*DOCUMENTS, {"_id": "d3", "title": " ", "text": ""}]}, "corpus.jsonl:4", "an empty document"),
        ({"documents": [*DOCUMENTS, {"_id": "d1", "text": "a"}]}, "corpus.jsonl:4", "the id 'd1' a second time"),
        ({"documents": [*DOCUMENTS, {"text": "a"}]}, "corpus.jsonl:4", "no '_id'"),
        ({"documents": [*DOCUMENTS, '{"_id": "d3"']}, "corpus.jsonl:4", "not valid JSON"),
        ({"queries": [*QUERIES, {"_id": "q4", "text": " "}]}, "queries.jsonl:4", "an empty query"),
        ({"queries": [*QUERIES, {"_id": "q1", "text": "a"}]}, "queries.jsonl:4", "the id 'q1' a second time"),
        ({"judgments": [*JUDGMENTS, "q4\td1\t1"]}, "test.tsv:5", "the id 'q4'; expected an id of queries.jsonl"),
        ({"judgments": [*JUDGMENTS, "q1\td4\t1"]}, "test.tsv:5", "the id 'd4'; expected an id of corpus.jsonl"),
        ({"judgments": [*JUDGMENTS, "q1\td1\t2"]}, "test.tsv:5", "'q1' with 'd1' a second time"),
        ({"judgments": [*JUDGMENTS, "q2\td1\t0.5"]}, "test.tsv:5", "the score '0.5'"),
        ({"judgments": [*JUDGMENTS, "q2 d1 1"]}, "test.tsv:5", "one field"),
    ],
)
def test_bad_rows_are_errors_and_can_be_skipped(tmp_path, rows, where, got):
    folder = write(tmp_path, **rows)
    with pytest.raises(UserError, match=f"{where}: got .*{re.escape(got)}.* Fix: "):
        read(folder)
    assert read(folder, on_bad_row="skip")[:-1] == read(write(tmp_path / "good"))[:-1]


@pytest.mark.parametrize("separator", [" ", "\t", "  \t"])
def test_judgments_in_the_form_of_trec(tmp_path, separator):
    folder = write(tmp_path)
    rows = ("q1 0 d1 2", "q1 0 10 -1", "", "q2 Q0 d2", "q2 Q0 d1 1")
    (folder / "qrels" / "test.tsv").write_text("".join(f"{row.replace(' ', separator)}\n" for row in rows))
    assert read(folder, on_bad_row="skip").relevant == {"q1": {"d1": 2, "10": -1}, "q2": {"d1": 1}}
    with pytest.raises(UserError, match=r"test\.tsv:4: got 3 fields; expected a query, an unused field"):
        read(folder)


def test_a_query_is_not_relevant_to_itself(tmp_path):
    documents = [*DOCUMENTS, {"_id": "q2", "text": "a dog"}]
    with pytest.raises(UserError, match=r"test.tsv:5: got 'q2' for both; expected different ids"):
        read(write(tmp_path, documents=documents, judgments=[*JUDGMENTS, "q2\tq2\t1"]))


def test_missing_files_and_judgments_are_errors(tmp_path):
    folder = write(tmp_path, judgments=["q2\td2\t0"])
    with pytest.raises(UserError, match=r"got no qrels/dev\.tsv; .* Fix: set --config\.data\.qrels to one of test"):
        read(folder, qrels="dev")
    with pytest.raises(UserError, match="got 1 judgments, none of them above 0"):
        read(folder)
    (folder / "qrels" / "test.tsv").write_text("q1\td1\t1\n")
    with pytest.raises(UserError, match=r"test\.tsv:1: got q1, d1, 1; expected the columns query-id, corpus-id, score"):
        read(folder)
