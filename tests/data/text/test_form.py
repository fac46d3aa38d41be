"""The form of texts, and warnings of a form that the vocabulary does not have."""

import pytest

from bertjax.data.text import subwords
from bertjax.data.text.form import Form, contradiction, form_of, metrics
from bertjax.data.text.normalization import Chain
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.wordpiece import WordPiece

PLAIN = "He said: \"It's late, I can't stay (today).\" She didn't answer."
TOKENIZED = "He said : `` It 's late , I ca n't stay -lrb- today -rrb- . '' She did n't answer ."


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (PLAIN, Form(0, 0)),
        (TOKENIZED, Form(100, 0)),
        (TOKENIZED.lower(), Form(100, 100)),
        ("BACKGROUND\n" + "dengue viruses are linear, single-stranded rna viruses. " * 40, Form(0, 100)),
        ("한국어 문장이다. 쉼표, 마침표.", Form(0, 0)),
        ("中文句子，没有空格。", Form(0, 0)),
        ("no marks", Form(0, 100)),
    ],
)
def test_form_of_a_text(text, form):
    assert form_of([text]) == form


def test_forms_are_metrics_of_splits():
    values = {"valid/tokenized_texts": 50, "valid/lowercased_texts": 0}
    assert metrics({"valid": form_of([PLAIN, TOKENIZED])}) == values


SPACES = subwords.characters("Aa ,.")
LETTERS = (*SPECIALS, *"Aa,.")
BERT = {name: WordPiece.of(LETTERS, Chain.of(name == "uncased")) for name in ("cased", "uncased")}


@pytest.mark.parametrize(
    ("form", "tokenizer", "is_published", "problem"),
    [
        (Form(100, 100), SPACES, True, "100 % have spaces before punctuation marks and 100 % have no capitals"),
        (Form(100, 0), SPACES, False, ""),
        (Form(0, 0), SPACES, True, ""),
        (Form(100, 100), BERT["uncased"], True, ""),
        (Form(100, 100), BERT["cased"], True, "not plain: 100 % have no capitals"),
    ],
)
def test_texts_that_contradict_a_vocabulary(form, tokenizer, is_published, problem):
    message = contradiction(form, tokenizer, is_published=is_published)
    assert problem in message and bool(problem) == bool(message)


def test_words_between_spaces_need_tokenized_texts():
    plain, tokenized = (
        contradiction(Form(share, 100), BERT["uncased"], is_published=False, at_spaces=True) for share in (10, 90)
    )
    assert "90 % of the texts are not tokenized" in plain and not tokenized
