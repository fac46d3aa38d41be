"""Words of any language: what white space parts, and each letter of scripts that write none between words."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable

# Thai, Lao, Tibetan, Burmese, Khmer, kana, and Han with its extensions.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Punctuation goes with the letter before it, as it does with words; so do the vowels that some scripts write as marks.
_WRITTEN = re.compile(rf"[{_UNSPACED}][^\w\s]*|[^\s{_UNSPACED}]+")


def split(text: str) -> list[str]:
    """The words of a text as they are written, punctuation and all.

    >>> split("Well, well."), split("BERT是一个语言模型。")
    (['Well,', 'well.'], ['BERT', '是', '一', '个', '语', '言', '模', '型。'])
    """
    return text.split() if text.isascii() else _WRITTEN.findall(text)


def cut(text: str, count: int) -> str:
    """The first words of a text that has more of them."""
    *_, last = itertools.islice(_WRITTEN.finditer(text), count)
    return text[: last.end()]


def compared(text: str, *, joins: bool) -> list[str]:
    """The words of a text as they are compared: letters, their marks, and digits.

    Args:
      text: in the case that is to count.
      joins: whether what has punctuation inside is one word, or else several.

    >>> compared("a well-known café.", joins=True), compared("a well-known café.", joins=False)
    (['a', 'wellknown', 'café'], ['a', 'well', 'known', 'café'])
    """
    return split(text.translate(_table("" if joins else " ")))


def ascii_share(texts: Iterable[str]) -> float:
    """The share of the letters of texts that ASCII has; 1 where there are none.

    >>> ascii_share(["a 2.5", "猫猫猫 7"])
    0.25
    """
    letters = list(filter(str.isalpha, "".join(texts)))
    return sum(map(str.isascii, letters)) / len(letters) if letters else 1.0


class _Table(dict[int, str]):
    """What becomes of each character, found when it first comes."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self._other = other

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_kept = character.isspace() or unicodedata.category(character)[0] in "LMN"
        self[code] = character if is_kept else self._other
        return self[code]


@functools.cache
def _table(other: str) -> _Table:
    return _Table(other)
