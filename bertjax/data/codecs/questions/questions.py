"""Reads and checks questions with answers in a text: the files of SQuAD 1.1 and 2.0, flat rows, and MRQA's lines.

The rows of a table are read as the paragraphs of a SQuAD file, so that all forms have the same checks:
- a flat row has `context`, `question`, `answers` and optionally `id`, `title` and `is_impossible`, as in `squad` and
  `squad_v2` of Hugging Face. `answers` is an object with the lists `text` and `answer_start`, or a list of objects with
  one of each. A question with empty lists is impossible. A question without an id gets the number of its row;
- MRQA's lines have `context` and `qas` after a line with a `header` (Fisch et al. 2019). Training learns the spans of
  `detected_answers`. Scoring uses `answers`, as MRQA's script does.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertjax.config import always
from bertjax.data import splits
from bertjax.data.readers import columnar, kinds, lines, tables
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, OnBadRow, RowError
from bertjax.data.readers.sources import MAX_DOCUMENT_BYTES
from bertjax.data.readers.tables import Row
from bertjax.errors import UserError
from bertjax.words import composed

_log = logging.getLogger(__name__)

T = TypeVar("T")
# The validation split depends only on the order of contexts, so that runs with different seeds are comparable.
_SPLIT_SEED = 0
_KINDS = ((*kinds.JSON, *kinds.COLUMNAR), "SQuAD's JSON")
_ARTICLES = ("a", "an", "the")


@dataclasses.dataclass(frozen=True)
class QuestionsConfig(splits.SplitConfig):
    """The questions to read: paths or globs of files, separated by commas, or `hf:FOLDER`. Contexts are never divided.

    A `.jsonl`, `.parquet` or `.arrow` file is a table of flat rows or of MRQA's lines. So is a `.json` file with an
    array or lines of such objects. Other `.json` files, and files of other names, have SQuAD's form.

    Attributes:
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
    """

    on_bad_row: OnBadRow = always("stop")


class Answer(NamedTuple):
    """An answer's text, and the character of the context at which it starts."""

    text: str
    start: int | None  # None if the text is not at the stated position


class Question(NamedTuple):
    """A question about a text."""

    id: str
    title: str  # the title of the article; "" if it has none
    question: str
    context: str
    answers: tuple[Answer, ...]  # all known correct answers; empty if it is impossible or is input for prediction
    is_impossible: bool  # whether the context has no answer (SQuAD 2.0)
    where: str  # the file and the position in it, for messages
    columns: Mapping[str, Any] | None = None  # the values of its row, to predict


def read_splits(config: QuestionsConfig) -> Iterator[tuple[str, Question]]:
    """Yields each question with its split, "train" or "valid". Questions with the same context are in one split.

    Raises:
      UserError: if `read_questions` or `splits.read_splits` raises it.
    """

    contexts: dict[bytes, int] = {}  # by their digests, to save memory

    def read(source: str, key: str) -> Iterator[Question]:
        bad_rows = BadRows(config.on_bad_row)
        count = 0
        for question in read_questions(source, key, bad_rows, aligned=key == "data.source"):
            count += 1
            yield question
        _log.info("read %s: %d questions%s", source, count, bad_rows.skipped())

    def number(question: Question, _: int) -> int:
        digest = hashlib.blake2b(question.context.encode(), digest_size=16).digest()
        return contexts.setdefault(digest, len(contexts))

    return splits.read_splits(config, read, _SPLIT_SEED, number, "contexts")


def read_questions(source: str, key: str, bad_rows: BadRows, *, aligned: bool) -> Iterator[Question]:
    """Yields the questions of files, in their order.

    Args:
      source: paths or globs of files (text files also .gz), separated by commas, or `hf:FOLDER`.
      key: the config key of the source, for messages.
      bad_rows: how to treat bad questions, paragraphs, articles and rows.
      aligned: whether an answer that is not at its stated position is bad. Only training uses the position.
    Raises:
      UserError: if a question, paragraph, article or row is bad, with its position, a file is in none of the forms, or
        the whole source has no question.
    """
    seen: dict[str, str] = {}
    numbers = itertools.count(1)
    is_folder = source.startswith(columnar.DATASET)
    paths = tables.find_files(source, key) if is_folder else kinds.find_files(source, key, *_KINDS, also="hf:FOLDER")
    for path in paths:
        if is_table(path, key):
            paragraphs = bad_rows.sift(map(_of_row, _rows(path, bad_rows), numbers))
        else:
            paragraphs = _paragraphs(lines.read_json(path), str(path), bad_rows)
        yield from _questions(paragraphs, bad_rows, aligned, seen)
    if not seen:
        got = f"no questions{bad_rows.skipped()}"
        raise UserError(f"config key {key}={source}", got=got, expected="at least one question", fix="check the source")


