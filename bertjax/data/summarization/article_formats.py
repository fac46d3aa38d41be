"""Articles as files and records hold them: plain text, stories, JSON lines, BertSum's JSON, TFDS."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from glob import escape
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from bertjax.config import Constrained, one_of
from bertjax.data.readers import lines, tables
from bertjax.data.readers.lines import BadRows, Line, RowError
from bertjax.data.readers.sources import MAX_DOCUMENT_BYTES, split_name
from bertjax.data.readers.tables import Row
from bertjax.errors import UserError

_TFDS = "tfds:NAME[:SPLIT]"
_HIGHLIGHT = "@highlight"
_BERTSUM_FIELDS = ("src", "tgt")
_TEXT_FIELD = "text"


@dataclasses.dataclass(frozen=True)
class ArticleFormat(Constrained, prefix="data"):
    """How sources are laid out.

    Attributes:
      layout: of plain text: "file", an article a file, or "line", an article a line.
      article_field, summary_field: of rows and records. A value is a text, whose lines "\\n" ends; or a list of
        sentences, each a text or a list of words.
      gold_field: of rows, the sentences that a summary is made of by someone's judgment; "" for none.
      gold_as: what is in `gold_field`: "numbers" of sentences, from 0; or "labels", 0 or 1 for each sentence.
    """

    layout: Annotated[str, one_of("file", "line")]
    article_field: str
    summary_field: str
    gold_field: str
    gold_as: Annotated[str, one_of("numbers", "labels")]

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = (self.article_field, self.summary_field, self.gold_field)
        named = [field for field in fields if field]
        if not self.article_field or len(set(named)) < len(named):
            raise UserError(
                "config keys data.{article_field,summary_field,gold_field}",
                got=", ".join(map(repr, fields)),
                expected="a field for articles, and other fields or '' for the rest",
                fix="for example data.article_field=article and data.summary_field=summary",
            )


class Stored(NamedTuple):
    """An article before its sentences are split. Its texts are stripped and not empty, but for blank lines."""

    id: str
    body: tuple[str, ...]  # lines, or sentences
    is_split: bool  # whether `body` is known to be sentences
    summary: tuple[str, ...] | None  # its sentences; None if the source has none
    gold: tuple[int, ...] | None  # numbers of sentences, ascending; None if the source has none
    where: str  # "file:line" (or the like), for messages
    fields: tuple[str, ...] = ()  # of its row; () if it is none


def read(source: str, key: str, style: ArticleFormat, needs_summary: bool, bad_rows: BadRows) -> Iterator[Stored]:
    """Yields the articles of files or of a TFDS dataset, in order.

    Names of files tell what is in them, `.gz` or not:
    - `.story`: CNN's and Daily Mail's, the article's paragraphs and then its highlights, each after `@highlight`;
    - `.jsonl`: a row an article;
    - `.csv`, and `.tsv` whose first line has the article's field: rows as in `.jsonl`;
    - `.json`: a list of such rows, or rows as in `.jsonl`;
    - all others: plain text without summaries.
    Rows without the article's field that have `src` and `tgt` are those of BertSum and PreSumm (`format_to_lines`):
    lists of sentences that are lists of words. Of others without it the article is in `text`. Where no summary is
    needed, `tgt` may be missing, and null counts as missing.

    Args:
      source: paths, globs and folders, separated by commas, or `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`.
      key: the config key that named it, for messages.
      style: how it is laid out.
      needs_summary: whether an article without one is an error.
      bad_rows: what to do with an article that is wrong by itself.
    Raises:
      UserError: a source that cannot be read, or a bad article, with file and line.
    """
    read_row = partial(_from_row, style=style, needs_summary=needs_summary)
    if source.startswith("tfds:"):
        yield from bad_rows.sift(map(read_row, *_numbered(source, key)))
        return
    for path in find_files(source, key):
        kind = _kind(path)
        if kind == ".story":
            yield from bad_rows.sift(map(partial(_story, needs_summary=needs_summary), [path]))
        elif kind in (".jsonl", ".json"):
            yield from _rows(path, style, needs_summary, bad_rows)
        elif (rows := _table(path, style, bad_rows)) is not None:
            yield from bad_rows.sift(map(partial(_from_table, style=style, needs_summary=needs_summary), rows))
        elif style.layout == "file":
            yield from bad_rows.sift(map(_text_file, [path]))
        else:
            yield from bad_rows.sift(map(_text_line, lines.read_lines(path, MAX_DOCUMENT_BYTES)))


def find_files(source: str, key: str) -> list[Path]:
    """Returns the files of comma-separated paths, globs and folders, as `lines.find_files`.

    Raises:
      UserError: as there; and files that hold no text.
    """
    parts = [part.strip() for part in source.split(",")]
    parts = [str(Path(escape(part)) / "*") if part and Path(part).is_dir() else part for part in parts]
    also = _TFDS if key.startswith("--") else f"documentation or {_TFDS}"  # which is to train on
    paths = lines.find_files(",".join(parts), key, also)
    for path in paths:
        if _kind(path) in (".pt", ".tar", ".tgz", ".zip"):
            raise UserError(
                f"{lines.named(key)}={path}",
                got="a file of tensors, or an archive",
                expected="text: .txt, .story, .jsonl, .json or .csv",
                fix="name the text that it was made from, or unpack it",
            )
    return paths


def fingerprint(source: str, key: str) -> Any:
    """Returns a JSON-able description of what `read` would read, which tells nothing of its place and time."""
    if source.startswith("tfds:"):
        return _records(source, key).fingerprint()
    return [lines.fingerprint(path) for path in find_files(source, key)]


def check_gold_field(source: str, key: str, style: ArticleFormat) -> None:
    """Raises UserError if no row of a source has the field that `gold_field` names; reads up to the first that has."""
    # What is wrong with rows, and in the field, is told of where they are read.
    articles = read(source, key, dataclasses.replace(style, gold_field=""), False, BadRows("skip"))
    kinds: dict[tuple[str, ...], None] = {}
    for article in articles:
        if style.gold_field in article.fields:
            return
        kinds[article.fields] = None
    if kinds:
        fields = dict.fromkeys(itertools.chain.from_iterable(kinds))
        raise UserError(
            f"config key data.gold_field={style.gold_field}",
            got=f"a field that no row of {source} has; their fields: {', '.join(map(repr, fields)) or 'none'}",
            expected="the sentences that someone chose, in some rows at least",
            fix="correct --config.data.gold_field, or empty it for the oracle's choice",
        )


def has_summaries(source: str, key: str) -> bool:
    """Whether all files of a source are of a kind that may hold summaries: plain text does not."""
    if source.startswith("tfds:"):
        return True
    return all(_kind(path) in (".story", ".jsonl", ".json", ".csv") for path in find_files(source, key))


def _kind(path: Path) -> str:
    """The ending of a file's name, without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix


