"""Sentences of tagged words, for named entities and parts of speech: files of columns in, rows for BERT out.

A word's tag is predicted at its first word piece (BERT section 5.3). A sentence longer than a row is covered by
overlapping windows, so that every word gets a tag, and gets it where the most context is on both sides.
"""

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from bertjax.data import splits
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, OnBadRow, RowError, decode, find_files, read_lines
from bertjax.data.rows.text_rows import unit_rows
from bertjax.data.splits import SplitConfig
from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

MAX_WORDS = 1 << 16  # of a sentence: a longer one is a file without blank lines

_DOCUMENT_START = b"-DOCSTART-"
_CONLLU_COLUMNS = 10
_COMMENT = b"# "  # whatever it may have in tabs
_CONLLU_NAMES = (".conllu", ".conllu.gz")
# What is no word in CoNLL-U: a comment, a token of several words (8-9), a word that was left out (8.1).
_NO_WORD = re.compile(rb"#|\d+[-.]\d+\s")
_CONLLU_ROW = re.compile(rf"\d+([-.]\d+)?(\t[^\t]*){{{_CONLLU_COLUMNS - 1}}}")


@dataclasses.dataclass(frozen=True)
class SentencesConfig(SplitConfig):
    """Which sentences to read; see `read_sentences` for their sources.

    Attributes:
      on_bad_row: "stop" at a malformed row, or "skip" its sentence and count it.
    """

    on_bad_row: OnBadRow


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where words and tags stand in a row, counted from 0, or from the end as -1, -2, ...

    Attributes:
      word_column: where words stand: 0 in CoNLL-2003, 1 in CoNLL-U.
      tag_column: where tags stand: -1 in CoNLL-2003 (entities), 3 in CoNLL-U (universal parts of speech).
    """

    word_column: int
    tag_column: int


class Sentence(NamedTuple):
    """Words, each with a tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str  # "file:line" of the first word


class _Format(NamedTuple):
    tabs: bool  # columns are separated by a tab each; else by runs of blanks
    conllu: bool


def read_splits(config: SentencesConfig, columns: Columns, seed: int) -> tuple[list[Sentence], list[Sentence]]:
    """Returns the training sentences, none without a source of them, and the held-out sentences.

    Args:
      config: which.
      columns: where words and tags stand.
      seed: what draws the held-out sentences, if they have no source.
    Raises:
      UserError: as `read_sentences`; or no sentence on one side.
    """
    return splits.read_splits(config, lambda source, key: _read(config, columns, source, key), seed)


def _read(config: SentencesConfig, columns: Columns, source: str, key: str) -> list[Sentence]:
    bad_rows = BadRows(config.on_bad_row)
    sentences = list(read_sentences(source, key, columns, bad_rows))
    _log.info("read %s: %d sentences, %d with bad rows left out", source, len(sentences), bad_rows.count)
    return sentences


def read_sentences(source: str, key: str, columns: Columns, bad_rows: BadRows) -> Iterator[Sentence]:
    """Yields the sentences of files with a word and its tag on a line, and a blank line after each sentence.

    Columns are separated by a tab each if the file has any tab, else by runs of blanks. Lines of -DOCSTART- are
    left out. A file named .conllu(.gz), or whose rows have ten columns, is CoNLL-U: there lines that begin with
    "#" are comments, and rows with an id such as 8-9 or 8.1 are left out.

    Args:
      source: paths or globs, separated by commas.
      key: the config key that names them, for messages.
      columns: where words and tags stand.
      bad_rows: what to do with a sentence that has a bad row: too few columns, an empty word or tag, a line that
        is too long or not UTF-8.
    Raises:
      UserError: a bad row; a sentence of more than `MAX_WORDS` words; a file without sentences; or one whose word
        column has ids.
    """
    for path in find_files(source, key):
        is_empty = True
        layout = _format(path)
        parse = partial(_sentence, columns=columns, layout=layout)
        for sentence in bad_rows.sift(map(parse, _groups(path, layout))):
            if is_empty:  # the first sentence shows what the columns are
                _check_words(sentence, columns, layout)
            is_empty = False
            yield sentence
        if is_empty:
            raise UserError(
                str(path),
                got=f"no sentences ({bad_rows.count} with bad rows left out)",
                expected="a word and its tag on each line, and a blank line after each sentence",
                fix=f"leave the file out of {key}, or restore it",
            )


