"""Words of any language."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax import words

TEXTS = st.text(st.sampled_from("aB1 .,'-\n\u00a0\x1cé猫坐か。ไทยक्") | st.characters())


def test_examples():
    assert doctest.testmod(words).failed == 0


@given(st.text("aB1 .,'-\n\u00a0\x1céЖह्"))
def test_scripts_with_spaces_are_parted_there(text):
    assert words.split(text) == text.split()


@given(TEXTS)
def test_nothing_written_is_lost(text):
    assert "".join(words.split(text)) == "".join(text.split())


@given(TEXTS, st.integers(1, 4))
def test_the_first_words_of_a_longer_text(text, count):
    found = words.split(text)
    if len(found) > count:
        assert words.split(words.cut(text, count)) == found[:count]
        assert text.startswith(words.cut(text, count))


@pytest.mark.parametrize(
    ("text", "written", "compared"),
    [
        ("我爱猫，真的！", ["我", "爱", "猫，", "真", "的！"], ["我", "爱", "猫", "真", "的"]),
        ("ペンです", ["ペ", "ン", "で", "す"], ["ペ", "ン", "で", "す"]),
        ("นี่ไทย", ["นี่", "ไ", "ท", "ย"], ["นี่", "ไ", "ท", "ย"]),
        ("कुत्ता, मछली।", ["कुत्ता,", "मछली।"], ["कुत्ता", "मछली"]),
        ("GPT-4很好", ["GPT-4", "很", "好"], ["GPT4", "很", "好"]),
        ("他用BERT。", ["他", "用", "BERT。"], ["他", "用", "BERT"]),
    ],
)
def test_other_scripts(text, written, compared):
    assert words.split(text) == written
    assert words.compared(text, joins=True) == compared