def _lines_with_text(path: Path) -> Iterator[Line]:
    return (line for line in lines.read_lines(path, MAX_DOCUMENT_BYTES) if not line.is_blank)


def _texts(path: Path) -> list[str]:
    """The lines of a file that is one article."""
    texts, size = [], 0
    for line in lines.read_lines(path, MAX_DOCUMENT_BYTES):
        texts.append(lines.decode(line).strip())
        size += len(line.content)
        if size > MAX_DOCUMENT_BYTES:
            raise UserError(
                line.where,
                got=f"a file of more than {MAX_DOCUMENT_BYTES:,} bytes",
                expected="one article",
                fix="set --config.data.layout=line if it has one a line, or write each article into a file",
            )
    if not any(texts):
        raise RowError(f"{path}:1", "a file without text", "an article", "complete or delete the file")
    return texts


def _text_file(path: Path) -> Stored:
    return Stored(path.name, tuple(_texts(path)), False, None, None, f"{path}:1")


def _text_line(line: Line) -> Stored:
    text = lines.decode(line).strip()
    return Stored(line.where, (text,), False, None, None, line.where)


def _story(path: Path, needs_summary: bool) -> Stored:
    texts = _texts(path)
    marks = [number for number, text in enumerate(texts) if text == _HIGHLIGHT]
    end = marks[0] if marks else len(texts)
    body = tuple(texts[:end])
    parts = itertools.pairwise([*marks, len(texts)])
    highlights = tuple(" ".join(filter(None, texts[start + 1 : stop])) for start, stop in parts)
    summary = tuple(filter(None, highlights))
    if not any(body):
        raise RowError(f"{path}:{end + 1}", f"{_HIGHLIGHT} before any text", "an article before its highlights")
    if needs_summary and not summary:
        got = f"a story without {_HIGHLIGHT}" if not marks else f"{_HIGHLIGHT} without text after it"
        raise RowError(f"{path}:{end + 1}", got, f"a summary: {_HIGHLIGHT} and a sentence after it")
    return Stored(path.name, body, False, summary or None, None, f"{path}:1")


def _rows(path: Path, style: ArticleFormat, needs_summary: bool, bad_rows: BadRows) -> Iterator[Stored]:
    if not _is_list(path):
        read_line = partial(_from_line, style=style, needs_summary=needs_summary)
        return bad_rows.sift(map(read_line, _lines_with_text(path)))
    rows = lines.read_json(path)
    places = [f"{path} article {number}" for number in range(1, len(rows) + 1)]
    return bad_rows.sift(map(partial(_from_row, style=style, needs_summary=needs_summary), places, rows))


def _table(path: Path, style: ArticleFormat, bad_rows: BadRows) -> Iterator[Row] | None:
    """Returns the rows of a CSV file, or of a TSV file whose first line names the articles' column; None of others."""
    if _kind(path) not in (".csv", ".tsv"):
        return None
    fields = (style.article_field, _TEXT_FIELD)
    column = next((field for field in fields if field in tables.first_fields(path)), style.article_field)
    return tables.read_input(str(path), "data.article_field", (column,), True, bad_rows)


