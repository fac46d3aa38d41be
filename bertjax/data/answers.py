"""Questions with answers that stand in a text: the JSON files of SQuAD 1.1 and 2.0, read and checked."""

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertjax.data.lines import BadRows, RowError, check_text, find_files, read_json
from bertjax.errors import UserError

T = TypeVar("T")


class Answer(NamedTuple):
    """An answer's text, and the character of the context where it starts."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a text."""

    id: str
    title: str  # of the article; "" if it has none
    question: str
    context: str
    answers: tuple[Answer, ...]  # all right ones that are known; none if it is impossible
    is_impossible: bool  # the context does not answer it (SQuAD 2.0)
    where: str  # file and place in it, for messages


def read_questions(source: str, key: str, bad_rows: BadRows, *, needs_answers: bool) -> Iterator[Question]:
    """Yields the questions of SQuAD files, in their order.

    Args:
      source: paths or globs of JSON files (.gz too), separated by commas.
      key: the config key that names them, for messages.
      bad_rows: what to do with a question, paragraph or article that is wrong.
      needs_answers: a question without answers is wrong unless it is impossible. If not, answers may be absent.
    Raises:
      UserError: a wrong question, paragraph or article, with its place; a file that is not SQuAD's; or no
        question in the whole source.
    """
    seen: dict[str, str] = {}
    for path in find_files(source, key):
        yield from _questions(path, bad_rows, needs_answers, seen)
    if not seen:
        raise UserError(
            f"config key {key}={source}",
            got=f"no questions ({bad_rows.count} bad rows left out)",
            expected="at least one question",
            fix="check that the file is the one meant",
        )


def _questions(path: Path, bad_rows: BadRows, needs_answers: bool, seen: dict[str, str]) -> Iterator[Question]:
    """Yields the questions of a file; `seen` tells where each id stands."""
    articles = _articles(read_json(path), str(path))
    for article in bad_rows.sift(map(_article, articles, _places(f"{path}: data"))):
        for paragraph in bad_rows.sift(map(_paragraph, article.rows, _places(f"{article.where}.paragraphs"))):
            parse = partial(_question, article.text, paragraph.text, needs_answers, seen)
            yield from bad_rows.sift(map(parse, paragraph.rows, _places(f"{paragraph.where}.qas")))


class _Part(NamedTuple):
    """An article with its paragraphs, or a paragraph with its questions, not yet looked at."""

    text: str  # title or context
    rows: list[Any]
    where: str


def _places(name: str) -> Iterator[str]:
    return (f"{name}[{index}]" for index in itertools.count())


def _articles(value: Any, where: str) -> list[Any]:
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return value["data"]
    keys = f" with the keys {', '.join(map(repr, value)) or 'none'}" if isinstance(value, dict) else ""
    raise UserError(
        where,
        got=_short(f"a JSON {type(value).__name__}{keys}"),
        expected="SQuAD's form: an object with a list of articles under 'data'",
        fix='convert it to {"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}',
    )


def _article(row: Any, where: str) -> _Part:
    paragraphs = _field(row, "paragraphs", list, where)
    return _Part(str(row.get("title", "")), paragraphs, where)


def _paragraph(row: Any, where: str) -> _Part:
    return _Part(_text(row, "context", where), _field(row, "qas", list, where), where)


def _question(title: str, context: str, needs_answers: bool, seen: dict[str, str], row: Any, where: str) -> Question:
    """Returns a question, whose id joins `seen`."""
    id_ = _id(row, where)
    place = f"{where} (id {id_})"
    if id_ in seen:
        raise RowError(place, f"the id of {seen[id_]} again", "an id of its own", "give each question its own id")
    text = _text(row, "question", place)
    is_impossible = "is_impossible" in row and _field(row, "is_impossible", bool, place)
    has_answers = "answers" in row or (needs_answers and not is_impossible)
    found = _field(row, "answers", list, place) if has_answers else []
    answers = tuple(_answer(answer, context, f"{place}, answer {n}") for n, answer in enumerate(found, start=1))
    if is_impossible and answers:
        fix = "set is_impossible to false, or move the answers to plausible_answers"
        raise RowError(place, f"is_impossible with {len(answers)} answers", "answers or is_impossible, not both", fix)
    if needs_answers and not answers and not is_impossible:
        raise RowError(place, "no answers", "an answer, or is_impossible true (SQuAD 2.0)", "add what is missing")
    seen[id_] = where
    return Question(id_, title, text, context, answers, is_impossible, where)


def _answer(row: Any, context: str, where: str) -> Answer:
    """Returns an answer that stands where it says it does."""
    text, start = _text(row, "text", where), _field(row, "answer_start", int, where)
    if start >= 0 and context.startswith(text, start):
        return Answer(text, start)
    right = _nearest(text, context, start)
    fix = "correct the text, which is nowhere in the context" if right is None else f"set answer_start to {right}"
    found = context[max(start, 0) : max(start, 0) + len(text)]
    got = f"{_short(repr(found))} at answer_start {start} of {len(context)} characters"
    raise RowError(where, got, f"the answer, {_short(repr(text))}", fix)


def _nearest(text: str, context: str, start: int) -> int | None:
    """Where `text` occurs in `context` nearest to `start`."""
    start = min(max(start, 0), len(context))
    places = (context.rfind(text, 0, start + len(text)), context.find(text, start))
    return min((place for place in places if place >= 0), key=lambda place: abs(place - start), default=None)


def _id(row: Any, where: str) -> str:
    """Returns the id of a question; some data sets number them."""
    if isinstance(row, dict) and type(row.get("id")) is int:
        return str(row["id"])
    return _text(row, "id", where)


def _text(row: Any, name: str, where: str) -> str:
    value = _field(row, name, str, where)
    if not value.strip():
        raise RowError(where, f"an empty {name!r}", "text", "correct it")
    check_text(value, where)
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
    value: T = row[name]
    return value


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
