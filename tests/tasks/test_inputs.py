"""Inputs of all tasks that predict: lines, tables and bad rows, up to the rows of the model."""

import csv
import gzip
import io
import itertools
import json
import logging
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import experiments, progress
from bertjax.config import build_part
from bertjax.contract import BadInput
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.vocabulary_config import load_tokenizer
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from bertjax.interop.vocabularies import open_vocabularies
from bertjax.modes import config_values, stages
from bertjax.modes.predict import predict
from bertjax.modes.request import Request
from bertjax.training import inference
from tests import published
from tests.data.text import byte_bpe
from tests.experiments.commands import sizes, tree_of

NOT_UTF8 = "a cat \udcff ."  # the byte 0xff as decoded by `streams.read_lines`
SIZES = {**sizes(1, 16, 2, 16, 32), "data.seq_len": 32}
ARTICLES = {"data.layout": "line", "data.window_overlap": 8}
# For each task: config values, two good lines, a bad line, and the error of the bad line.
TASKS = {
    "masks": ("bert_pretraining", {}, ["a [MASK] .", "the [MASK]\tdog ."], "a cat .", "0 [MASK]"),
    "classes": ("classification", {}, ["a cat .", "the dog ."], "", "an empty text"),
    "replaced": ("replaced_tokens", {}, ["a cat .", "the dog\ta cat ."], "a\tb\tc", "3 texts"),
    "pairs": ("classification", {"data.text_columns": ("a", "b")}, ["a\tcat", "b\tdog"], "a", "one text"),
    "tags": ("tagging", {}, ["a cat .", "the dog ."], " ", "an empty text"),
    "features": ("features", {"pooling": "word"}, ["a cat .", "the\tdog ."], "a\tcat\t.", "3 texts"),
    "extracts": ("bertsum_ext", ARTICLES, ["A cat.", "The dog."], "..", "an article without letters"),
    "summaries": ("bertsum_abs", ARTICLES, ["A cat.", "The dog."], "", "an empty article"),
    "translations": ("translation", {"data.on_long_line": "refuse"}, ["cat", "dog"], "cat " * 40, "tokens"),
    "scores": ("translation", {"decoding.method": "forced"}, ["cat\tKatze", "dog\tHund"], "cat", "one text"),
}
# Config values of these tasks that name the columns of tables.
COLUMNS = {
    "masks": {"data.text_field": "a"},
    "classes": {"data.text_columns": ("a",)},
    "replaced": {"data.text_field": "a"},
    "pairs": {},
    "tags": {"data.text_field": "a"},
    "features": {"data.text_columns": ("a",)},
    "extracts": {"data.article_field": "a"},
    "summaries": {"data.article_field": "a"},
    "translations": {"data.source_column": "a", "data.target_column": "b"},
    "scores": {"data.source_column": "a", "data.target_column": "b"},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a vocabulary for texts, a translator's vocabularies, and a published BERT."""
    home = tmp_path_factory.mktemp("inputs")
    words = ["a", "the", "cat", "dog", ".", "[unused0]", "[unused1]", "[unused2]"]
    WordPiece([*SPECIALS, *words], lowercase=True).save(home / "vocabulary")
    published.write_huggingface(home / "bert")
    for side, lines in (("en", ["cat", "dog", "a cat"]), ("de", ["Katze", "Hund", "ein Katze"])):
        (home / f"pairs.{side}").write_text("\n".join(lines * 20) + "\n")
    resolved(home, "translations", {}).data(home / "data").prepare()
    return home


def resolved(home, name, values):
    """The experiment of a task, with its config."""
    experiment, of_task, *_ = TASKS[name]
    is_feature, is_translation = experiment == "features", experiment == "translation"
    own = {"init_from": str(home / "bert")} if is_feature else {**SIZES, "num_steps": 2}
    if is_translation:
        sides = {f"data.{side}": str(home / f"pairs.{end}") for side, end in (("source", "en"), ("target", "de"))}
        sides |= {key.replace("data.", "data.valid_"): path for key, path in sides.items()}
        own |= {**sides, "data.vocab_size": 40, "decoding.max_length": 16, "model.num_decoder_layers": 1}
    elif not is_feature and experiment not in ("bert_pretraining", "replaced_tokens"):
        own["data.vocab_file"] = str(home / "vocabulary")
    own |= {"data.labels": ("O", "I-PER")} if experiment in ("classification", "tagging") else {}
    own |= {"data.lowercase": True} if experiment == "tagging" else {}
    tree = tree_of(experiment, "" if is_feature else "tiny", {**own, **of_task, **values})
    return stages.of_config(experiments.find(experiment), tree)


def make(home, name, tokenizer=None, **values):
    module, config, *_ = resolved(home, name, values)
    settings = build_part(module.Config, config_values.without_sources(config))
    if config["experiment"] == "translation":
        return module.Task(settings, open_vocabularies(home / "data"))
    folder = home / ("bert" if name == "features" else "vocabulary")
    return module.Task(settings, tokenizer or load_tokenizer(folder, True))


def same(found, expected):
    """Whether examples have the same rows."""
    pairs = list(zip(found, expected, strict=True))
    assert all(len(one.rows) == len(other.rows) for one, other in pairs)
    for one, other in ((a, b) for x, y in pairs for a, b in zip(x.rows, y.rows, strict=True)):
        assert one.keys() == other.keys()
        for field in one:
            np.testing.assert_array_equal(one[field], other[field])
    return True


@pytest.mark.parametrize("name", TASKS)
def test_a_skipped_bad_line_is_an_example_with_the_reason(home, name):
    _, _, (first, last), bad, got = TASKS[name]
    task = make(home, name, **{"data.on_bad_row": "skip"})
    found = list(task.examples(iter([first, bad, NOT_UTF8, last, bad])))
    assert [isinstance(example.source, BadInput) for example in found] == [False, True, True, False, True]
    assert not any(found[number].rows for number in (1, 2, 4))
    assert found[1].source.error.startswith("input line 2: got ") and got in found[1].source.error
    assert "expected" in found[1].source.error and "Fix" not in found[1].source.error
    assert found[2].source.error == "input line 3: got byte 0xff, not valid UTF-8; expected UTF-8 text"
    assert same([found[0], found[3]], make(home, name).examples(iter([first, last])))


@pytest.mark.parametrize("name", sorted(TASKS.keys() - {"translations", "scores"}))
def test_a_vocabulary_that_does_not_fit_is_warned_of(home, caplog, name):
    progress._logged.clear()
    _, _, (first, _), *_ = TASKS[name]
    list(make(home, name).examples(iter([first.replace("cat", "한국어 낱말") + " 모르는 낱말"])))
    assert "tokens are unknown in the first" in caplog.text


@pytest.mark.parametrize("name", TASKS)
def test_a_bad_line_stops_unless_bad_rows_are_skipped(home, name):
    _, _, (first, _), bad, _ = TASKS[name]
    with pytest.raises(UserError, match=r"^input line 2: got .*or set --config\.data\.on_bad_row=skip"):
        list(make(home, name).examples(iter([first, bad])))


@pytest.mark.parametrize(
    ("line", "got", "expected"),
    [
        ("a [mask] in small letters", "0 [MASK]", "at least one [MASK]"),
        ("the " * 40 + "[MASK]", "43 word pieces", "at most 32 word pieces"),
        ("a\tb\tc [MASK]", "3 segment", "at most 2 segment"),
    ],
)
def test_lines_without_masks_or_with_too_much_text(home, line, got, expected):
    with pytest.raises(UserError, match=rf"{re.escape(got)}.*; .*{re.escape(expected)}.* Fix: correct the text"):
        list(make(home, "masks").examples(iter([line])))


@pytest.mark.parametrize(("direction", "shift"), [("left_to_right", -1), ("right_to_left", 1)])
def test_a_causal_model_predicts_a_mask_where_it_has_read_up_to_it(home, direction, shift):
    causal = {"objective": "causal_lm", "model.direction": direction, "data.next_sentence": False}
    (example,) = make(home, "masks", **causal).examples(iter(["a [MASK] the [MASK]"]))
    assert example.source.extra == [2, 4]
    assert example.rows[0]["masked_positions"].tolist() == [2 + shift, 4 + shift]


@pytest.mark.parametrize("name", TASKS)
def test_tabs_separate_the_texts_of_lines_but_not_of_python_objects(home, name):
    _, _, lines, _, _ = TASKS[name]
    task = make(home, name)
    objects = [tuple(line.split("\t")) if "\t" in line else line for line in lines]
    assert same(task.examples_in(objects), task.examples(iter(lines)))
    with_tabs = [tuple(text + "\t" for text in each) if isinstance(each, tuple) else each + "\t" for each in objects]
    assert same(task.examples_in(with_tabs), task.examples(iter(lines)))
    for first in (1, 6):
        with pytest.raises(UserError, match=rf"input( line)? {first + 1}: got "):
            list(task.examples_in([objects[0], ("a", "[MASK]", "cat")], first))


def test_a_tab_in_a_choice_is_part_of_it(home, monkeypatch):
    monkeypatch.setitem(TASKS, "choices", ("multiple_choice", {}))
    (found,) = make(home, "choices").examples_in([("a cat", "the\tdog", "a dog")])
    assert list(found.source.item.choices.values()) == ["the\tdog", "a dog"]


def test_white_space_around_a_text_is_kept(home, tmp_path):
    text, tokenizer = "  a cat ", byte_bpe.trained(lowercase=True)
    task = make(home, "classes", tokenizer, **{"data.text_columns": ("a",)})
    table = write_table(tmp_path / "in.jsonl", [[text]])
    for found in (task.examples(iter([text])), task.examples_in([text]), task.examples_of(table)):
        (example,) = found
        assert example.rows[0]["input_ids"].tolist()[1:-1] == tokenizer.encode_batch([text])[0]


def test_a_text_of_several_lines_is_one_article(home):
    text = "A\u2028cat.\nThe dog."
    whole = make(home, "extracts", **{"data.layout": "file"})
    (found,) = make(home, "extracts").examples_in([text])
    assert same([found], whole.examples(iter(text.split("\n"))))
    for value, kind in ((3, "int"), ([3], "list")):
        with pytest.raises(UserError, match=f"input line 1: got an object of type {kind}"):
            list(whole.examples_in([value]))


QUESTION = {"id": "q", "question": "a cat ?"}
PARAGRAPH = {"context": "the dog .", "qas": [QUESTION]}


@pytest.mark.parametrize(
    ("paragraphs", "got"),
    [
        ([PARAGRAPH, {**PARAGRAPH, "qas": [{"id": "r"}, {**QUESTION, "id": "s"}]}], "no 'question'"),
        ([PARAGRAPH, {"qas": [QUESTION]}, {**PARAGRAPH, "qas": [{**QUESTION, "id": "s"}]}], "no 'context'"),
        ([PARAGRAPH, PARAGRAPH, {**PARAGRAPH, "qas": [{**QUESTION, "id": "s"}]}], "the same id as "),
    ],
)
def test_a_skipped_bad_question_is_an_example_with_the_reason(home, monkeypatch, paragraphs, got):
    monkeypatch.setitem(TASKS, "questions", ("question_answering", {"data.max_query_length": 8}))
    lines = json.dumps({"data": [{"paragraphs": paragraphs}]}, indent=1).splitlines()
    found = list(make(home, "questions", **{"data.on_bad_row": "skip"}).examples(iter(lines)))
    assert [bool(example.rows) for example in found] == [True, False, True]
    assert got.split()[0] in found[1].source.error
    with pytest.raises(UserError, match=rf"input: data\[0\]\.paragraphs\[1\].*got {got}.*on_bad_row=skip"):
        list(make(home, "questions").examples(iter(lines)))


def test_each_question_of_a_bad_paragraph_is_an_example(home, monkeypatch):
    monkeypatch.setitem(TASKS, "questions", ("question_answering", {"data.max_query_length": 8}))
    bad = {"context": " ", "qas": [{**QUESTION, "id": "r"}, {**QUESTION, "id": "s"}]}
    line = json.dumps({"data": [{"paragraphs": [bad, PARAGRAPH]}]})
    found = list(make(home, "questions", **{"data.on_bad_row": "skip"}).examples(iter([line])))
    assert [bool(example.rows) for example in found] == [False, False, True]
    assert "paragraphs[0]: got an empty 'context'" in found[1].source.error


def test_questions_are_dicts(home, monkeypatch, caplog):
    monkeypatch.setitem(TASKS, "questions", ("question_answering", {"data.max_query_length": 8}))
    task = make(home, "questions")
    asked = {"question": QUESTION["question"], "context": PARAGRAPH["context"]}
    first, second = task.examples_in([asked, {**asked, "id": "q"}])
    assert same([first], task.examples(iter([json.dumps({"data": [{"paragraphs": [PARAGRAPH]}]})])))
    assert [example.source[0].id for example in (first, second)] == ["1", "q"]
    assert list(task.examples_in([asked, {**asked, "context": "a cat . " * 20}]))
    assert "1 of 2 contexts have windows that do not overlap" in caplog.text
    for bad, got in (("a cat ?", "got an object of type str"), ({"question": "a cat ?"}, "got no 'context'")):
        with pytest.raises(UserError, match=f"input 2.*: {got}"):
            list(task.examples_in([asked, bad]))


def write_table(path, rows):
    """Writes rows of texts as a table whose columns are "id", "a", "b", and returns its path."""
    named = [{"id": f"r{number}", **dict(zip("ab", row, strict=False))} for number, row in enumerate(rows)]
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "jsonl":
        content = "".join(json.dumps(row) + "\n" for row in named)
    else:
        file = io.StringIO()
        names = list(dict.fromkeys(name for row in named for name in row))
        writer = csv.DictWriter(file, names, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
        writer.writeheader()
        writer.writerows(named)
        content = file.getvalue()
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return str(path)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("file", ["in.jsonl.gz", "in.csv", "in.tsv"])
def test_a_table_is_read_by_its_columns(home, tmp_path, name, file):
    is_pair = name in ("pairs", "scores")
    lines = [line for line in TASKS[name][2] if is_pair or "\t" not in line]
    rows = [line.split("\t") for line in lines]
    task = make(home, name, **COLUMNS[name], **{"data.on_bad_row": "skip"})
    path = write_table(tmp_path / file, [*rows, ["", ""], rows[0]])
    found = list(task.examples_of(path))
    assert isinstance(found.pop(len(rows)).source, BadInput)
    assert same(found, task.examples(iter([*lines, lines[0]])))


class Zeros(inference.Inference):
    """A model whose outputs are zeros."""

    def __init__(self, task, on_bad_row):
        self.task, self.params, self.config = task, None, {"data": {"on_bad_row": on_bad_row}}
        self._shapes = jax.eval_shape(lambda key: task.inference_params(task.init(key)), jax.random.key(0))

    def _predictor(self, params, examples, done=0):
        for example in itertools.islice(examples, done, None):
            batches = ({name: jnp.array(array)[None] for name, array in row.items()} for row in example.rows)
            shapes = (jax.eval_shape(self.task.infer, self._shapes, batch) for batch in batches)
            yield example, [jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), each) for each in shapes]


