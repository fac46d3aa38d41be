"""The page of summaries: what it says of each article, and that it is whole and safe."""

import itertools
import re

import pytest

from bertjax.tools.reporting.summaries import kind_of, page
from tests.tools.reporting.pages import Page

EVIL = "<script>alert(\"x\")</script> & 'more'"
RECORD = {
    "id": "a<b>.txt",
    "summary": ["Third.", EVIL],
    "positions": [2, 0],
    "sentences": [EVIL, "Second & last.", "Third.", "Short.", "Fifth."],
    "scores": [0.75, 0.5, 1.0, None, 0.0],
    "refused": [
        {"position": 1, "reason": "block_ngrams", "blocked_by": 2, "ngram": '<a> "b" c'},
        {"position": 4, "reason": "threshold", "blocked_by": None, "ngram": ""},
        {"position": 3, "reason": "word_budget", "blocked_by": None, "ngram": ""},
    ],
}


def read(*records):
    return Page("".join(page(iter(records), "extract")))


def test_an_article_with_its_sentences():
    found = read(RECORD)
    assert found.texts["h3"] == ["a<b>.txt"]
    assert found.texts["blockquote"] == ["Third. " + EVIL]
    assert found.texts["span"][-5:] == [EVIL + "2", "Second & last.", "Third.1", "Short.", "Fifth."]
    assert found.texts["sup"][-2:] == ["2", "1"]
    assert [span["class"] for span in found.sentences] == [
        "sentence chosen",
        "sentence refused",
        "sentence chosen",
        "sentence unscored refused",
        "sentence refused",
    ]
    assert [span["style"] for span in found.sentences] == [f"--score: {score}" for score in (0.75, 0.5, 1.0, 0, 0)]
    cells = found.texts["td"]
    assert [tuple(cells[row : row + 3]) for row in range(0, len(cells), 3)] == [
        ("1", "0.750", "in the summary, place 2"),
        ("2", "0.500", 'skipped: repeats “<a> "b" c” of sentence 3'),
        ("3", "1.000", "in the summary, place 1"),
        ("4", "–", "skipped: the summary would be too long"),
        ("5", "0.000", "skipped: its score is too low"),
    ]
    assert found.texts["summary"] == ["Scores of 5 sentences"]


def test_a_reference_is_shown_if_the_article_has_one():
    found = read({**RECORD, "reference": ["One & two.", "Three."]}, {**RECORD, "reference": []}, RECORD)
    assert [text for text in found.texts["details"] if "Scores" not in text] == ["ReferenceOne & two. Three."]
    assert len(found.texts["section"]) == 3


def test_articles_are_written_as_they_come():
    parts = page(itertools.chain([RECORD], (pytest.fail("read ahead") for _ in range(1))), "extract")
    assert next(parts).startswith("<!doctype html>")
    assert "<section>" in next(parts)


WRITTEN = {"id": "1", "article": ["도시가 새 다리를 열었다.", EVIL], "score": -1.0, "complete": True}
LONG = {"source": f"A b c, {EVIL} d e" + " f" * 60, "score": -1.0, "complete": True}


@pytest.mark.parametrize(
    ("record", "copied", "share"),
    [
        # "새 다리를" is copied in a row; "다리가" and a single "열었다" are not.
        ({**WRITTEN, "summary": ["새 다리를 봤다.", "다리가 열었다!"]}, ["새", "다리를"], 40),
        ({**WRITTEN, "summary": []}, [], 0),
        ({**LONG, "translation": "B C and e, d e."}, ["B", "C", "d", "e."], 67),
    ],
)
def test_copied_words_are_shaded(record, copied, share):
    kind = kind_of(record)
    text = "".join(page([{**record, "reference": EVIL if kind == "translation" else [EVIL]}, {"error": "<bad>"}], kind))
    assert re.findall(r'class="[\w ]*copied">([^<]*)</span>', text)[1:] == copied  # the first is the legend's
    assert f"<dd>{share} % of the words</dd>" in text
    assert "<script" not in text and not re.search(r"https?:|src=|url\(|@import|\son\w+=", text)
    section, error = Page(text).texts["section"]
    assert section.count(EVIL) == 2 and error.strip() == "<bad>"  # in the source and the reference


def test_kinds_of_records_with_a_section():
    short = {**LONG, "source": "A b c", "translation": "a"}
    assert [kind_of(record) for record in (RECORD, short, {"label": "a"})] == ["extract", "", ""]
