"""Reads test collections in BEIR's form (Thakur et al. 2021): documents, queries, and which documents are relevant.

A folder has `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and tables `qrels/*.tsv` with the
columns `query-id`, `corpus-id` and `score`, or judgments in TREC's form: lines of a query, an unused field, a document
and a score, separated by white space. Files may be gzipped.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.data.readers import delimited, lines, tables
from bertjax.data.readers.lines import MAX_LINE_BYTES, BadRows, Line, RowError
from bertjax.data.readers.tables import Row
from bertjax.errors import UserError, did_you_mean
from bertjax.words import composed

_log = logging.getLogger(__name__)
_COLUMNS = ("query-id", "corpus-id", "score")
_TREC_FIELDS = 4


class Collection(NamedTuple):
    """Documents, and queries with the documents that are relevant to them.

    Attributes:
      queries: the texts of the queries that have a relevant document, by id.
      documents: the ids of the documents, in ascending order.
      relevant: the grade of each judged document, by the ids of query and document. A document with a grade of 0 or
        less is not relevant.
      left_out: the number of queries with judgments but without a relevant document.
      texts: yields the id and the text of each document, in any order.
    """

    queries: Mapping[str, str]
    documents: Sequence[str]
    relevant: Mapping[str, Mapping[str, int]]
    left_out: int
    texts: Callable[[], Iterator[tuple[str, str]]]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of texts of each kind."""
        return {"query": len(self.queries), "document": len(self.documents)}

    def numbered(self) -> Iterator[tuple[str, int, str]]:
        """Yields the kind of each text, its number among those of its kind, and the text."""
        for number, text in enumerate(self.queries.values()):
            yield "query", number, text
        numbers = {document_id: number for number, document_id in enumerate(self.documents)}
        for document_id, text in self.texts():
            yield "document", numbers[document_id], text


class Folder:
    """A folder in BEIR's form."""

    def __init__(self, folder: str, key: str, qrels: str, on_bad_row: str) -> None:
        """Reads nothing yet.

        Args:
          folder: the folder.
          key: the config key of the folder, for messages.
          qrels: the name of the judgments, such as "test" for `qrels/test.tsv`; "" if only documents are read.
          on_bad_row: see `BadRows`.
        """
        self._path = Path(folder)
        self._what = f"config key {key}={folder}"
        self._on_bad_row = on_bad_row
        self._names = ["corpus.jsonl", *(["queries.jsonl", f"qrels/{qrels}.tsv"] if qrels else [])]

    def files(self) -> list[Path]:
        """Returns the files: documents, queries and judgments. Raises UserError if one is missing."""
        return list(map(self._find, self._names))

    def _find(self, name: str) -> Path:
        paths = (self._path / name, self._path / f"{name}.gz")
        if path := next(filter(Path.is_file, paths), None):
            return path
        expected = "a folder with corpus.jsonl, queries.jsonl and qrels/NAME.tsv, which data.qrels names"
        others = sorted(path.name.partition(".")[0] for path in self._path.glob("qrels/*.tsv*"))
        got = f"no {name}" if self._path.is_dir() else "no such folder"
        fix = "correct the path"
        if name.startswith("qrels/") and others:
            fix = did_you_mean(Path(name).stem, others, f"set --config.data.qrels to one of {', '.join(others)}")
        raise UserError(self._what, got=got, expected=expected, fix=fix)

    def fingerprint(self) -> list[dict[str, Any]]:
        """Returns a JSON-serializable description of the content of the files."""
        return [lines.fingerprint(path) for path in self.files()]

    def read(self) -> Collection:
        """Reads and checks all rows, and keeps the texts of the queries only.

        Raises:
          UserError: for a bad row, with file and line, unless `on_bad_row` is "skip"; if no query has a relevant
            document.
        """
        _, queries_file, judgments_file = self.files()
        documents = sorted(document_id for document_id, _ in self.documents())
        bad_rows = BadRows(self._on_bad_row)
        queries = dict(self._rows(queries_file, bad_rows, partial(_query, seen=set())))
        grades: dict[str, dict[str, int]] = {}
        add_judgment = partial(_judgment, queries=queries, documents=set(documents), grades=grades)
        judgments = _judgment_rows(judgments_file, bad_rows)
        num_judgments = sum(1 for _ in bad_rows.sift(map(add_judgment, judgments)))  # fills `grades`
        relevant = {query: query_grades for query, query_grades in grades.items() if max(query_grades.values()) > 0}
        if not relevant:
            got = f"{num_judgments} judgments, none of them above 0"
            expected = "queries with a relevant document"
            raise UserError(str(judgments_file), got=got, expected=expected, fix="name other files")
        message = "read %s: %d documents, %d queries with %d judgments%s"
        _log.info(message, self._path, len(documents), len(relevant), num_judgments, bad_rows.skipped())
        if left_out := len(grades) - len(relevant):
            message = "%d of %d judged queries have no relevant document: they are left out"
            _log.warning(message, left_out, len(grades))
        texts = {query: queries[query] for query in relevant}
        # The first pass over the documents has reported their bad rows.
        return Collection(texts, documents, relevant, left_out, lambda: self.documents(is_silent=True))

    def documents(self, *, is_silent: bool = False) -> Iterator[tuple[str, str]]:
        """Yields the id and the text of each document: title, a space and text, as in BEIR.

        Args:
          is_silent: whether to omit the warning about skipped rows.
        Raises:
          UserError: if the file is missing; for a bad row unless `on_bad_row` is "skip".
        """
        bad_rows = BadRows(self._on_bad_row)
        path = self._find(self._names[0])
        yield from self._rows(path, bad_rows, partial(_document, seen=set()))
        if bad_rows.count and not is_silent:
            _log.warning("%s: %d bad rows skipped", path, bad_rows.count)

    def _rows(self, path: Path, bad_rows: BadRows, make: Callable[[Row], Any]) -> Iterator[Any]:
        return bad_rows.sift(map(make, tables.read_file(path, True, bad_rows)))


