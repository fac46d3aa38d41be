import itertools
import json
import pickle
from functools import partial
from pathlib import Path

import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds

from bertjax import progress
from bertjax.data.codecs.summarization import articles
from bertjax.data.codecs.summarization.articles import Article, Articles, ArticlesConfig
from bertjax.data.readers import documentation
from bertjax.data.readers.lines import BadRows, RowError
from bertjax.errors import UserError
from tests.data.files import write
from tests.experiments.commands import settings_of
from tests.interop.formats.test_torch_pickle import write_legacy, write_zip


def rows(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def open_(test_source="a.jsonl", split="test", seed=0, needs_summary=True, **changes):
    """Opens articles; by default, the rows of `a.jsonl` as test data."""
    return Articles(config(test_source=test_source, **changes), split, seed, needs_summary)


def config(**changes):
    values = {"source": "a.jsonl", "test_source": "a.jsonl", "valid_fraction": 0.5, **changes}
    return settings_of(ArticlesConfig, "bertsum_ext", **values)


def parse(texts, config):
    return articles.parse(texts, config, BadRows(config.on_bad_row))


def read_files(source, key, config):
    return articles.read(source, key, config, BadRows(config.on_bad_row))


def read(*args, **changes):
    return list(open_(*args, **changes).articles())


def texts(*args, **changes):
    return [(article.sentences, article.summary) for article in read(*args, **changes)]


PLAIN = "Dr. No left. She stayed.\r\n\n  It rained \n"
PLAIN_SENTENCES = ("Dr. No left.", "She stayed.", "It rained")
ROW = {"id": 7, "article": PLAIN, "summary": "He left.\nIt rained."}


def test_parquet():
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROW]), "a.parquet")
    assert texts("a.parquet") == [(PLAIN_SENTENCES, ("He left.", "It rained."))]


def test_json_lines():
    write("a.jsonl.gz", rows(ROW, {"article": ["One. Two.", " ", "Th\nree"], "summary": ["A. B.", ""]}))
    assert read("a.jsonl.gz") == [
        Article("7", PLAIN_SENTENCES, ("He left.", "It rained."), None, "a.jsonl.gz:1"),
        Article("a.jsonl.gz:2", ("One. Two.", "Th ree"), ("A. B.",), None, "a.jsonl.gz:2"),
    ]
    assert texts("a.jsonl.gz", splitter="lines")[0][0] == ("Dr. No left. She stayed.", "It rained")


def test_a_list_has_sentences_or_several_references(caplog):
    write("a.jsonl", rows({**ROW, "summary": ["He left. It rained.", "It rained\nall day."]}))
    progress._logged.clear()
    with caplog.at_level("INFO"):
        (joined,) = read()
    assert joined.summary == ("He left. It rained.", "It rained all day.") and not joined.references
    assert "if it is a summary, set data.summary_as=references" in caplog.text
    (several,) = read(summary_as="references")
    assert (several.summary, several.references) == (("He left. It rained.",), (("It rained", "all day."),))
    write("a.jsonl", rows({**ROW, "summary": [["He left.", "It rained."], ""]}))
    with pytest.raises(UserError, match=r"a\.jsonl:1: got an empty summary in field 'summary'"):
        read(summary_as="references")
    assert "summary_as" not in open_().fingerprint(), "that of runs without the key"


def test_sentences_that_annotators_selected():
    write("a.jsonl", rows({"article": ["a", "b", "c"], "gold": [2, 0]}, {"article": ["a", "b"]}))
    with_gold = {"gold_field": "gold", "needs_summary": False}
    assert [article.gold for article in read(**with_gold)] == [(0, 2), None]
    write("a.jsonl", rows({"article": ["a", "b", "c"], "gold": [0, 1, 0]}))
    assert [article.gold for article in read(**with_gold, gold_as="labels")] == [(1,)]
    write("a.jsonl", rows({"article": "One. Two.\nThree", "gold": [0, 1]}))
    assert [article.gold for article in read(**with_gold, splitter="lines")] == [(0, 1)]
    with pytest.raises(UserError, match=r"a\.jsonl:1: got sentence numbers, but the article is not split"):
        read(**with_gold)