def _from_table(row: Row, style: ArticleFormat, needs_summary: bool) -> Stored:
    return _from_row(row.where, row.values, style, needs_summary)


def _is_list(path: Path) -> bool:
    """Whether a .json file begins as a list; if not, it has rows."""
    first = next(_lines_with_text(path), None)
    return _kind(path) == ".json" and first is not None and first.content.lstrip().startswith(b"[")


def _from_line(line: Line, style: ArticleFormat, needs_summary: bool) -> Stored:
    return _from_row(line.where, lines.decode_object(line), style, needs_summary)


def _numbered(source: str, key: str) -> tuple[Iterator[str], Iterator[Mapping[str, Any]]]:
    return (f"{source} record {number}" for number in itertools.count()), iter(_records(source, key))


def _records(source: str, key: str) -> Any:
    # Imported here, so that only those who read TFDS wait for it.
    from bertjax.data.readers.records import RowRecords

    return RowRecords(*split_name(source, key), key)


def _from_row(where: str, row: Any, style: ArticleFormat, needs_summary: bool) -> Stored:
    """Returns the article in a row's or record's fields."""
    if not isinstance(row, Mapping):
        raise RowError(where, f"a JSON {type(row).__name__}", "an object with the fields of an article")
    article_field, summary_field = style.article_field, style.summary_field
    needed = _BERTSUM_FIELDS if needs_summary else _BERTSUM_FIELDS[:1]
    if article_field not in row and all(field in row for field in needed):
        article_field, summary_field = _BERTSUM_FIELDS
    elif article_field not in row and _TEXT_FIELD in row and summary_field != _TEXT_FIELD:
        article_field = _TEXT_FIELD
    body = _parts(row, article_field, "article_field", where)
    if not any(body):
        raise RowError(where, f"an empty article in field {article_field!r}", "text", "complete the row")
    summary = None
    if needs_summary or row.get(summary_field) is not None:
        summary = tuple(filter(None, _parts(row, summary_field, "summary_field", where)))
        if needs_summary and not summary:
            raise RowError(where, f"an empty summary in field {summary_field!r}", "text", "complete the row")
    gold = _gold(row, style, body, where) if row.get(style.gold_field) is not None else None
    is_split = isinstance(row[article_field], list)
    stored = filter(None, body) if is_split else body
    return Stored(_id(row, where), tuple(stored), is_split, summary, gold, where, tuple(row))


def _id(row: Mapping[str, Any], where: str) -> str:
    """The name of an article, or where it is from if it has none."""
    name = row.get("id")
    if isinstance(name, bytes):  # of TFDS
        name = lines.decode(Line(where, 0, name, MAX_DOCUMENT_BYTES))
    if not isinstance(name, (str, int)):
        return where
    lines.check_text(str(name), where)
    return str(name)


def _parts(row: Mapping[str, Any], field: str, key: str, where: str) -> list[str]:
    """The stripped lines or sentences in a field, empty ones too."""
    if field not in row:
        got = f"a row without field {field!r}; its fields: {', '.join(map(repr, row)) or 'none'}"
        raise RowError(where, got, f"the field that config.data.{key} names", f"correct --config.data.{key}")
    value = row[field]
    if isinstance(value, bytes):  # of TFDS
        value = lines.decode(Line(where, 0, value, MAX_DOCUMENT_BYTES))
    if isinstance(value, str):
        texts = value.split("\n")
    elif isinstance(value, list):
        texts = [_sentence(sentence, field, where) for sentence in value]
    else:
        raise RowError(where, f"{type(value).__name__} in field {field!r}", "a text, or a list of sentences")
    lines.check_text("\n".join(texts), where)
    return [text.strip() for text in texts]


def _sentence(value: Any, field: str, where: str) -> str:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RowError(where, f"a list in field {field!r} of what is no text", "sentences, or lists of words")
    return " ".join(" ".join(words).split("\n"))


def _gold(row: Mapping[str, Any], style: ArticleFormat, body: list[str], where: str) -> tuple[int, ...]:
    """The numbers of the sentences in the gold field."""
    field, values, count = style.gold_field, row[style.gold_field], len(body)
    if not all(body):
        raise RowError(where, f"an empty sentence in an article that field {field!r} counts", "text in each")
    is_numbers = style.gold_as == "numbers"
    allowed = range(count) if is_numbers else range(2)
    good = isinstance(values, list) and all(type(value) is int and value in allowed for value in values)
    if not good or (not is_numbers and len(values) != count):
        expected = f"numbers of sentences, 0 to {count - 1}" if is_numbers else f"0 or 1 for each of {count} sentences"
        fix = "correct the row, or --config.data.gold_field or data.gold_as"
        raise RowError(where, f"{values!r:.80} in field {field!r}", expected, fix)
    return tuple(sorted(set(values))) if is_numbers else tuple(i for i, label in enumerate(values) if label)