def _groups(path: Path, layout: _Format) -> Iterator[list[Line]]:
    """Yields the rows of each sentence."""
    group: list[Line] = []
    for line in read_lines(path, MAX_LINE_BYTES):
        if line.is_blank or line.content.startswith(_DOCUMENT_START):
            if group:
                yield group
            group = []
        elif not (layout.conllu and _NO_WORD.match(line.content)):
            group.append(line)
            _check_length(group)
    if group:
        yield group


def _sentence(group: list[Line], columns: Columns, layout: _Format) -> Sentence:
    words, tags = zip(*(_word_and_tag(line, columns, layout) for line in group), strict=True)
    return Sentence(words, tags, group[0].where)


def _format(path: Path) -> _Format:
    is_named = path.name.endswith(_CONLLU_NAMES)
    for line in read_lines(path, MAX_LINE_BYTES):
        if (tabs := line.content.count(b"\t")) and not line.content.startswith(_COMMENT):
            return _Format(tabs=True, conllu=is_named or tabs + 1 == _CONLLU_COLUMNS)
    return _Format(tabs=False, conllu=is_named)


def _word_and_tag(line: Line, columns: Columns, layout: _Format) -> tuple[str, str]:
    """The word and the tag of a row. Blanks around them are no part of them; other spaces (U+00A0, U+3000) are."""
    text = decode(line)
    cells = [cell.strip(" ") for cell in text.split("\t")] if layout.tabs else re.split(" +", text.strip(" "))
    count = len(cells)
    places = columns.word_column, columns.tag_column
    named = f"word_column {places[0]} and tag_column {places[1]}"
    separated = "a tab (the file has some)" if layout.tabs else "blanks (the file has no tab)"
    if not all(-count <= place < count for place in places) or len({place % count for place in places}) < 2:
        got = f"a row of {count} column{'s' if count > 1 else ''}, {' | '.join(cells)!r:.100}"
        fix = "correct the row, set config.data.word_column and config.data.tag_column to the columns meant"
        raise RowError(line.where, got, f"columns separated by {separated}, two of them {named}", fix)
    word, tag = (cells[place] for place in places)
    if not (word and tag):
        got = f"an empty {'tag' if word else 'word'} in {' | '.join(cells)!r:.100}"
        raise RowError(line.where, got, f"a word and a tag, {named}")
    return word, tag


def _check_words(sentence: Sentence, columns: Columns, layout: _Format) -> None:
    """Raises UserError if the words are the ids 1, 2, 3, ...; outside CoNLL-U a single "1" may be a word."""
    count = len(sentence.words)
    if (layout.conllu or count > 1) and sentence.words == tuple(map(str, range(1, count + 1))):
        raise UserError(
            sentence.where,
            got=f"the ids 1, 2, ... of the words, in column {columns.word_column}"
            + (" of a file in CoNLL-U" if layout.conllu else ""),
            expected="words in the column that config.data.word_column names (columns count from 0)",
            fix="use --config=configs/tagging.py:conllu for CoNLL-U files, or set --config.data.word_column=1 and "
            "--config.data.tag_column=3 or the columns meant",
        )


def check_is_text(line: str, where: str) -> None:
    """Raises UserError if a line of text to predict on is a row of CoNLL-U; `where` names the line."""
    if _CONLLU_ROW.fullmatch(line):
        raise UserError(
            where,
            got="a row of a CoNLL-U file",
            expected="a sentence in each line, its words separated by spaces",
            fix="write the words of each sentence (the second column) to a line",
        )