OTHERS = {
    "choices": (
        "multiple_choice",
        {"data.context_column": "a", "data.start_column": "", "data.choice_columns": ("b", "more.b")},
    ),
    "vectors": ("embeddings", {"data.text_columns": ("a", "b")}),
    "ranks": ("reranker", {"data.text_columns": ("a", "b")}),
}


@pytest.mark.parametrize("name", [*TASKS, *OTHERS])
def test_records_have_the_fields_that_the_task_states_after_copied_columns(home, tmp_path, monkeypatch, name):
    for other, values in OTHERS.items():
        monkeypatch.setitem(TASKS, other, values)
    task = make(home, name, **COLUMNS.get(name, {}), **{"data.on_bad_row": "skip"})
    row = {"a": "a [MASK] ." if name == "masks" else "A cat .", "b": "the dog .", "more": {"b": "x"}, "date": 7}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({**row, **bad}) + "\n" for bad in ({}, {"a": ""})))
    for form in ("jsonl", "csv"):
        paths = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / f"out.{form}")}
        columns = ["more.b", "date"]
        predict(Zeros(task, "skip"), Request(mode="predict", **paths), lambda form: "", columns)
    good, bad = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [*good][:2] == columns and list(bad) == [*columns, "error"]
    with (tmp_path / "out.csv").open(newline="") as file:
        of_good, of_bad = csv.DictReader(file)
    assert of_good["more.b"] == of_bad["more.b"] == "x" and of_bad["error"] == bad["error"]


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in ("extracts", "summaries")])
def test_a_dict_is_read_like_a_row_of_a_table(home, tmp_path, name):
    task = make(home, name, **(COLUMNS[name] or {"data.text_columns": ("a", "b")}))
    values = {"a": "a cat [MASK] .", "b": "the dog ."}
    (tmp_path / "in.jsonl").write_text(json.dumps(values))
    assert same(task.examples_in([values]), task.examples_of(str(tmp_path / "in.jsonl")))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("file", ["in.jsonl", "in.csv"])