@pytest.mark.parametrize(
    ("gold", "gold_as", "message"),
    [
        ([0, 3], "numbers", r"a\.jsonl:2: got \[0, 3\] in field 'gold'; expected numbers of sentences, 0 to 2\. Fix"),
        ([0, 1], "labels", r"got \[0, 1\] in field 'gold'; expected 0 or 1 for each of 3 sentences"),
    ],
)
def test_wrong_gold_values_are_errors(gold, gold_as, message):
    write("a.jsonl", rows({"article": ["a", "b"], "gold": []}, {"article": ["a", "b", "c"], "gold": gold}))
    changes = {"gold_field": "gold", "gold_as": gold_as, "needs_summary": False}
    if gold_as == "labels":
        write("a.jsonl", rows({"article": ["a"], "gold": [1]}, {"article": ["a", "b", "c"], "gold": gold}))
    with pytest.raises(UserError, match=message):
        read(**changes)


def test_gold_numbers_require_nonempty_sentences():
    write("a.jsonl", rows({"article": ["a", " ", "c"], "gold": [2]}))
    with pytest.raises(UserError, match=r"a\.jsonl:1: got an empty sentence in an article with selected .*'gold'"):
        read(gold_field="gold", needs_summary=False)


def test_bertsums_json():
    entries = [
        {"src": [["the", "cat", "."], ["it", "sat"]], "tgt": [["a", "cat"], ["sat"]]},
        {"src": [["x"]], "tgt": [["y"]]},
    ]
    expected = [(("the cat .", "it sat"), ("a cat", "sat")), (("x",), ("y",))]
    write("a.json", "\n" + json.dumps(entries, indent=1))
    write("b.json.gz", rows(*entries))  # rows in a file named .json
    write("c.jsonl", rows(*entries))
    for name in ("a.json", "b.json.gz", "c.jsonl"):
        assert texts(name) == expected
    assert read("a.json")[1].where == "a.json:25"


PREPARED = {
    "src": [101, 7, 102, 101, 8, 102],
    "src_sent_labels": [0, 1],
    "clss": [0, 3],
    "src_txt": ["the cat .", "it sat", "beyond the limit"],
    "tgt_txt": "a cat<q>sat",
}


def prepared(value, save=write_zip):
    """Saves a value as `torch.save` does."""
    more = {"keys": (), "data": b""} if save == write_legacy else {"entries": {}}
    return str(save(Path(), pickle.dumps(value, 2), **more).rename("a.bert.pt"))


@pytest.mark.parametrize("save", [write_zip, write_legacy])
def test_prepared_files_of_presumm_and_bertsum(save):
    labels = {"gold_field": "src_sent_labels", "gold_as": "labels"}
    sentences, summary = tuple(PREPARED["src_txt"]), ("a cat", "sat")
    bertsum = {**PREPARED, "labels": [0, 0, 1], "clss": [0, 3, 6]}
    del bertsum["src_sent_labels"]
    source = prepared([PREPARED, bertsum], save)
    assert read(source, **labels) == [
        Article(f"{source}: article 1", sentences, summary, (1,), f"{source}: article 1"),
        Article(f"{source}: article 2", sentences, summary, None, f"{source}: article 2"),
    ]
    assert [article.gold for article in read(source, gold_field="labels", gold_as="labels")] == [None, (2,)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"model": []}, "a.bert.pt: got dict; expected a list of dicts with 'src_txt' .*Fix: name the files of format"),
        ([Path("x")], "a.bert.pt: data.pkl: got pathlib.PosixPath; expected only the names .*Fix: if you trust"),
    ],
)
def test_other_files_of_torch_are_errors(value, message):
    with pytest.raises(UserError, match=message):
        read(prepared(value), on_bad_row="skip")


@pytest.mark.parametrize(
    ("article", "message"),
    [
        (3, "a.bert.pt: article 1: got int; expected a dict with 'src_txt' and 'tgt_txt'"),
        ({"src": [101], "tgt_txt": "x"}, "article 1: got a row without column 'article'; its columns: 'tgt_txt'"),
        ({**PREPARED, "tgt_txt": "<q>"}, "article 1: got an empty summary in field 'tgt_txt'"),
        ({**PREPARED, "clss": [0]}, r"article 1: got \[0, 1\] in field 'src_sent_labels'; expected 0 or 1"),
    ],
)
def test_bad_prepared_articles_are_bad_rows(article, message):
    labels = {"gold_field": "src_sent_labels", "gold_as": "labels"}
    source = prepared([article, PREPARED])
    with pytest.raises(UserError, match=message):
        read(source, **labels)
    assert len(read(source, **labels, on_bad_row="skip")) == 1


def test_gold_sentences_can_replace_a_summary():
    write("a.jsonl", rows({"article": ["a", "b", "c"], "gold": [2, 0]}, {"article": ["a", "b"], "gold": []}))
    config_ = config(gold_field="gold", on_bad_row="skip")
    (found,) = Articles(config_, "test", 0, True, gold_suffices=True).articles()
    assert (found.summary, found.gold) == (("a", "c"), (0, 2))
    with pytest.raises(UserError, match=r"a\.jsonl:2: got neither a summary nor a sentence in field 'gold'"):
        list(Articles(config(gold_field="gold"), "test", 0, True, gold_suffices=True).articles())
    with pytest.raises(UserError, match=r"a\.jsonl: got no column 'summary'"):
        read(gold_field="gold")


