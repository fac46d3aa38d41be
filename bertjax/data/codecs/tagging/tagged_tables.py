"""Reads tagged sentences from tables: lists of words and tags, texts with tagged spans, or a word in each row."""

import dataclasses
import itertools
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from bertjax.config import Constrained, one_of
from bertjax.data.codecs.tagging.sentences import UNITS, Sentence, check_length, offsets_of, words_of
from bertjax.data.readers import columnar, tables
from bertjax.data.readers.kinds import TABLES, find_files, suffix_of
from bertjax.data.readers.lines import BadRows, RowError, check_text
from bertjax.data.readers.tables import Row, value_of
from bertjax.words import WORDS, composed

_log = logging.getLogger(__name__)

# The content of each column, and the names of which a table must have exactly one if the config names none.
_COLUMNS = {
    "text_field": ("the words or the text", ("tokens", "words", "text", "Word", "word")),
    "tags_field": ("the tags or the spans", ("ner_tags", "ner", "tags", "labels", "label", "entities", "Tag", "tag")),
    "sentence_field": ("the numbers of the sentences", ("Sentence #", "sentence_id", "sentence_idx")),
}
# The names of start, end and type of a span: those of doccano, of spaCy, and of our predictions.
_SPAN_KEYS = (("start_offset", "end_offset", "label"), ("start", "end", "label"), ("start", "end", "type"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFields(Constrained, prefix="data"):
    """The columns of tables of tagged sentences, and the division of their texts into words.

    Attributes:
      text_field: the column of words, texts or, in training, a single word; see docs/reference/inputs.md. Prediction on
        tables needs it.
      tags_field: the training column of tags, spans or a single tag; see docs/reference/inputs.md.
      sentence_field: the column that numbers the sentences in a table with a word in each row. Default: "Sentence #",
        sentence_id or sentence_idx.
      split_punctuation: whether punctuation marks are separate words in texts to predict on, and in texts with tagged
        spans. Otherwise words are separated by spaces only.
      units: what has tags: "words", or "characters" as in KLUE-NER. A token of the running text learns the tag of its
        first character and predicts those of all. Spaces have no tags.
      header: whether the first row of a TSV or CSV table has the names of the columns; if not, they are "0", "1", ...
      separator: the separator of the fields of a line; "" to infer it from the file name.
    """

    text_field: str = ""
    tags_field: str = ""
    sentence_field: str = ""
    split_punctuation: bool = True
    units: Annotated[str, one_of(*UNITS)] = WORDS
    header: bool = True
    separator: str = ""


class _Cells(NamedTuple):
    """The values of a row."""

    text: object
    tags: object
    number: str | None  # of the sentence; None in a table without such numbers
    names: tuple[str, str]  # the columns of text and tags
    where: str

    @property
    def has_word(self) -> bool:
        """Whether the row is one word of a sentence."""
        return self.number is not None and isinstance(self.text, str) and isinstance(self.tags, str)


class _Span(NamedTuple):
    start: int
    end: int
    kind: str


def files_of(source: str, key: str) -> Sequence[str | Path]:
    """Returns the files of a source; or the source itself, if it is not files, but one table.

    Args:
      source: comma-separated paths and globs, `hf:FOLDER`, or `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`.
      key: the config key of the source, for messages.
    Raises:
      UserError: if a file does not exist or has another structure.
    """
    if source.startswith(("tfds:", columnar.DATASET)):
        return [source]
    also = "tfds:NAME[:SPLIT] or hf:FOLDER"
    return find_files(source, key, TABLES, "a word and its tag on each line", also)


def is_table(file: str | Path) -> bool:
    """Returns whether a result of `files_of` is a table. A `.tsv` file is a file of columns instead."""
    return isinstance(file, str) or suffix_of(file) in set(TABLES) - {".tsv"}


def read(source: str | Path, key: str, fields: TableFields, bad_rows: BadRows) -> Iterator[Sentence]:
    """Yields the sentences of a table.

    The values of a row show its form:
    - a list of words, and a list of their tags. Numbers are tags if the metadata of the file names them;
    - a text, and a list of spans: [start, end, type], or objects with `start_offset` (or `start`), `end_offset` (`end`)
      and `label` (`type`). Offsets count characters, that is code points; the end is exclusive. The tags are BIO. A
      word with a border of a span inside is divided there, and the log has the number of such words;
    - a word and a tag. A sentence begins where the number of the sentence is not empty and differs from the row before.

    Args:
      source: a result of `files_of` that `is_table`.
      key: the config key of the source, for messages.
      fields: the columns.
      bad_rows: how to treat a sentence with a bad row: one of another form, with an empty word or tag, with more or
        fewer tags than words, or with a span that is empty, overlaps another or exceeds the text.
    Raises:
      UserError: if a row is bad, a sentence is too long, or the columns are ambiguous.
    """
    table = _Table(fields)
    of_rows = BadRows("skip")  # a sentence with the error of a row raises it
    rows = tables.read_rows(str(source), key, fields.header, fields.separator, of_rows)
    cells = of_rows.marked(of_rows.sift(map(table.cells, rows)))
    yield from bad_rows.sift(map(table.sentence, _groups(cells)))
    if table.divided:
        _log.info("%s: words divided where a span begins or ends: %d", source, table.divided)


def _groups(rows: Iterator[_Cells | RowError]) -> Iterator[list[_Cells | RowError]]:
    """Yields the rows of each sentence. A bad row between words belongs to the sentences before and after it."""
    group: list[_Cells | RowError] = []
    has_words = False
    number = ""
    for row in rows:
        begins = not has_words
        if isinstance(row, _Cells):
            has_words = row.has_word
            begins = not has_words or row.number not in ("", number)
            number = row.number or ""
        if begins and group:
            yield group
            group = group[-1:] if has_words and isinstance(group[-1], RowError) else []
        group.append(row)
        fix = "correct config.data.sentence_field"
        check_length(len(group), group[0].where, "numbers of sentences that change", fix)
    if group:
        yield group


class _Table:
    """The conversion of the rows of one table to sentences.

    Attributes:
      divided: the number of words that were divided at the borders of spans.
    """

    def __init__(self, fields: TableFields) -> None:
        self.divided = 0
        self._fields = fields
        self._names_of: dict[tuple[str, ...], Mapping[str, str]] = {}  # of rows with these columns

    def cells(self, row: Row) -> _Cells:
        """Returns the values of a row."""
        names = self._names(row)
        values = [value_of(row, name, f"data.{key}") if name else None for key, name in names.items()]
        text, tags, number = values
        number = str("" if number is None else number).strip() if names["sentence_field"] else None
        return _Cells(text, tags, number, (names["text_field"], names["tags_field"]), row.where)

    def _names(self, row: Row) -> Mapping[str, str]:
        """Returns the column for each key. The rows of a table in JSON may have different columns."""
        columns = tuple(row.values)
        if columns not in self._names_of:
            self._names_of[columns] = {key: getattr(self._fields, key) or _column(row, key) for key in _COLUMNS}
        return self._names_of[columns]

    def sentence(self, group: Sequence[_Cells | RowError]) -> Sentence:
        """Returns the sentence of its rows. Raises RowError for a bad row."""
        rows = [_good(cells) for cells in group]
        text, tags, *_, where = rows[0]
        of_text, of_tags = (f", column {name!r}" for name in rows[0].names)
        if rows[0].has_word:
            words = tuple(_text(row.text, row.where + of_text, self._fields.units) for row in rows)
            return Sentence(words, tuple(_text(row.tags, row.where + of_tags, "tag") for row in rows), where)
        if isinstance(text, list) and isinstance(tags, list):
            words = words_in(text, where + of_text, self._fields.units)
            if len(words) != len(tags):
                raise RowError(where, f"{len(words)} words and {len(tags)} tags", "a tag for each word")
            return Sentence(words, tuple(_text(tag, where + of_tags, "tag") for tag in tags), where)
        if isinstance(text, str) and isinstance(tags, list):
            spans = _spans(tags, len(text), where + of_tags)
            return Sentence(*self._words_and_tags(text, spans, where), where)
        expected = "a list of words and a list of tags, or a text and a list of spans"
        fix = "set --config.data.text_field and --config.data.tags_field to other columns"
        if isinstance(text, str) and isinstance(tags, str):
            expected += ", or a word and a tag with the number of their sentence"
            fix = "set --config.data.sentence_field to the column of the numbers of the sentences"
        raise RowError(where, f"{type(text).__name__}{of_text}, and {type(tags).__name__}{of_tags}", expected, fix)

    def _words_and_tags(self, text: str, spans: Sequence[_Span], where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the words of a text, divided at the borders of spans, and their tags in BIO."""
        words = words_of(text, self._fields.units, split_punctuation=self._fields.split_punctuation)
        if not words:
            raise RowError(where, "an empty text", "a text", "add the text or delete the row")
        borders = sorted({border for start, end, _ in spans for border in (start, end)})
        parts: list[tuple[int, int]] = []
        for start, end in offsets_of(words, text):
            cuts = borders[bisect_right(borders, start) : bisect_left(borders, end)]
            self.divided += bool(cuts)
            parts += itertools.pairwise((start, *cuts, end))
        starts = [start for start, _ in parts]
        tags = ["O"] * len(parts)
        for start, end, kind in spans:
            first = bisect_left(starts, start)
            stop = bisect_left(starts, end)
            if first == stop:
                raise RowError(where, f"a span of white space, {start} to {end}", "spans with words")
            tags[first:stop] = [f"B-{kind}"] + [f"I-{kind}"] * (stop - first - 1)
        return tuple(text[start:end] for start, end in parts), tuple(tags)


def _column(row: Row, key: str) -> str:
    """Returns the column with a usual name for the config key `data.KEY`; "" in a table without sentence numbers.

    Args:
      row: the row.
      key: the end of the config key.
    Raises:
      RowError: if there is no such column, or several.
    """
    content, usual = _COLUMNS[key]
    names = [name for name in usual if name in row.values]
    if len(names) > 1 or (not names and key != "sentence_field"):
        expected = f"config.data.{key}, or exactly one of the columns {', '.join(map(repr, usual))}"
        fix = f"set --config.data.{key} to the column of {content}"
        raise RowError(row.where, f"the columns {', '.join(map(repr, row.values))}", expected, fix)
    return names[0] if names else ""


def _good(cells: _Cells | RowError) -> _Cells:
    if isinstance(cells, RowError):
        raise cells
    return cells


def words_in(values: Sequence[object], where: str, units: str) -> tuple[str, ...]:
    """Returns the words or characters of a list.

    Raises:
      RowError: if there is none, or one of them is empty, not valid text, or a word of spaces.
    """
    if not values:
        raise RowError(where, "an empty list", f"a list of {units}")
    return tuple(_text(value, where, units) for value in values)


def _text(value: object, where: str, what: str) -> str:
    """Returns a tag, or one of the units in `what`, which is also how messages name it."""
    what = what.removesuffix("s")
    if what == "tag" and isinstance(value, int):
        fix = "write the names of the tags, or read a file of datasets that has its metadata (hf:FOLDER, .parquet)"
        raise RowError(where, f"the number {value} as a tag", "names, or metadata with the names (ClassLabel)", fix)
    if not isinstance(value, str):
        raise RowError(where, f"{type(value).__name__} as a {what}", "text")
    if not value.strip("" if what == "character" else " "):
        raise RowError(where, f"an empty {what}", "text")
    check_text(value, where)
    return composed(value) if what in ("tag", "type") else value


def _spans(values: Sequence[object], length: int, where: str) -> list[_Span]:
    """Returns the spans of a text of `length` characters, in order."""
    spans = sorted(_span(value, length, where) for value in values)
    for one, other in itertools.pairwise(spans):
        if other.start < one.end:
            got = f"overlapping spans: {list(one)} and {list(other)}"
            raise RowError(where, got, "spans without common characters", "keep one of them")
    return spans


def _span(value: object, length: int, where: str) -> _Span:
    parts = value
    if isinstance(value, Mapping):
        parts = [value[key] for key in next((keys for keys in _SPAN_KEYS if set(keys) <= value.keys()), ())]
    if not (isinstance(parts, list) and [type(part) for part in parts] == [int, int, str]):
        expected = "[start, end, type], or an object with start_offset, end_offset and label; offsets are integers"
        raise RowError(where, f"the span {value!r:.100}", expected)
    span = _Span(*parts)
    if not 0 <= span.start < span.end <= length:
        expected = f"0 <= start < end <= {length}, the number of characters of the text"
        raise RowError(where, f"the span {list(span)}", expected)
    return span._replace(kind=_text(span.kind, where, "type"))