def test_a_missing_column_is_reported_with_the_config_key(home, tmp_path, name, file):
    key, value = next(iter((COLUMNS[name] or {"data.text_columns": ("a", "b")}).items()))
    other = ("x", "b") if name == "pairs" else ("x",) if isinstance(value, tuple) else "x"
    task = make(home, name, **{**COLUMNS[name], key: other})
    path = write_table(tmp_path / file, [["a cat .", "the dog ."]])
    key = "data.source_column or --config.data.target_column" if name == "scores" else key
    with pytest.raises(UserError) as told:
        list(task.examples_of(path))
    message = str(told.value).replace("fields", "columns")
    assert "in." in message.partition(": got ")[0] and "its columns: 'id', 'a', 'b'" in message
    assert f"--config.{key}" in message


@pytest.mark.parametrize(("name", "key"), [("tags", "data.text_field"), ("translations", "data.source_column")])
def test_a_table_is_refused_if_the_config_names_no_column(home, tmp_path, name, key):
    path = write_table(tmp_path / "in.jsonl", [["a cat"]])
    with pytest.raises(UserError, match=rf"its columns: 'id', 'a'; expected the column of config\.{key}\. Fix: set"):
        list(make(home, name, **{"data.on_bad_row": "skip"}).examples_of(path))


