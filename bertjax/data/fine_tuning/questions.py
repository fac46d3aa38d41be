"""Questions with answers that stand in a text: the JSON files of SQuAD 1.1 and 2.0, read and checked."""

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from bertjax.data import splits
from bertjax.data.readers.lines import BadRows, OnBadRow, RowError, check_text, find_files, parse_json, read_json
from bertjax.data.splits import SplitConfig
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

T = TypeVar("T")
# Contexts are held out by their numbers alone, so that runs with other seeds are scored on the same ones.
_SPLIT_SEED = 0


@dataclasses.dataclass(frozen=True)
class QuestionsConfig(SplitConfig):
    """Which questions to read: paths or globs of SQuAD files, separated by commas. Contexts are held out.

    Attributes:
      on_bad_row: "stop" at a malformed question, paragraph or article, or "skip" and count it.
    """

    on_bad_row: OnBadRow


class Answer(NamedTuple):
    """An answer's text, and the character of the context where it starts."""

    text: str
    start: int | None  # None for one that does not stand where it is said to


_ParseAnswer = Callable[[Any, str, str], Answer]  # from its row, the context, and its place for messages


class Question(NamedTuple):
    """A question about a text."""

    id: str
    title: str  # of the article; "" if it has none
    question: str
    context: str
    answers: tuple[Answer, ...]  # all right ones that are known; none if it is impossible, or to be answered
    is_impossible: bool  # the context does not answer it (SQuAD 2.0)
    where: str  # file and place in it, for messages


def read_splits(config: QuestionsConfig) -> Iterator[tuple[str, Question]]:
    """Yields each question with its split, "train" or "valid". Questions of equal contexts are never divided.

    Raises:
      UserError: as `read_questions` and `splits.read_splits`.
    """

    def read(source: str, key: str) -> Iterator[Question]:
        return _read(config, source, key, aligned=key == "data.source")

    return splits.read_splits(config, read, _SPLIT_SEED, _ContextNumbers())


class _ContextNumbers:
    """Numbers contexts in the order of their first questions. Only digests stay in memory."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __call__(self, question: Question, _: int) -> int:
        digest = hashlib.blake2b(question.context.encode(), digest_size=16).digest()
        return self._numbers.setdefault(digest, len(self._numbers))


def _read(config: QuestionsConfig, source: str, key: str, aligned: bool) -> Iterator[Question]:
    bad_rows, count = BadRows(config.on_bad_row), 0
    for question in read_questions(source, key, bad_rows, aligned=aligned):
        count += 1
        yield question
    _log.info("read %s: %d questions, %d bad rows left out", source, count, bad_rows.count)


def read_questions(source: str, key: str, bad_rows: BadRows, *, aligned: bool) -> Iterator[Question]:
    """Yields the questions of SQuAD files, in their order.

    Args:
      source: paths or globs of JSON files (.gz too), separated by commas.
      key: the config key that names them, for messages.
      bad_rows: what to do with a question, paragraph or article that is wrong.
      aligned: whether an answer is wrong that does not stand where it is said to; only training looks there.
    Raises:
      UserError: a wrong question, paragraph or article, with its place; a file that is not SQuAD's; or no
        question in the whole source.
    """
    seen: dict[str, str] = {}
    parse = _aligned_answer if aligned else _answer
    for path in find_files(source, key):
        yield from _questions(read_json(path), str(path), bad_rows, parse, seen)
    if not seen:
        raise UserError(
            f"config key {key}={source}",
            got=f"no questions ({bad_rows.count} bad rows left out)",
            expected="at least one question",
            fix="check that the file is the one meant",
        )


def parse_questions(text: str, bad_rows: BadRows) -> Iterator[Question]:
    """Yields the questions of a SQuAD file that is the input, to be answered: what answers it has is not looked at."""
    yield from _questions(parse_json(text, "input"), "input", bad_rows, None, {})


def _questions(
    value: Any, where: str, bad_rows: BadRows, parse_answer: _ParseAnswer | None, seen: dict[str, str]
) -> Iterator[Question]:
    """Yields the questions of a file's JSON value; `seen` tells where each id stands."""
    for article in bad_rows.sift(map(_article, _articles(value, where), _places(f"{where}: data"))):
        for paragraph in bad_rows.sift(map(_paragraph, article.rows, _places(f"{article.where}.paragraphs"))):
            parse = partial(_question, str(article.row.get("title", "")), paragraph, parse_answer, seen)
            yield from bad_rows.sift(map(parse, paragraph.rows, _places(f"{paragraph.where}.qas")))


class _Part(NamedTuple):
    """An article with its paragraphs, or a paragraph with its questions, not yet looked at."""

    row: dict[str, Any]
    rows: list[Any]  # of paragraphs or questions
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
    return _Part(row, _field(row, "paragraphs", list, where), where)


def _paragraph(row: Any, where: str) -> _Part:
    return _Part(row, _field(row, "qas", list, where), where)


def _question(
    title: str, paragraph: _Part, parse_answer: _ParseAnswer | None, seen: dict[str, str], row: Any, where: str
) -> Question:
    """Returns a question, whose id joins `seen`. With a bad context each question of the paragraph is bad."""
    context = _text(paragraph.row, "context", paragraph.where)
    id_ = _id(row, where)
    place = f"{where} (id {id_})"
    if id_ in seen:
        raise RowError(place, f"the id of {seen[id_]} again", "an id of its own", "give each question its own id")
    text = _text(row, "question", place)
    answers, is_impossible = _answers(row, context, parse_answer, place) if parse_answer else ((), False)
    seen[id_] = where
    return Question(id_, title, text, context, answers, is_impossible, where)


def _answers(row: Any, context: str, parse: _ParseAnswer, where: str) -> tuple[tuple[Answer, ...], bool]:
    """Returns the answers of a question, and whether it has none."""
    is_impossible = "is_impossible" in row and _field(row, "is_impossible", bool, where)
    found = [] if is_impossible and "answers" not in row else _field(row, "answers", list, where)
    answers = tuple(parse(answer, context, f"{where}, answer {n}") for n, answer in enumerate(found, start=1))
    if is_impossible and answers:
        fix = "set is_impossible to false, or move the answers to plausible_answers"
        raise RowError(where, f"is_impossible with {len(answers)} answers", "answers or is_impossible, not both", fix)
    if not answers and not is_impossible:
        raise RowError(where, "no answers", "an answer, or is_impossible true (SQuAD 2.0)", "add what is missing")
    return answers, is_impossible


def _answer(row: Any, context: str, where: str) -> Answer:
    """Returns an answer, which may stand anywhere or nowhere."""
    text = _text(row, "text", where)
    start = row.get("answer_start")
    return Answer(text, start if type(start) is int and _stands(text, context, start) else None)


def _aligned_answer(row: Any, context: str, where: str) -> Answer:
    """Returns an answer that stands where it says it does."""
    text, start = _text(row, "text", where), _field(row, "answer_start", int, where)
    if _stands(text, context, start):
        return Answer(text, start)
    right = _nearest(text, context, start)
    fix = "correct the text, which is nowhere in the context" if right is None else f"set answer_start to {right}"
    found = context[max(start, 0) : max(start, 0) + len(text)]
    got = f"{_short(repr(found))} at answer_start {start} of {len(context)} characters"
    raise RowError(where, got, f"the answer, {_short(repr(text))}", fix)


def _stands(text: str, context: str, start: int) -> bool:
    return start >= 0 and context.startswith(text, start)


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