def is_table(path: Path, key: str) -> bool:
    """Returns whether a file is a table of rows; otherwise it has SQuAD's form.

    Args:
      path: the file.
      key: the config key or --flag that names it, for messages.
    Raises:
      UserError: if the file has another form by its name, or cannot be read.
    """
    kind = kinds.kind_of(path, key, *_KINDS)
    if kind != ".json":
        return bool(kind)
    first = next((line.content for line in lines.read_lines(path, MAX_LINE_BYTES) if not line.is_blank), b"")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):  # a value of several lines
        return first.lstrip().startswith(b"[")
    return isinstance(value, list) or (isinstance(value, dict) and not {"context", "header"}.isdisjoint(value))


def read_input(path: Path, bad_rows: BadRows) -> Iterator[Question]:
    """Yields the questions of a table that is input for prediction. Their answers are ignored."""
    return _unanswered(_rows(path, bad_rows), bad_rows)


def parse_questions(text: str, bad_rows: BadRows) -> Iterator[Question]:
    """Yields the questions of a SQuAD file that is input for prediction. Its answers are ignored."""
    return _questions(_paragraphs(lines.parse_json(text, "input"), "input", bad_rows), bad_rows, None, {})


def questions_of(values: Iterable[Any], bad_rows: BadRows, first: int = 1) -> Iterator[Question]:
    """Yields the question of each dict with "question", "context" and optionally "id", by default its number.

    Messages and ids count the values from `first` on.
    """

    def row(number: int, value: Any) -> Row:
        where = f"input {number}"
        if not isinstance(value, dict):
            got = f"an object of type {type(value).__name__}"
            expected = 'a dict with "question" and "context"'
            raise RowError(where, got, expected, 'pass {"question": "...", "context": "..."}')
        return Row(value, where)

    return _unanswered(itertools.starmap(row, enumerate(values, first)), bad_rows, first)


def _unanswered(rows: Iterator[Row], bad_rows: BadRows, first: int = 1) -> Iterator[Question]:
    """Yields the questions of a table's rows without their answers."""
    return _questions(bad_rows.sift(map(_of_row, rows, itertools.count(first))), bad_rows, None, {})


def _rows(path: Path, bad_rows: BadRows) -> Iterator[Row]:
    return tables.read_file(path, True, bad_rows, limit=MAX_DOCUMENT_BYTES)


class _Paragraph(NamedTuple):
    """A context with its unchecked questions, which have the fields of SQuAD or MRQA."""

    title: str
    row: dict[str, Any]  # has the context
    where: str
    questions: list[Any]
    positions: Iterable[str]  # of the questions
    columns: Mapping[str, Any] | None = None  # the values of the row of a table


def _paragraphs(value: Any, where: str, bad_rows: BadRows) -> Iterator[_Paragraph]:
    """Yields the paragraphs of a SQuAD file's JSON value."""

    def article(row: Any, where: str) -> tuple[str, list[Any], str]:
        return str(row.get("title", "")) if isinstance(row, dict) else "", _field(row, "paragraphs", list, where), where

    def paragraph(title: str, row: Any, where: str) -> _Paragraph:
        return _Paragraph(title, row, where, _field(row, "qas", list, where), _positions(f"{where}.qas"))

    for title, rows, place in bad_rows.sift(map(article, _articles(value, where), _positions(f"{where}: data"))):
        yield from bad_rows.sift(map(partial(paragraph, title), rows, _positions(f"{place}.paragraphs")))