def test_the_field_text_replaces_a_missing_article():
    write("a.jsonl", rows({"text": "One. Two.", "summary": "x"}, {"article": "Three.", "text": "No.", "summary": "y"}))
    assert texts("a.jsonl") == [(("One.", "Two."), ("x",)), (("Three.",), ("y",))]
    write("b.jsonl", rows({"text": "x", "body": "One."}))
    assert texts("b.jsonl", article_field="body", summary_field="text") == [(("One.",), ("x",))]
    assert texts("b.jsonl", article_field="body", summary_field="", needs_summary=False) == [(("One.",), None)]
    with pytest.raises(UserError, match=r"without column 'article'"):
        read("b.jsonl", summary_field="text")


def test_stories():
    write("s/b.story", "One. Two.\n\nThree\n\n@highlight\n\nFirst point\n\n@highlight\n\nSecond\npoint\n\n@highlight\n")
    write("s/a.story.gz", "Four.\n@highlight\nLast\n")
    assert read("s") == [
        Article("a.story.gz", ("Four.",), ("Last",), None, "s/a.story.gz:1"),
        Article("b.story", ("One.", "Two.", "Three"), ("First point", "Second point"), None, "s/b.story:1"),
    ]
    write("c.story", "No highlight. None at all.\n")
    assert texts("c.story", needs_summary=False) == [(("No highlight.", "None at all."), None)]


def test_plain_text():
    write("t/a.txt", "\ufeff" + PLAIN)
    write("t/b.txt.gz", "One. Two.\nThree.\n")
    write("t/c", "Four.")
    assert texts("t", needs_summary=False) == [
        (PLAIN_SENTENCES, None),
        (("One.", "Two.", "Three."), None),
        (("Four.",), None),
    ]
    by_line = read("t/b*", needs_summary=False, layout="line")
    assert [(article.id, article.sentences) for article in by_line] == [
        ("t/b.txt.gz:1", ("One.", "Two.")),
        ("t/b.txt.gz:2", ("Three.",)),
    ]


WRAPPED = ["The rain that fell on", "the old town was", "warm. Nobody went", "out.", "", "It ended at", "night."]


def test_sentences_of_wrapped_text_cross_line_ends():
    expected = ("The rain that fell on the old town was warm.", "Nobody went out.", "It ended at night.")
    text = "\n".join(WRAPPED)
    write("a.txt", text)
    write("a.story", text + "\n@highlight\nno end\nof it\n\nat all")
    write("a.jsonl", rows({"article": text}))
    write("b.jsonl", rows({"article": WRAPPED}))
    for name in ("a.txt", "a.story", "a.jsonl"):
        assert texts(name, needs_summary=False)[0][0] == expected
    assert next(parse(WRAPPED, config())).sentences == expected
    pieces = [
        "METHODS",
        "a long sentence ends here.",
        "RESULTS",
        "another one has no mark at its end",
        "three were found.",
    ]
    assert next(parse(pieces, config())).sentences == tuple(pieces)
    lines = tuple(filter(None, WRAPPED))
    assert texts("a.txt", needs_summary=False, splitter="lines")[0][0] == lines
    assert texts("b.jsonl", needs_summary=False)[0][0] == lines


@pytest.mark.parametrize(
    ("name", "article", "summary", "has_names"),
    [("cnn_dailymail", "article", "highlights", True), ("xsum", "document", "summary", False)],
)
def test_tfds(name, article, summary, has_names):
    source = f"tfds:{name}:test"
    style = {"article_field": article, "summary_field": summary, "on_bad_row": "skip"}
    with tfds.testing.mock_data(num_examples=3, policy=tfds.testing.MockPolicy.USE_CODE):
        found = read(source, **style)
        prints = open_(source, **style).fingerprint()
        with pytest.raises(UserError, match=rf"got no column 'text'; its columns: .*'{summary}'"):
            read(source, **{**style, "summary_field": "text", "on_bad_row": "stop"})
    assert [each.where for each in found] == [f"{source} record {n}" for n in range(3)]
    assert all(each.id.startswith("tfds:") != has_names for each in found)
    assert all(each.sentences and each.summary for each in found)
    assert prints["text"]["num_examples"] == 3


