import sys

import pytest

from bertjax import korean
from bertjax.errors import UserError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("학교에서 했습니다", "학교 에서 했 습니다"),
        ("ㅋㅋㅋ재밌당 2023년에!!", "ㅋㅋㅋ 재밌 당 2023 년 에 !!"),
        ("😀먹었다", "😀 먹 었 다"),
        ("No Hangul, one's", "No Hangul, one's"),
    ],
)
def test_words_are_split_at_morphemes(text: str, parts: str) -> None:
    pytest.importorskip("kiwipiepy")
    assert korean.split_morphemes(text) == parts.split()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    korean.analyzer.cache_clear()
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UserError, match=r"no package kiwipiepy.*korean"):
        korean.split_morphemes("학교에서")