def _of_row(row: Row, number: int) -> _Paragraph:
    """Returns the paragraph of a table's row; `number` is the id of a flat row without an id."""
    where = row.where
    values = {name: value for name, value in row.values.items() if value is not None}
    title = str(values.get("title", ""))
    if "qas" in values:
        rows = _field(values, "qas", list, where)
        return _Paragraph(title, values, where, rows, _positions(f"{where}: qas"), row.values)
    if "header" in values and "context" not in values:
        return _Paragraph(title, values, where, [], [])
    if "qid" not in values:
        values.setdefault("id", str(number))
    answers = values.get("answers")
    if (answers.get("text") if isinstance(answers, dict) else answers) == []:
        values.setdefault("is_impossible", True)
    return _Paragraph(title, values, where, [values], [where], row.values)


def _questions(
    paragraphs: Iterable[_Paragraph], bad_rows: BadRows, aligned: bool | None, seen: dict[str, str]
) -> Iterator[Question]:
    """Yields the questions of paragraphs.

    Args:
      paragraphs: the paragraphs.
      bad_rows: how to treat bad questions.
      aligned: whether an answer that is not at its stated position is bad; None to ignore answers.
      seen: the position of each id.
    """
    for paragraph in paragraphs:
        parse = lines.of_row(paragraph.columns or {})(partial(_question, paragraph, aligned, seen))
        yield from bad_rows.sift(map(parse, paragraph.questions, paragraph.positions))


def _positions(name: str) -> Iterator[str]:
    return (f"{name}[{index}]" for index in itertools.count())


def _articles(value: Any, where: str) -> list[Any]:
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return value["data"]
    keys = f" with the keys {', '.join(map(repr, value)) or 'none'}" if isinstance(value, dict) else ""
    expected = "SQuAD's form: an object with a list of articles under 'data'"
    fix = 'convert it to {"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}, or to a table of questions'
    raise UserError(where, got=_short(f"a JSON {type(value).__name__}{keys}"), expected=expected, fix=fix)


def _question(paragraph: _Paragraph, aligned: bool | None, seen: dict[str, str], row: Any, where: str) -> Question:
    """Returns a question, and adds its id to `seen`. If the context is bad, every question of the paragraph is bad."""
    context = _text(paragraph.row, "context", paragraph.where)
    id_ = _id(row, where)
    position = f"{where} (id {id_})"
    if id_ in seen:
        raise RowError(position, f"the same id as {seen[id_]}", "a unique id", "give each question its own id")
    text = _text(row, "question", position)
    answers, is_impossible = ((), False) if aligned is None else _answers(row, context, aligned, position)
    seen[id_] = where
    columns = paragraph.columns if aligned is None else None
    return Question(id_, paragraph.title, text, context, answers, is_impossible, where, columns)


def _answers(row: Any, context: str, aligned: bool, where: str) -> tuple[tuple[Answer, ...], bool]:
    """Returns the answers of a question, and whether it is impossible."""
    is_impossible = "is_impossible" in row and _field(row, "is_impossible", bool, where)
    rows = [] if is_impossible and "answers" not in row else _answer_rows(row, context, aligned, where)
    parse = _aligned_answer if aligned else _answer
    answers = tuple(parse(answer, context, f"{where}, answer {n}") for n, answer in enumerate(rows, start=1))
    if is_impossible and answers:
        fix = "set is_impossible to false, or move the answers to plausible_answers"
        raise RowError(where, f"is_impossible with {len(answers)} answers", "answers or is_impossible, not both", fix)
    if not answers and not is_impossible:
        fix = "add an answer, or set is_impossible"
        raise RowError(where, "no answers", "an answer, or is_impossible true (SQuAD 2.0)", fix)
    return answers, is_impossible