def _judgment_rows(path: Path, bad_rows: BadRows) -> Iterator[Row]:
    """Returns the rows of a file of judgments. Raises UserError if its first line is not of BEIR's or TREC's form."""
    columns = delimited.first_fields(path)
    if set(_COLUMNS) <= set(columns):
        return tables.read_file(path, True, bad_rows)
    fields = " ".join(columns).split()
    if len(fields) != _TREC_FIELDS or not fields[-1].lstrip("-").isdecimal():
        expected = f"the columns {', '.join(_COLUMNS)}, separated by tabs, or the four fields of TREC without a header"
        raise UserError(f"{path}:1", got=", ".join(columns) or "no columns", expected=expected, fix="add this line")
    nonblank_lines = (line for line in lines.read_lines(path, MAX_LINE_BYTES) if not line.is_blank)
    return bad_rows.sift(map(_of_trec, nonblank_lines))


def _of_trec(line: Line) -> Row:
    fields = lines.decode(line).split()
    if len(fields) != _TREC_FIELDS:
        raise RowError(line.where, f"{len(fields)} fields", "a query, an unused field, a document and a score")
    query, _, document, score = fields
    return Row(dict(zip(_COLUMNS, (query, document, score), strict=True)), line.where)


def of_pairs(pairs: Iterable[tuple[str, str]], documents: Iterable[str]) -> Collection:
    """Returns a collection whose ids are the texts themselves, so that equal texts become one.

    Of texts that differ only in their Unicode normalization form, the first is taken.

    Args:
      pairs: queries, each with a relevant document; a query may be repeated.
      documents: further documents.
    """
    relevant: dict[str, dict[str, int]] = {}
    spellings: dict[str, str] = {}

    def first(text: str) -> str:
        return spellings.setdefault(composed(text), text)

    for query, document in pairs:
        relevant.setdefault(first(query), {})[first(document)] = 1
    texts = sorted({*itertools.chain.from_iterable(relevant.values()), *map(first, documents)})
    return Collection(
        queries={query: query for query in relevant},
        documents=texts,
        relevant=relevant,
        left_out=0,
        texts=lambda: zip(texts, texts, strict=True),
    )


def _id(row: Row, column: str) -> str:
    value = row.values.get(column)
    name = str(value) if isinstance(value, str) or type(value) is int else ""  # a bool is an int, but no id
    if not name.strip():
        got = f"no {column!r}" if value is None else f"{value!r} as {column!r}"
        raise RowError(row.where, got, "an id, which is a text or an integer")
    return name


def _new_id(row: Row, seen: set[str]) -> str:
    """Returns the id of a row and adds it to `seen`. Raises RowError if it was seen before."""
    name = _id(row, "_id")
    if name in seen:
        raise RowError(row.where, f"the id {name!r} a second time", "each id once", "delete the row")
    seen.add(name)
    return name


def _text(row: Row, column: str, default: str | None = None) -> str:
    value = row.values.get(column, default)
    if not isinstance(value, str):
        raise RowError(row.where, f"{type(value).__name__} as {column!r}", "a text")
    return value


def _document(row: Row, seen: set[str]) -> tuple[str, str]:
    text = f"{_text(row, 'title', '')} {_text(row, 'text')}".strip()
    if not text:
        raise RowError(row.where, "an empty document", "a title or a text")
    return _new_id(row, seen), text


def _query(row: Row, seen: set[str]) -> tuple[str, str]:
    text = _text(row, "text")
    if not text.strip():
        raise RowError(row.where, "an empty query", "a text")
    return _new_id(row, seen), text


def _judgment(row: Row, queries: Mapping[str, str], documents: set[str], grades: dict[str, dict[str, int]]) -> None:
    """Adds a judgment to `grades`. Raises RowError if its ids are unknown, equal or repeated, or for a bad score."""
    query, document = (_id(row, column) for column in _COLUMNS[:2])
    for name, ids, file in ((query, queries, "queries.jsonl"), (document, documents, "corpus.jsonl")):
        if name not in ids:
            raise RowError(row.where, f"the id {name!r}", f"an id of {file}", "delete the row, or add the text")
    if query == document:
        expected = "different ids, because a document with the id of the query is no result, as in BEIR"
        raise RowError(row.where, f"{query!r} for both", expected, "rename one of them")
    try:
        grade = int(str(row.values["score"]))
    except ValueError:
        raise RowError(row.where, f"the score {row.values['score']!r}", "an integer") from None
    if document in grades.setdefault(query, {}):
        raise RowError(row.where, f"{query!r} with {document!r} a second time", "each pair once", "delete the row")
    grades[query][document] = grade