@pytest.mark.parametrize("name", sorted({*TASKS} - {"extracts", "summaries"}))
def test_other_files_are_read_by_line(home, tmp_path, name):
    (tmp_path / "in.tsv").write_text("\n".join(TASKS[name][2]) + "\n")
    task = make(home, name, **COLUMNS[name])
    assert task.examples_of(str(tmp_path / "in.txt")) is None
    if name in ("masks", "replaced", "pairs", "features", "scores"):  # tabs separate the texts of a line
        assert task.examples_of(str(tmp_path / "in.tsv")) is None
        return
    with pytest.raises(UserError, match=r"no column 'a'.*rename a file of plain lines to \.txt"):
        list(task.examples_of(str(tmp_path / "in.tsv")))


@pytest.mark.parametrize("name", [*TASKS, "questions"])
def test_files_of_other_kinds_are_refused(home, tmp_path, monkeypatch, name):
    monkeypatch.setitem(TASKS, "questions", ("question_answering", {"data.max_query_length": 8}))
    task = make(home, name)
    others = [".csv.gz", ".tsv", ".tmx"] if name == "questions" else []
    for suffix in (*others, ".xml", ".sgm", ".xlf.gz", ".docx", ".PDF", ".html"):
        (tmp_path / f"in{suffix}").write_text("text\n")
        with pytest.raises(UserError, match=rf"^--input=.*: got a \{suffix.lower().removesuffix('.gz')} file"):
            list(task.examples_of(str(tmp_path / f"in{suffix}")))


