"""Words of any language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax import words

TEXTS = st.text(st.sampled_from("aB1 .,'-\n\u00a0\x1cé猫坐か。ไทยक्") | st.characters())


@given(st.text("aB1 .,'-\n\u00a0\x1céЖह्"))
def test_scripts_with_spaces_are_split_at_white_space(text):
    assert words.split(text) == text.split()


@given(TEXTS)
def test_split_keeps_all_characters_except_white_space(text):
    assert "".join(words.split(text)) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "length"),
    [("Well, well.", 2), ("3 % 를 Ж", 4), ("한국은행이 금리를 올렸다.", 7), ("猫か BERT는", 3), ("", 0)],
)
def test_two_syllables_of_hangul_have_the_length_of_a_word(text, length):
    assert words.length(text) == length


@given(TEXTS, st.integers(1, 4))
def test_truncate_keeps_the_first_words(text, count):
    found = words.split(text)
    if len(found) > count:
        assert words.split(words.truncate(text, count)) == found[:count]
        assert text.startswith(words.truncate(text, count))


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
def test_scripts_without_spaces(text, written, compared):
    assert words.split(text) == written
    assert words.without_punctuation(text, joins=True) == compared
