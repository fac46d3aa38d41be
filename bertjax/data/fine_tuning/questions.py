"""Reads and checks questions with answers in a text, from the JSON files of SQuAD 1.1 and 2.0."""

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertjax.data import splits
from bertjax.data.readers.kinds import find_files, kind_of
from bertjax.data.readers.lines import BadRows, OnBadRow, RowError, check_text, parse_json, read_json
from bertjax.data.splits import SplitConfig
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

T = TypeVar("T")
# The validation split depends only on the order of contexts, so that runs with different seeds are comparable.
_SPLIT_SEED = 0
_KINDS = ((".json",), "SQuAD's JSON")


@dataclasses.dataclass(frozen=True)
class QuestionsConfig(SplitConfig):
    """The questions to read: paths or globs of SQuAD files, separated by commas. Contexts are never divided.

    Attributes:
      on_bad_row: "stop" to raise an error at a malformed question, paragraph or article, "skip" to skip and count it.
    """

    on_bad_row: OnBadRow


class Answer(NamedTuple):
    """An answer's text, and the character of the context at which it starts."""

    text: str
    start: int | None  # None if the text is not at the stated position


_ParseAnswer = Callable[[Any, str, str], Answer]  # takes the answer's row, the context, and the position for messages


class Question(NamedTuple):
    """A question about a text."""

    id: str
    title: str  # the title of the article; "" if it has none
    question: str
    context: str
    answers: tuple[Answer, ...]  # all known correct answers; empty if it is impossible or is input for prediction
    is_impossible: bool  # whether the context has no answer (SQuAD 2.0)
    where: str  # the file and the position in it, for messages


def read_splits(config: QuestionsConfig) -> Iterator[tuple[str, Question]]:
    """Yields each question with its split, "train" or "valid". Questions with the same context are in one split.

    Raises:
      UserError: if `read_questions` or `splits.read_splits` raises it.
    """

    def read(source: str, key: str) -> Iterator[Question]:
        return _read(config, source, key, aligned=key == "data.source")

    return splits.read_splits(config, read, _SPLIT_SEED, _ContextNumbers(), "contexts")


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
    _log.info("read %s: %d questions%s", source, count, bad_rows.skipped())


def read_questions(source: str, key: str, bad_rows: BadRows, *, aligned: bool) -> Iterator[Question]:
    """Yields the questions of SQuAD files, in their order.

    Args:
      source: paths or globs of JSON files (also .gz), separated by commas.
      key: the config key of the source, for messages.
      bad_rows: how to treat bad questions, paragraphs and articles.
      aligned: whether an answer that is not at its stated position is bad. Only training uses the position.
    Raises:
      UserError: if a question, paragraph or article is bad, with its position, a file is not in SQuAD's form, or the
        whole source has no question.
    """
    seen: dict[str, str] = {}
    parse = _aligned_answer if aligned else _answer
    for path in find_files(source, key, *_KINDS):
        yield from _questions(read_json(path), str(path), bad_rows, parse, seen)
    if not seen:
        raise UserError(
            f"config key {key}={source}",
            got=f"no questions{bad_rows.skipped()}",
            expected="at least one question",
            fix="check the source",
        )


def check_kind(path: Path, key: str) -> None:
    """Raises UserError if a file that config key or --flag `key` names is not a SQuAD file by its name."""
    kind_of(path, key, *_KINDS)


def parse_questions(text: str, bad_rows: BadRows) -> Iterator[Question]:
    """Yields the questions of a SQuAD file that is input for prediction. Its answers are ignored."""
    yield from _questions(parse_json(text, "input"), "input", bad_rows, None, {})


def questions_of(values: Iterable[Any], bad_rows: BadRows) -> Iterator[Question]:
    """Yields the question of each dict with "question", "context" and optionally "id", by default its number."""
    seen: dict[str, str] = {}

    def question(numbered: tuple[int, Any]) -> Question:
        number, value = numbered
        where = f"input {number}"
        if not isinstance(value, dict):
            got, expected = f"an object of type {type(value).__name__}", 'a dict with "question" and "context"'
            raise RowError(where, got, expected, 'pass {"question": "...", "context": "..."}')
        row = {**value, "id": str(value.get("id", number))}
        return _question("", _Part(row, [], where), None, seen, row, where)

    return bad_rows.sift(map(question, enumerate(values, start=1)))


