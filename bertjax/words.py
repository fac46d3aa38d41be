"""Words of any language. White space separates words; in scripts without spaces, each letter is a word."""

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from bertjax.korean import split_morphemes

if TYPE_CHECKING:
    from nltk.stem.porter import PorterStemmer

T = TypeVar("T")
WORDS = "words"
MORPHEMES = "morphemes"
CHARACTERS = "characters"
UNITS = (WORDS, MORPHEMES, CHARACTERS)
_STEMMED_FROM = 4  # letters
# Thai, Lao, Tibetan, Burmese, Khmer, kana, and Han with its extensions.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Punctuation belongs to the letter before it, as it does in words with spaces. So do vowels that are written as marks.
_HANGUL = re.compile("[가-힣]")
_WORD = re.compile(rf"[{_UNSPACED}][^\w\s]*|[^\s{_UNSPACED}]+")


def split(text: str) -> list[str]:
    """The words of a text as written, including punctuation.

    >>> split("Well, well."), split("BERT是一个语言模型。")
    (['Well,', 'well.'], ['BERT', '是', '一', '个', '语', '言', '模', '型。'])
    """
    return text.split() if text.isascii() else _WORD.findall(text)


def length(text: str) -> int:
    """The number of words for limits on lengths. In Korean words, every two syllables count as one word.

    A Korean word has particles and endings, so a sentence has about half as many words as in English.

    >>> length("Well, well."), length("비가 왔습니다.")
    (2, 3)
    """
    word_list = split(text)
    return (
        len(word_list) if text.isascii() else sum(max(1, (len(_HANGUL.findall(word)) + 1) // 2) for word in word_list)
    )


def truncate(text: str, count: int) -> str:
    """The first `count` words of a text that has more words."""
    *_, last = itertools.islice(_WORD.finditer(text), count)
    return text[: last.end()]


def without_punctuation(text: str, *, joins: bool) -> list[str]:
    """The words of a text without punctuation, for comparison: composed letters, their marks, and digits.

    Args:
      text: the text. Its case is kept.
      joins: whether a word with punctuation inside stays one word (True) or becomes several (False).

    >>> without_punctuation("a well-known café.", joins=True), without_punctuation("a well-known café.", joins=False)
    (['a', 'wellknown', 'café'], ['a', 'well', 'known', 'café'])
    """
    return split(composed(text).translate(_table("" if joins else " ")))


def units_of(text: str, units: str, *, joins: bool) -> list[str]:
    """The units of a text that are compared: words, Korean morphemes, or the characters of words, as in `UNITS`.

    Args:
      text: the text. Its case is kept.
      units: an element of `UNITS`.
      joins: as in `without_punctuation`.

    Raises:
      UserError: if morphemes of Hangul need kiwipiepy, which is not installed.

    >>> units_of("수도는 서울.", "characters", joins=False)
    ['수', '도', '는', '서', '울']
    """
    parts = " ".join(split_morphemes(composed(text))) if units == MORPHEMES else text
    words = without_punctuation(parts, joins=joins)
    return list("".join(words)) if units == CHARACTERS else words


def composed(text: str) -> str:
    """The text in Unicode normalization form C. Texts that look equal, such as file names of macOS, are then equal.

    >>> len("e\u0301"), composed("e\u0301")
    (2, 'é')
    """
    return unicodedata.normalize("NFC", text)


def ascii_share(texts: Iterable[str]) -> float:
    """The share of ASCII letters among all letters of the texts; 1 if there are no letters.

    >>> ascii_share(["a 2.5", "猫猫猫 7"])
    0.25
    """
    letters = list(filter(str.isalpha, "".join(texts)))
    return sum(map(str.isascii, letters)) / len(letters) if letters else 1.0


def ngram_counts(words: Sequence[T], n: int) -> Counter[tuple[T, ...]]:
    """The number of occurrences of each n-gram.

    >>> ngram_counts("abab", 2)
    Counter({('a', 'b'): 2, ('b', 'a'): 1})
    """
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


@functools.lru_cache(maxsize=2**17)
def porter_stem(word: str) -> str:
    """NLTK's Porter stem of a word of four letters or more, as in rouge-score; a shorter word itself."""
    return _porter().stem(word) if len(word) >= _STEMMED_FROM else word


@functools.cache
def _porter() -> "PorterStemmer":
    # Imported on first use, because NLTK imports SciPy's statistics, which is slow.
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


class _Table(dict[int, str]):
    """A lazily filled table for `str.translate` that replaces all but letters, marks, numbers and white space."""

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
