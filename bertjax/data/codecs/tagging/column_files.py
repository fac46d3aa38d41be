"""Reads sentences from files of columns, with a word and its tag on each line, as in CoNLL-2003 and CoNLL-U."""

import dataclasses
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bertjax.config import Constrained, always
from bertjax.data.codecs.tagging.sentences import Sentence, check_length
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, RowError, decode, read_lines
from bertjax.errors import UserError
from bertjax.words import CHARACTERS, WORDS, composed

_EXPECTED = "a blank line after each sentence"
_DOCUMENT_START = b"-DOCSTART-"
_CONLLU_COLUMNS = 10
_COMMENT = b"# "  # comments may contain tabs
_CONLLU_NAMES = (".conllu", ".conllu.gz")
# Rows of CoNLL-U that are not words: a comment, a token of several words (8-9), an omitted word (8.1).
_NO_WORD = re.compile(rb"#|\d+[-.]\d+\s")
# Comments of KLUE-NER, such as "##klue-ner-v1_dev_00000-wikitree" and the sentence. A character has no such row.
_KLUE_COMMENT = re.compile(rb"##")
_CONLLU_ROW = re.compile(rf"\d+([-.]\d+)?(\t[^\t]*){{{_CONLLU_COLUMNS - 1}}}")


@dataclasses.dataclass(frozen=True)
class ColumnsConfig(Constrained, prefix="data"):
    """The columns of words and tags, counted from 0, or from the end as -1, -2, ...

    Attributes:
      word_column: the column of words: 0 in CoNLL-2003, 1 in CoNLL-U.
      tag_column: the column of tags: -1 in CoNLL-2003 (entities), 3 in CoNLL-U (universal parts of speech).
    """

    word_column: int = always(0)
    tag_column: int = always(-1)


class _Format(NamedTuple):
    tabs: bool  # whether single tabs separate columns; otherwise runs of blanks
    conllu: bool
    characters: bool = False


def read(path: Path, columns: ColumnsConfig, bad_rows: BadRows, units: str = WORDS) -> Iterator[Sentence]:
    """Yields the sentences of a file with one word and its tag per line, and a blank line after each sentence.

    Single tabs separate columns if the file has any tab; otherwise runs of blanks do. Lines with -DOCSTART- are
    skipped. A file named .conllu(.gz), or with rows of ten columns, is CoNLL-U: lines that begin with "#" are comments,
    and rows with an id such as 8-9 or 8.1 are skipped. With a character per line, lines that begin with "##" are
    comments, and the word of a row may be a space.

    Args:
      path: the file.
      columns: the columns of words and tags.
      units: whether lines have "words" or "characters".
      bad_rows: how to treat sentences with a bad row: too few columns, an empty word or tag, or a line that is too
        long or not UTF-8.
    Raises:
      UserError: if a row is bad, a sentence is too long, or the word column has ids.
    """
    layout = _format(path)._replace(characters=units == CHARACTERS)
    parse = partial(_sentence, columns=columns, layout=layout)
    for number, sentence in enumerate(bad_rows.sift(map(parse, _groups(path, layout)))):
        if not number:  # the first sentence shows whether the word column has words
            _check_words(sentence, columns, layout)
        yield sentence


def _groups(path: Path, layout: _Format) -> Iterator[list[Line]]:
    """Yields the rows of each sentence."""
    group: list[Line] = []
    no_word = _NO_WORD if layout.conllu else _KLUE_COMMENT if layout.characters else None
    for line in read_lines(path, MAX_LINE_BYTES):
        if line.is_blank or line.content.startswith(_DOCUMENT_START):
            if group:
                yield group
            group = []
        elif not (no_word and no_word.match(line.content)):
            group.append(line)
            check_length(len(group), group[0].where, _EXPECTED, "separate the sentences by blank lines")
    if group:
        yield group


def _sentence(group: list[Line], columns: ColumnsConfig, layout: _Format) -> Sentence:
    words, tags = zip(*(_word_and_tag(line, columns, layout) for line in group), strict=True)
    return Sentence(words, tags, group[0].where)


def _format(path: Path) -> _Format:
    is_named = path.name.endswith(_CONLLU_NAMES)
    for line in read_lines(path, MAX_LINE_BYTES):
        if (tabs := line.content.count(b"\t")) and not line.content.startswith(_COMMENT):
            return _Format(tabs=True, conllu=is_named or tabs + 1 == _CONLLU_COLUMNS)
    return _Format(tabs=False, conllu=is_named)


def _word_and_tag(line: Line, columns: ColumnsConfig, layout: _Format) -> tuple[str, str]:
    """Returns the word and the tag of a row. Strips blanks around words, but no other spaces (U+00A0, U+3000)."""
    text = decode(line)
    cells = (
        [cell.strip("" if layout.characters else " ") for cell in text.split("\t")]
        if layout.tabs
        else re.split(" +", text.strip(" "))
    )
    count = len(cells)
    indices = (columns.word_column, columns.tag_column)
    settings = "word_column {} and tag_column {}".format(*indices)
    if not all(-count <= index < count for index in indices) or len({index % count for index in indices}) < 2:
        got = f"a row of {count} column{'s' if count > 1 else ''}, {' | '.join(cells)!r:.100}"
        separators = "a tab (the file has some)" if layout.tabs else "blanks (the file has no tab)"
        fix = "correct the row, set config.data.word_column and config.data.tag_column to other columns"
        raise RowError(line.where, got, f"columns separated by {separators}, including {settings}", fix)
    word, tag = (cells[index] for index in indices)
    if not (word and tag):
        got = f"an empty {'tag' if word else 'word'} in {' | '.join(cells)!r:.100}"
        raise RowError(line.where, got, f"a word and a tag, {settings}")
    return word, composed(tag)


def _check_words(sentence: Sentence, columns: ColumnsConfig, layout: _Format) -> None:
    """Raises UserError if the words are the ids 1, 2, 3, ... Outside CoNLL-U a single "1" may be a word."""
    count = len(sentence.words)
    if (layout.conllu or count > 1) and sentence.words == tuple(map(str, range(1, count + 1))):
        of_file = " of a file in CoNLL-U" if layout.conllu else ""
        got = f"the ids 1, 2, ... of the words, in column {columns.word_column}{of_file}"
        expected = "words in the column config.data.word_column (counted from 0)"
        fix = "use --config=configs/tagging.py:conllu for CoNLL-U files, or set --config.data.word_column=1 and "
        fix += "--config.data.tag_column=3, or other columns"
        raise UserError(sentence.where, got=got, expected=expected, fix=fix)


def check_is_text(line: str, where: str) -> None:
    """Raises UserError if a line of input for prediction is a row of CoNLL-U; `where` is its position."""
    if _CONLLU_ROW.fullmatch(line):
        expected = "one sentence per line, with words separated by spaces"
        fix = "write the words of each sentence (the second column) on one line"
        raise UserError(where, got="a row of a CoNLL-U file", expected=expected, fix=fix)