@pytest.mark.parametrize("file", ["in.csv", "in.tsv"])
def test_an_unreadable_header_is_not_skipped(home, tmp_path, file):
    """Otherwise the first row would be taken for the header, or a TSV file for lines of text."""
    separator = b"," if file == "in.csv" else b"\t"
    (tmp_path / file).write_bytes(separator.join([b"sentence", b"l\xff\na cat .", b"x\nthe dog .", b"y\n"]))
    with pytest.raises(UserError, match=r"in\..sv:1: got byte 0xff.*Fix: correct the first line"):
        list(make(home, "classes", **{"data.on_bad_row": "skip"}).examples_of(str(tmp_path / file)))


@pytest.mark.parametrize(
    "row",
    [
        {"a": "A cat.", "summary": None},
        {"a": "A cat."},
        {"a": "A cat.", "summary": ""},
        {"src": [["A", "cat."]]},
        {"src": [["A", "cat."]], "tgt": None},
        {"a": "A cat.", "gold": None},
    ],
)
def test_an_article_without_a_summary_is_summarized(home, tmp_path, row):
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    task = make(home, "extracts", **{"data.article_field": "a", "data.gold_field": "gold"})
    (example,) = task.examples_of(str(tmp_path / "in.jsonl"))
    assert example.source.item.sentences == ("A cat.",)


