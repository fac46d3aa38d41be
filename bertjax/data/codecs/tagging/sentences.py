"""Sentences of tagged words or characters, and the division of texts into these units."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from bertjax.data.readers.lines import RowError
from bertjax.data.text.normalization import separate_punctuation
from bertjax.errors import UserError
from bertjax.words import CHARACTERS, WORDS

UNITS = (WORDS, CHARACTERS)  # that are tagged
MAX_WORDS = 1 << 16  # per sentence; a longer one means that the file does not show where sentences end


class Sentence(NamedTuple):
    """A sentence of words, or of characters with the white space after each, and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # empty if they are unknown
    where: str  # the position of the first word for messages, such as "file:line"


class TextSentence(Sentence):
    """A sentence to predict on, with the text that it is read from. It is not stored."""

    text: str


def check_length(count: int, where: str, expected: str, fix: str) -> None:
    """Raises UserError if a sentence that begins at `where` has more than `MAX_WORDS` words."""
    if count > MAX_WORDS:
        raise UserError(where, got=f"a sentence of more than {MAX_WORDS:,} words", expected=expected, fix=fix)


def words_of(text: str, units: str, *, split_punctuation: bool) -> list[str]:
    """Returns the words of a text: what is between white space, with each punctuation mark as a word if set so.

    With the unit "characters", returns all characters; see `of_characters`.

    >>> words_of("Don't  go.", "words", split_punctuation=True)
    ['Don', "'", 't', 'go', '.']
    """
    if units == CHARACTERS:
        return list(text)
    return (separate_punctuation(text) if split_punctuation else text).split()


def of_characters(sentence: Sentence) -> Sentence:
    """Returns a sentence of characters in which white space is a part of the character before it, without a tag.

    >>> of_characters(Sentence((" ", "a", " ", "b"), ("O", "B-X", "I-X", "I-X"), "file:1"))
    Sentence(words=('a ', 'b'), tags=('B-X', 'I-X'), where='file:1')

    Raises:
      RowError: if there is nothing but white space.
    """
    words, tags, where = sentence
    starts = [number for number, word in enumerate(words) if word.strip()]
    if not starts:
        raise RowError(where, "a sentence of white space", "a sentence with characters", "delete it")
    characters = tuple("".join(words[start:stop]) for start, stop in itertools.pairwise([*starts, len(words)]))
    return Sentence(characters, tuple(tags[start] for start in starts) if tags else (), where)


def offsets_of(words: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Returns the characters of `text` where each word starts and ends; the end is exclusive.

    >>> offsets_of(["a", "ba"], " a ba")
    [(1, 2), (3, 5)]

    Args:
      words: words that the text has in this order, with nothing but white space between them.
      text: the text.
    """
    offsets: list[tuple[int, int]] = []
    end = 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        offsets.append((start, end))
    return offsets