def test_validation_articles_are_split_off():
    write("a.jsonl", rows(*({"id": i, "article": f"Text {i % 300}.", "summary": "x"} for i in range(600))))
    train, valid = (read(split=split, valid_fraction=0.1) for split in ("train", "valid"))
    assert sorted(int(article.id) for article in train + valid) == list(range(600))
    assert not {article.sentences for article in train} & {article.sentences for article in valid}
    assert 20 < len(valid) < 120
    assert read(split="valid", valid_fraction=0.1, seed=1) != valid
    write("v.jsonl", rows(ROW))
    assert len(read(split="valid", valid_source="v.jsonl")) == 1
    assert len(read(split="train", valid_source="v.jsonl", valid_fraction=0.0)) == 600


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ('{"body": "x", "id": 1}', r"a row without column 'article'; its columns: 'body', 'id'"),
        ('{"article": "x."}', r"a row without column 'summary'; its columns: 'article'; expected the column of"),
        ('{"article": " \\n ", "summary": "x"}', "an empty article in field 'article'; expected text"),
        ('{"article": "1 2 3\\n| 4 |", "summary": "x"}', "an article without letters; expected a text with letters"),
        ('{"article": "x", "summary": "\\n"}', "an empty summary in field 'summary'; expected text"),
        ('{"article": 3, "summary": "x"}', "int in field 'article'; expected a text or a list of sentences"),
        ('{"article": "\\ud800", "summary": "x"}', "half of a surrogate pair"),
        ('{"article": ["x", 3], "summary": "x"}', "a list in field 'article' that has values other than text"),
    ],
)
def test_bad_rows_are_errors(row, got):
    write("a.jsonl", f"{rows(ROW)}{row}\n{rows(ROW)}")
    with pytest.raises(UserError, match=rf"a\.jsonl:2: got {got}.*on_bad_row=skip"):
        read()
    assert len(read(on_bad_row="skip")) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.story", "Some text.\n", r"b\.story:2: got a story without @highlight; expected a summary: @highlight, "),
        ("b.story", "Some text.\n@highlight\n\n", r"b\.story:2: got @highlight without text after it"),
        ("b.story", "\n@highlight\n\nx", r"b\.story:2: got @highlight before any text; expected an article before"),
        ("b.story", " \n", r"b\.story:1: got a file without text; expected an article"),
        ("b.json", '[{"article": "x."}]', r"b\.json:1: got a row without column 'summary'"),
    ],
)
def test_bad_files_that_can_be_skipped(name, content, message):
    write("a.jsonl", rows(ROW))
    write(name, content)
    with pytest.raises(UserError, match=rf"{message}.*on_bad_row=skip"):
        read(f"{name},a.jsonl")
    assert len(read(f"{name},a.jsonl", on_bad_row="skip")) == 1


@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.jsonl", b"\0\1\n" * 9, r"b\.jsonl: got a binary file"),
        ("b.bert.pt", "x", r"b\.bert\.pt: got at position 0, opcode b'x' unknown; expected a valid pickle"),
        ("b.npz", "x", r"data\.test_source=b\.npz: got a \.npz file; expected plain text, or .* \.story"),
        ("b.txt", "Some text.", r"data\.test_source=b\.txt: got plain text, which has no summaries; .*Fix: use such"),
    ],
)
def test_bad_files_that_always_raise(name, content, message, on_bad_row):
    write(name, content)
    with pytest.raises(UserError, match=message):
        read(name, on_bad_row=on_bad_row)


def test_a_file_over_the_limit_is_an_error(monkeypatch):
    monkeypatch.setattr("bertjax.data.codecs.summarization.article_formats.MAX_DOCUMENT_BYTES", 50)
    write("a.txt", "Some text.\n" * 9)
    with pytest.raises(UserError, match=r"a\.txt:6: got a file of more than 50 bytes; .*data\.layout=line"):
        read("a.txt", needs_summary=False)


def test_no_articles_are_an_error():
    write("a.jsonl", "\n")
    with pytest.raises(UserError, match=r"data\.test_source=a\.jsonl: got no articles for the split test;"):
        read()
    write("a.jsonl", rows(ROW))
    with pytest.raises(UserError, match=r"no articles for the split (train|valid) among \d+; .*the same text share"):
        read(split="train"), read(split="valid")  # a single article is in one split


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_source": ""}, r"data\.test_source: got nothing; expected articles to read\. Fix: set --conf"),
        ({"article_field": ""}, r"data\.\{article_field,summary_field,gold_field\}: got '', 'summary', ''; exp"),
    ],
)
def test_wrong_configs_are_errors(changes, message):
    write("a.jsonl", rows(ROW))
    with pytest.raises(UserError, match=message):
        read(**changes)