def _questions(
    value: Any, where: str, bad_rows: BadRows, parse_answer: _ParseAnswer | None, seen: dict[str, str]
) -> Iterator[Question]:
    """Yields the questions of a file's JSON value; `seen` has the position of each id."""
    for article in bad_rows.sift(map(_article, _articles(value, where), _positions(f"{where}: data"))):
        for paragraph in bad_rows.sift(map(_paragraph, article.rows, _positions(f"{article.where}.paragraphs"))):
            parse = partial(_question, str(article.row.get("title", "")), paragraph, parse_answer, seen)
            yield from bad_rows.sift(map(parse, paragraph.rows, _positions(f"{paragraph.where}.qas")))


class _Part(NamedTuple):
    """An article with its unchecked paragraphs, or a paragraph with its unchecked questions."""

    row: dict[str, Any]
    rows: list[Any]  # the paragraphs or questions
    where: str


def _positions(name: str) -> Iterator[str]:
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
    """Returns a question, and adds its id to `seen`. If the context is bad, every question of the paragraph is bad."""
    context = _text(paragraph.row, "context", paragraph.where)
    id_ = _id(row, where)
    position = f"{where} (id {id_})"
    if id_ in seen:
        raise RowError(position, f"the same id as {seen[id_]}", "a unique id", "give each question its own id")
    text = _text(row, "question", position)
    answers, is_impossible = _answers(row, context, parse_answer, position) if parse_answer else ((), False)
    seen[id_] = where
    return Question(id_, title, text, context, answers, is_impossible, where)


def _answers(row: Any, context: str, parse: _ParseAnswer, where: str) -> tuple[tuple[Answer, ...], bool]:
    """Returns the answers of a question, and whether it is impossible."""
    is_impossible = "is_impossible" in row and _field(row, "is_impossible", bool, where)
    found = [] if is_impossible and "answers" not in row else _field(row, "answers", list, where)
    answers = tuple(parse(answer, context, f"{where}, answer {n}") for n, answer in enumerate(found, start=1))
    if is_impossible and answers:
        fix = "set is_impossible to false, or move the answers to plausible_answers"
        raise RowError(where, f"is_impossible with {len(answers)} answers", "answers or is_impossible, not both", fix)
    if not answers and not is_impossible:
        fix = "add an answer, or set is_impossible"
        raise RowError(where, "no answers", "an answer, or is_impossible true (SQuAD 2.0)", fix)
    return answers, is_impossible


def _answer(row: Any, context: str, where: str) -> Answer:
    """Returns an answer whose stated position may be wrong."""
    text = _text(row, "text", where)
    start = row.get("answer_start")
    return Answer(text, start if type(start) is int and _is_at(text, context, start) else None)


def _aligned_answer(row: Any, context: str, where: str) -> Answer:
    """Returns an answer after checking its stated position."""
    text, start = _text(row, "text", where), _field(row, "answer_start", int, where)
    if _is_at(text, context, start):
        return Answer(text, start)
    right = _nearest(text, context, start)
    fix = "correct the text, which is not in the context" if right is None else f"set answer_start to {right}"
    found = context[max(start, 0) : max(start, 0) + len(text)]
    got = f"{_short(repr(found))} at answer_start {start} of {len(context)} characters"
    raise RowError(where, got, f"the answer, {_short(repr(text))}", fix)


def _is_at(text: str, context: str, start: int) -> bool:
    return start >= 0 and context.startswith(text, start)


def _nearest(text: str, context: str, start: int) -> int | None:
    """Returns the position of `text` in `context` that is nearest to `start`."""
    start = min(max(start, 0), len(context))
    positions = (context.rfind(text, 0, start + len(text)), context.find(text, start))
    return min((each for each in positions if each >= 0), key=lambda each: abs(each - start), default=None)


def _id(row: Any, where: str) -> str:
    """Returns the id of a question. Some data sets use numbers."""
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