def _check_length(group: list[Line]) -> None:
    if len(group) > MAX_WORDS:
        raise UserError(
            group[0].where,
            got=f"a sentence of more than {MAX_WORDS:,} words",
            expected="a blank line after each sentence",
            fix="separate the sentences with blank lines",
        )


def rows(words: Sequence[str], tokenizer: WordPiece, seq_len: int) -> list[dict[str, np.ndarray]]:
    """The rows that together own each word of a sentence once; one row if the sentence fits. See `unit_rows`.

    A word that normalizes to nothing becomes [UNK].

    Args:
      words: those of a sentence, one or more.
      tokenizer: splits words into pieces.
      seq_len: tokens of a row at most.
    Raises:
      UserError: `seq_len` leaves no room for a word.
    """
    if seq_len < 3:
        raise UserError(
            "config key data.seq_len", got=seq_len, expected="at least 3: [CLS], a piece, [SEP]", fix="use 128"
        )
    pieces = [ids or [tokenizer.unk_id] for ids in tokenizer.encode_batch(words)]
    return list(unit_rows([pieces], tokenizer, seq_len))


def with_labels(
    windows: Sequence[Mapping[str, np.ndarray]], tag_ids: Int[np.ndarray, " words"]
) -> Iterator[dict[str, np.ndarray]]:
    """The rows of a sentence together with what is to be learned.

    Args:
      windows: all its rows.
      tag_ids: the tag of each of its words.
    Yields:
      a row; labels [S] int32: the tag at the first piece of each word owned, else 0; and label_weights [S] float32: 1
      there, else 0.
    """
    owned = np.cumsum([len(row["unit_starts"]) for row in windows])
    for row, tags in zip(windows, np.split(tag_ids, owned[:-1]), strict=True):
        labels, weights = np.zeros_like(row["input_ids"]), np.zeros(len(row["input_ids"]), np.float32)
        labels[row["unit_starts"]], weights[row["unit_starts"]] = tags, 1
        yield {**row, "labels": labels, "label_weights": weights}


def check_labels(labels: Sequence[str]) -> None:
    """Raises UserError unless there are tags to tell apart."""
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise UserError(
            "config key data.labels",
            got=f"{', '.join(labels) or 'no tags'}",
            expected="two or more different tags: of data.source to train on, or of a tagger in init_from",
            fix="set --config.data.source=FILE, or --config.data.labels=\"('O', 'B-PER', 'I-PER')\"",
        )


def check_tags(sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Raises UserError if a training sentence has a tag that is not to be learned."""
    for sentence in sentences:
        unknown = next((tag for tag in sentence.tags if tag not in labels), None)
        if unknown is not None:
            raise UserError(
                f"{sentence.where}, the sentence that begins there",
                got=f"tag {unknown!r}, which data.labels does not have",
                expected="one of " + ", ".join(labels),
                fix="leave data.labels out for the tags of the training sentences, or correct the tag",
            )


def check_held_out(sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Warns of held-out tags that are not learned. Raises UserError if no other is there, but O."""
    tags = Counter(tag for sentence in sentences for tag in sentence.tags)
    unknown = {tag: count for tag, count in sorted(tags.items()) if tag not in labels}
    if unknown and not tags.keys() & set(labels) - {"O"}:
        raise UserError(
            f"{sentences[0].where} and the sentences that follow",
            got=f"the tags {', '.join(sorted(tags)):.200}",
            expected="tags that the model has: " + ", ".join(labels),
            fix="check that the file and config.data.tag_column are those meant, or write the tags as the model does",
        )
    if unknown:
        counts = ", ".join(f"{tag} at {count} words" for tag, count in unknown.items())
        _log.warning("held-out tags that are not learned, so never predicted: %s", counts)