def test_different_texts_have_different_fingerprints(monkeypatch):
    monkeypatch.setattr(documentation, "fingerprint", lambda: {"kind": "documentation"})
    write("a.jsonl", rows(ROW))
    before = open_().fingerprint()
    assert before == open_(valid_fraction=0.1).fingerprint()
    prints = [
        before,
        open_(split="train").fingerprint(),
        open_(split="valid").fingerprint(),
        open_(split="train", seed=1).fingerprint(),
        open_(splitter="lines").fingerprint(),
        open_(summary_field="x").fingerprint(),
        open_("documentation").fingerprint(),
    ]
    write("a.jsonl", rows(ROW, ROW))
    prints.append(open_().fingerprint())
    assert len(set(map(json.dumps, prints))) == len(prints)


def test_only_the_fingerprint_of_korean_articles_has_the_version_of_their_rules():
    write("a.jsonl", rows(ROW))
    write("korean.jsonl", rows(ROW, {**ROW, "article": "비가 왔다"}))
    english, mixed = (open_(test_source=source).fingerprint() for source in ("a.jsonl", "korean.jsonl"))
    assert mixed.keys() - english.keys() == {"korean"}


def test_kiwi_splits_articles():
    pytest.importorskip("kiwipiepy")
    write("a.jsonl", rows({**ROW, "article": "밥 먹고 왔지 이제 잘래 내일 보자"}))
    assert [len(read(splitter=splitter)[0].sentences) for splitter in ("punkt", "kiwi")] == [1, 3]
    assert open_(splitter="kiwi").fingerprint()["kiwipiepy"]


def test_input_lines_are_articles():
    (whole,) = parse(PLAIN.splitlines(keepends=True), config())
    assert whole == Article("1", PLAIN_SENTENCES, None, None, "input line 1")
    by_line = list(parse(["One. Two.\n", "Three"], config(layout="line")))
    assert [article.sentences for article in by_line] == [("One.", "Two."), ("Three",)]
    assert [article.where for article in by_line] == ["input line 1", "input line 2"]
    assert next(parse(["One. Two."], config(layout="line", splitter="lines"))).sentences == ("One. Two.",)


@pytest.mark.parametrize(
    ("lines", "layout", "message"),
    [
        ([], "line", r"input: got no articles; expected at least one"),
        (["\n", " "], "file", r"input line 1: got an empty article"),
        (["x", "\n"], "line", r"input line 2: got an empty article; expected a text.*Fix: add the text or"),
    ],
)
def test_input_without_text_is_an_error(lines, layout, message):
    with pytest.raises(UserError, match=message):
        list(parse(lines, config(layout=layout)))


def test_messages_name_the_flag():
    with pytest.raises(UserError, match=r"^--input: got 'tfds:'"):
        list(read_files("tfds:", "--input", config()))
    with pytest.raises(UserError, match=r"^--input=tfds:nothing"):
        list(read_files("tfds:nothing_of_that_name", "--input", config()))
    with pytest.raises(UserError, match=r"^--input=none\.txt: .* or tfds:NAME\[:SPLIT\]\. Fix"):
        list(read_files("none.txt", "--input", config()))


def test_invalid_characters_are_reported_for_every_source():
    texts = ["One. Two.", "", "4 5", "Three."]
    for number, text in enumerate(texts):
        write(f"f/{number}.txt", text)
    write("t/a.txt", "\n".join(texts))
    by_line, by_file = (config(layout=layout, on_bad_row="skip") for layout in ("line", "file"))
    for read_with in (
        partial(articles.read, "f", "--input", by_file),
        partial(articles.read, "t/a.txt", "--input", by_line),
        partial(articles.parse, texts, by_line),
    ):
        bad_rows = BadRows("skip")
        first, *bad, last = bad_rows.marked(read_with(bad_rows=bad_rows))
        assert [article.sentences for article in (first, last)] == [("One.", "Two."), ("Three.",)]
        assert [type(each) for each in bad] == [RowError] * 2
    with pytest.raises(UserError, match=r"t/a\.txt:1: got an empty article; expected a text with letters"):
        write("t/a.txt", "\nOne.\n")
        list(read_files("t/a.txt", "--input", config(layout="line")))
    write("t/a.txt", "1\n")
    assert list(read_files("t/a.txt", "--input", by_file)) == []


def test_reading_is_lazy_and_can_be_repeated():
    write("a.jsonl", rows(ROW) * 3 + "bad\n")
    articles = open_()
    assert list(itertools.islice(articles.articles(), 2)) == list(itertools.islice(articles.articles(), 2))
