"""The page of summaries: what it says of each article, and that it is whole and safe."""

import itertools
import re
from html.parser import HTMLParser

import pytest

from bertjax.errors import UserError
from bertjax.reporting.summaries import page

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
VOID = ("meta", "link", "br", "img")


class Page(HTMLParser):
    """What a page has: text by element, spans with their attributes; every element is ended where it was begun."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.spans = [], {}, []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
            self.found.setdefault(tag, []).append("")
        if tag == "span":
            self.spans.append(dict(attrs))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.found[tag][-1] += data


def read(*records):
    return Page("".join(page(iter(records))))


def test_an_article_with_its_sentences():
    found = read(RECORD)
    assert found.found["h2"] == ["a<b>.txt"]
    assert found.found["blockquote"] == ["Third. " + EVIL]
    assert found.found["span"] == [EVIL + "2", "Second & last.", "Third.1", "Short.", "Fifth."]
    assert found.found["sup"] == ["2", "1"]
    kinds = [span["class"].split() for span in found.spans]
    assert kinds == [
        ["sentence", "chosen"],
        ["sentence", "refused"],
        ["sentence", "chosen"],
        ["sentence", "unscored", "refused"],
        ["sentence", "refused"],
    ]
    shades = [float(re.fullmatch(r"--score: ([\d.]+)", span["style"])[1]) for span in found.spans]
    assert shades == sorted(shades, key=lambda shade: shades.index(shade)) == [0.45, 0.3, 0.6, 0, 0]
    assert [span["title"] for span in found.spans] == [
        "sentence 1, score 0.750",
        'sentence 2, score 0.500, repeats “<a> "b" c” of sentence 3',
        "sentence 3, score 1.000",
        "sentence 4, not scored, would be too many words",
        "sentence 5, score 0.000, scores too low",
    ]
    assert found.found["li"] == [
        'Sentence 2 repeats “<a> "b" c” of sentence 3.',
        "Sentence 5 scores too low.",
        "Sentence 4 would be too many words.",
    ]
    assert "details" not in found.found


def test_a_reference_is_there_if_the_article_has_one():
    found = read({**RECORD, "reference": ["One & two.", "Three."]}, {**RECORD, "reference": []}, RECORD)
    assert found.found["details"] == ["ReferenceOne & two. Three."]
    assert len(found.found["section"]) == 3


def test_what_is_written_is_text_alone():
    text = "".join(page([{**RECORD, "reference": [EVIL]}]))
    assert "<script" not in text and "<b>" not in text and "<a>" not in text
    assert not re.search(r"https?:|src=|url\(|@import|\son\w+=", text)  # which needs no network, and runs nothing
    assert '<meta charset="utf-8">' in text


def test_it_is_readable_in_the_dark():
    """Colors of text and ground are the reader's: nothing but the shade, which is half transparent, is set."""
    text = "".join(page([]))
    assert '<meta name="color-scheme" content="light dark">' in text
    style = Page(text).found["style"][0]
    assert not re.search(r"[^-]color:|#[0-9a-f]{3}|white|black", style)
    assert "rgba(var(--shade), var(--score))" in style


def test_no_articles_are_a_page_without_any():
    assert "section" not in read().found


def test_articles_are_written_as_they_come():
    parts = page(itertools.chain([RECORD], (pytest.fail("read ahead") for _ in range(1))))
    assert next(parts).startswith("<!doctype html>")
    assert "<section>" in next(parts)


def test_records_of_something_else():
    with pytest.raises(
        UserError, match=r"--format=html: got records of label, text; .*sentences are scored\. Fix: leave"
    ):
        next(page([{"label": "a", "text": "b"}]))