def test_all_articles_are_bad(home, tmp_path, caplog):
    task = make(home, "extracts", **{"data.on_bad_row": "skip", "data.layout": "file"})
    for name in ("1.txt", "2.txt"):
        (tmp_path / name).write_text("\n")
    with caplog.at_level(logging.WARNING):
        found = [example.source.error for example in task.examples_of(str(tmp_path))]
    assert found == [f"{tmp_path}/{n}.txt:1: got a file without text; expected an article" for n in (1, 2)]
    (tmp_path / "none").mkdir()
    Path(tmp_path / "none" / "in.jsonl").write_text("\n")
    with pytest.raises(UserError, match="got no articles; expected at least one"):
        list(task.examples_of(str(tmp_path / "none")))


def test_each_line_needs_one_of_several_prefixes(home):
    values = {"data.source_prefix": ("A: ", "B: "), "data.on_bad_row": "skip"}
    task = make(home, "translations", **values)
    good, bad, empty = task.examples(iter(["B: cat", "cat", ""]))
    assert good.rows and not empty.rows and not isinstance(empty.source, BadInput)
    expected = "expected a text that begins with a prefix of data.source_prefix: 'A: ', 'B: '"
    assert bad.source.error == f"input line 2: got 'cat', a text without a prefix; {expected}"
    scores = make(home, "scores", **values, **{"data.target_prefix": ("C: ", "D: ")})
    good, bad = scores.examples(iter(["B: cat\tC: Katze", "B: cat\tKatze"]))
    assert good.rows and "data.target_prefix: 'C: ', 'D: '" in bad.source.error
    chosen = make(home, "translations", **{"data.source_prefix": ("", "B: ")})
    assert [bool(example.rows) for example in chosen.examples(iter(["cat"]))] == [True]