def _answer_rows(row: Any, context: str, aligned: bool, where: str) -> list[Any]:
    """Returns the answers of a question in SQuAD's form: a list of objects with "text" and "answer_start"."""
    if "detected_answers" in row:
        if not aligned:
            return [{"text": text} for text in _field(row, "answers", list, where)]
        detected = enumerate(_field(row, "detected_answers", list, where), start=1)
        return [span for n, answer in detected for span in _spans(answer, context, f"{where}, detected answer {n}")]
    if not isinstance(row.get("answers"), dict):
        return _field(row, "answers", list, where)
    answers = row["answers"]
    texts = _field(answers, "text", list, where)
    if not aligned and answers.get("answer_start") is None:
        return [{"text": text} for text in texts]
    starts = _field(answers, "answer_start", list, where)
    if len(texts) != len(starts):
        got = f"{len(texts)} texts and {len(starts)} starts of answers"
        raise RowError(where, got, "a start for each text", "correct the lists 'text' and 'answer_start'")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _spans(row: Any, context: str, where: str) -> Iterator[dict[str, Any]]:
    """Yields the places of a detected answer of MRQA. Its text may be normalized; that of the context is the answer."""
    text = _text(row, "text", where)
    for span in _field(row, "char_spans", list, where):
        match span:
            case [int() as start, int() as last] if 0 <= start <= last < len(context):
                answer = context[start : last + 1]
            case _:
                expected = f"characters of the context, [first, last] below {len(context)}"
                raise RowError(where, f"{_short(repr(span))} in 'char_spans'", expected)
        if _letters(answer) != _letters(text):
            got = f"{_short(repr(answer))} at characters {start} to {last}"
            fix = "correct char_spans, whose second number is that of the last character"
            raise RowError(where, got, f"the answer, {_short(repr(text))}", fix)
        yield {"text": answer, "answer_start": start}


def _letters(text: str) -> str:
    """Returns what normalization leaves of a text: its letters and digits, without English articles."""
    words = ("".join(filter(str.isalnum, word)) for word in composed(text.casefold()).split())
    return "".join(word for word in words if word not in _ARTICLES)


def _answer(row: Any, context: str, where: str) -> Answer:
    """Returns an answer whose stated position may be wrong."""
    text = _as_in(context, _text(row, "text", where))
    start = row.get("answer_start")
    return Answer(text, start if type(start) is int and _is_at(text, context, start) else None)


def _aligned_answer(row: Any, context: str, where: str) -> Answer:
    """Returns an answer after checking its stated position."""
    text = _as_in(context, _text(row, "text", where))
    start = _field(row, "answer_start", int, where)
    if _is_at(text, context, start):
        return Answer(text, start)
    right = _nearest(text, context, start)
    fix = "correct the text, which is not in the context" if right is None else f"set answer_start to {right}"
    characters = context[max(start, 0) : max(start, 0) + len(text)]
    got = f"{_short(repr(characters))} at answer_start {start} of {len(context)} characters"
    raise RowError(where, got, f"the answer, {_short(repr(text))}", fix)


def _as_in(context: str, answer: str) -> str:
    """Returns an answer in the Unicode normalization form in which the context has it, if it has it in another one."""
    forms = (unicodedata.normalize(form, answer) for form in ("NFC", "NFD"))
    return next((text for text in (answer, *forms) if text in context), answer)


def _is_at(text: str, context: str, start: int) -> bool:
    return start >= 0 and context.startswith(text, start)


def _nearest(text: str, context: str, start: int) -> int | None:
    """Returns the position of `text` in `context` that is nearest to `start`."""
    start = min(max(start, 0), len(context))
    positions = (context.rfind(text, 0, start + len(text)), context.find(text, start))
    return min((place for place in positions if place >= 0), key=lambda place: abs(place - start), default=None)


def _id(row: Any, where: str) -> str:
    """Returns the id of a question, which MRQA calls "qid". Some data sets use numbers."""
    name = "qid" if isinstance(row, dict) and "qid" in row and "id" not in row else "id"
    if isinstance(row, dict) and type(row.get(name)) is int:
        return str(row[name])
    return _text(row, name, where)


def _text(row: Any, name: str, where: str) -> str:
    value = _field(row, name, str, where)
    if not value.strip():
        raise RowError(where, f"an empty {name!r}", "text", "correct it")
    lines.check_text(value, where)
    return value


def _field(row: Any, name: str, kind: type[T], where: str) -> T:
    if not isinstance(row, dict):
        raise RowError(where, f"a JSON {type(row).__name__}", f"an object with {name!r}", "correct it")
    if name not in row:
        keys = _short(", ".join(map(repr, row)) or "none")
        raise RowError(where, f"no {name!r}; its keys: {keys}", f"SQuAD's {name!r}", "add it")
    if type(row[name]) is not kind:
        got = f"a JSON {type(row[name]).__name__} under {name!r}"
        raise RowError(where, got, f"a JSON {kind.__name__}", "correct it")
    return row[name]


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
