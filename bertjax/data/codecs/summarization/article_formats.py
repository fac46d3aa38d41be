"""Reads articles from files and TFDS: plain text, stories, tables, and BertSum's rows and prepared files."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from glob import escape
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from bertjax.config import Constrained, always, one_of
from bertjax.data.codecs.summarization import presumm_files
from bertjax.data.readers import delimited, kinds, lines, tables
from bertjax.data.readers.kinds import TABLES, split_name, suffix_of
from bertjax.data.readers.lines import BadRows, Line, RowError, of_row
from bertjax.data.readers.sources import MAX_DOCUMENT_BYTES
from bertjax.data.readers.tables import Row
from bertjax.errors import UserError
from bertjax.progress import log_once

_TFDS = "tfds:NAME[:SPLIT]"
_HIGHLIGHT = "@highlight"
_BERTSUM_FIELDS = (("src", "tgt"), presumm_files.FIELDS)
_TEXT_FIELD = "text"
_KINDS = (".story", *TABLES, presumm_files.SUFFIX)
_PLAIN = "plain text"


@dataclasses.dataclass(frozen=True)
class ArticleFormat(Constrained, prefix="data"):
    """The format of sources of articles.

    Attributes:
      layout: the layout of plain text: "file" for one article per file, "line" for one article per line.
      article_field: the field of a row or record that holds the article: a text with lines separated by "\\n", or a
        list of sentences, each a text or a list of words.
      summary_field: the field that holds the summary, in the form of `article_field`, or several reference summaries.
      summary_as: the content of a list in `summary_field`: "sentences" of one summary; or "references", several
        summaries, each in the form of an article. The first is learned, and ROUGE uses all.
      gold_field: the field that lists the sentences which annotators selected for the summary; "" for none. They are
        the summary, for ROUGE, of an article without one.
      gold_as: the content of `gold_field`: "numbers" of sentences, from 0, or "labels", 0 or 1 for each sentence.
    """

    layout: Annotated[str, one_of("file", "line")] = always("file")
    article_field: str = always("article")
    summary_field: str = always("summary")
    gold_field: str = always("")
    gold_as: Annotated[str, one_of("numbers", "labels")] = always("numbers")
    summary_as: Annotated[str, one_of("sentences", "references")] = dataclasses.field(default="sentences", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = (self.article_field, self.summary_field, self.gold_field)
        nonempty = [field for field in fields if field]
        ok = self.article_field and len(set(nonempty)) == len(nonempty)
        keys = "{article_field,summary_field,gold_field}"
        expected = "a field for articles, and different fields or '' for the others"
        fix = "set them, for example data.article_field=article and data.summary_field=summary"
        self.check(ok, keys, expected, got=", ".join(map(repr, fields)), fix=fix)


class Stored(NamedTuple):
    """An article before it is split into sentences. Its texts are stripped; only blank lines are empty."""

    id: str
    body: tuple[str, ...]  # lines or sentences
    is_split: bool  # whether `body` is sentences
    summary: tuple[str, ...] | None  # the sentences of the summary; None if the source has none
    gold: tuple[int, ...] | None  # numbers of the selected sentences, ascending; None if the source has none
    where: str  # its position for messages, such as "file:line"
    fields: tuple[str, ...] = ()  # the fields of its row; () if it is not from a row
    references: tuple[tuple[str, ...], ...] = ()  # the sentences of further reference summaries
    columns: Mapping[str, Any] = MappingProxyType({})  # the values of its row


def read(
    source: str, key: str, style: ArticleFormat, needs_summary: bool, bad_rows: BadRows, *, gold_suffices: bool = False
) -> Iterator[Stored]:
    """Yields the articles of files or of a TFDS dataset, in order.

    The name of a file, with or without `.gz`, determines its format:
    - `.story`: CNN and Daily Mail: the paragraphs of an article, then its highlights, each after `@highlight`;
    - `.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet` and `.arrow`: one article per row of a table;
    - `.pt`: PreSumm's and BertSum's prepared articles, see `presumm_files`;
    - others that `kinds.kind_of` accepts: plain text without summaries.
    Rows without the article's field that have `src` and `tgt` are rows of BertSum and PreSumm (`format_to_lines`):
    lists of sentences that are lists of words; those of `.pt` files have `src_txt` and `tgt_txt`. Other rows without it
    have the article in `text`. If no summary is needed, `tgt` or `tgt_txt` may be missing. A null value counts as
    missing.

    Args:
      source: paths, globs and folders, separated by commas, or `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`.
      key: the config key of the source, for messages.
      style: the format of the source.
      needs_summary: whether an article without a summary is an error.
      bad_rows: how to treat bad articles.
      gold_suffices: whether the sentences in `gold_field`, at least one, are the summary of an article without one.
    Raises:
      UserError: if a source cannot be read, or an article is bad, with file and line.
    """
    read_row = partial(_from_row, style=style, needs_summary=needs_summary, gold_suffices=gold_suffices)
    if source.startswith("tfds:"):
        yield from bad_rows.sift(map(read_row, _numbered(source, key)))
        return
    for path in find_files(source, key):
        kind = suffix_of(path)
        if kind == ".story":
            yield from bad_rows.sift(map(partial(_story, needs_summary=needs_summary), [path]))
        elif kind in TABLES:
            yield from bad_rows.sift(map(read_row, _table(path, style, bad_rows)))
        elif kind == presumm_files.SUFFIX:
            yield from bad_rows.sift(map(read_row, bad_rows.sift(presumm_files.read_rows(path))))
        elif style.layout == "file":
            yield from bad_rows.sift(map(_text_file, [path]))
        else:
            yield from bad_rows.sift(map(_text_line, lines.read_lines(path, MAX_DOCUMENT_BYTES)))


def find_files(source: str, key: str) -> list[Path]:
    """Returns the files of comma-separated paths, globs and folders; see `lines.find_files`.

    Raises:
      UserError: if `lines.find_files` raises it, or a file has a format without text.
    """
    parts = [part.strip() for part in source.split(",")]
    parts = [str(Path(escape(part)) / "*") if part and Path(part).is_dir() else part for part in parts]
    also = _TFDS if key.startswith("--") else f"documentation or {_TFDS}"  # only training reads the documentation
    return kinds.find_files(",".join(parts), key, _KINDS, _PLAIN, also)


def fingerprint(source: str, key: str) -> Any:
    """Returns a JSON-serializable description of a source, independent of its folder and time."""
    if source.startswith("tfds:"):
        return _records(source, key).fingerprint()
    return [lines.fingerprint(path) for path in find_files(source, key)]


def check_gold_field(source: str, key: str, style: ArticleFormat) -> None:
    """Raises UserError if no row of a source has the field `gold_field`. Reads up to the first row that has it."""
    # Bad rows and bad values of the field are skipped here. They are reported when the rows are read.
    articles = read(source, key, dataclasses.replace(style, gold_field=""), False, BadRows("skip"))
    kinds: dict[tuple[str, ...], None] = {}
    for article in articles:
        if {style.gold_field, style.gold_field.partition(".")[0]} & {*article.fields}:
            return
        kinds[article.fields] = None
    if kinds:
        fields = dict.fromkeys(itertools.chain.from_iterable(kinds))
        raise UserError(
            f"config key data.gold_field={style.gold_field}",
            got=f"a field that no row of {source} has; its fields: {', '.join(map(repr, fields)) or 'none'}",
            expected="a field with the selected sentences of at least some rows",
            fix="correct --config.data.gold_field, or set it to '' to use the oracle",
        )


def has_summaries(source: str, key: str) -> bool:
    """Returns whether all files of a source have formats with summaries, that is, are not plain text."""
    if source.startswith("tfds:"):
        return True
    return all(suffix_of(path) in _KINDS for path in find_files(source, key))


def _texts(path: Path) -> list[str]:
    """Returns the lines of a file that is one article."""
    texts = []
    size = 0
    for line in lines.read_lines(path, MAX_DOCUMENT_BYTES):
        texts.append(lines.decode(line).strip())
        size += len(line.content)
        if size > MAX_DOCUMENT_BYTES:
            got = f"a file of more than {MAX_DOCUMENT_BYTES:,} bytes"
            fix = "set --config.data.layout=line if it has one article per line; otherwise split it into files"
            raise UserError(line.where, got=got, expected="one article", fix=fix)
    if not any(texts):
        raise RowError(f"{path}:1", "a file without text", "an article", "add the text or delete the file")
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
        raise RowError(f"{path}:{end + 1}", got, f"a summary: {_HIGHLIGHT}, followed by a sentence")
    return Stored(path.name, body, False, summary or None, None, f"{path}:1")


def _table(path: Path, style: ArticleFormat, bad_rows: BadRows) -> Iterator[Row]:
    """Returns the rows of a table. A CSV or TSV file without the article's column is an error of the whole file."""
    if suffix_of(path) not in (".csv", ".tsv"):
        return tables.read_file(path, True, bad_rows, limit=MAX_DOCUMENT_BYTES)
    fields = (style.article_field, _TEXT_FIELD)
    column = next((field for field in fields if field in delimited.first_fields(path)), style.article_field)
    return tables.with_columns(tables.read_file(path, True, bad_rows), "data.article_field", (column,))


def _numbered(source: str, key: str) -> Iterator[Row]:
    return (Row(values, f"{source} record {number}", source) for number, values in enumerate(_records(source, key)))


def _records(source: str, key: str) -> Any:
    # Imported here, because the import is slow and only TFDS sources need it.
    from bertjax.data.readers.records import RowRecords

    return RowRecords(*split_name(source, key), key)


def _from_row(stored: Row, style: ArticleFormat, needs_summary: bool, gold_suffices: bool) -> Stored:
    """Returns the article in the fields of a row or record."""
    with of_row(stored.values):
        return _stored(stored, style, needs_summary, gold_suffices)._replace(columns=stored.values)


def _stored(stored: Row, style: ArticleFormat, needs_summary: bool, gold_suffices: bool) -> Stored:
    article_field = style.article_field
    summary_field = style.summary_field
    row, where, _ = tables.with_nested(stored, (article_field, summary_field, style.gold_field))
    has_gold = row.get(style.gold_field) is not None
    needs_summary = needs_summary and not (has_gold and gold_suffices)
    of_bertsum = [names for names in _BERTSUM_FIELDS if {*names[: 1 + needs_summary]} <= row.keys()]
    if article_field not in row and of_bertsum:
        article_field, summary_field = of_bertsum[0]
    elif article_field not in row and _TEXT_FIELD in row and summary_field != _TEXT_FIELD:
        article_field = _TEXT_FIELD
    if article_field not in row:
        tables.value_of(stored, article_field, "data.article_field")  # raises
    if needs_summary and summary_field not in row:
        tables.value_of(stored, summary_field, "data.summary_field")  # raises
    body = _parts(row, article_field, where)
    if not any(body):
        raise RowError(where, f"an empty article in field {article_field!r}", "text", "add the text or delete the row")
    summary = None
    references = list[tuple[str, ...]]()
    if needs_summary or row.get(summary_field) is not None:
        summary, *references = _summaries(row, summary_field, style, where)
        if not all((summary, *references) if needs_summary else references):
            fix = "add the summary or delete the row"
            raise RowError(where, f"an empty summary in field {summary_field!r}", "text", fix)
    gold = _gold(row, style, body, where) if has_gold else None
    if gold_suffices and gold is not None and not summary:
        summary = tuple(body[number] for number in gold)
        if not summary:
            got = f"neither a summary nor a sentence in field {style.gold_field!r}"
            expected = "one of them"
            raise RowError(where, got, expected, "add one or delete the row")
        log_once(f"articles without field {summary_field!r}: the sentences in {style.gold_field!r} are their summaries")
    is_split = isinstance(row[article_field], list)
    texts = filter(None, body) if is_split else body
    return Stored(_id(row, where), tuple(texts), is_split, summary, gold, where, tuple(row), tuple(references))


def _summaries(row: Mapping[str, Any], field: str, style: ArticleFormat, where: str) -> list[tuple[str, ...]]:
    """Returns the sentences of each summary in a field, at least one; see `ArticleFormat.summary_as`."""
    value = row.get(field)
    values = value if isinstance(value, list) else []
    if values and style.summary_as == "references":
        summaries: list[Mapping[str, Any]] = [{field: reference} for reference in values]
    else:
        summaries = [row]
        if len(values) > 1 and all(isinstance(text, str) for text in values):
            log_once(
                f"field {field!r} has lists: each text in a list is a sentence of one summary; if it is a summary, "
                "set data.summary_as=references"
            )
    return [tuple(filter(None, _parts(summary, field, where))) for summary in summaries]


def _id(row: Mapping[str, Any], where: str) -> str:
    """Returns the id of an article, or its position if it has none."""
    name = row.get("id")
    if isinstance(name, bytes):  # TFDS yields bytes
        name = lines.decode(Line(where, 0, name, MAX_DOCUMENT_BYTES))
    if not isinstance(name, (str, int)):
        return where
    lines.check_text(str(name), where)
    return str(name)


def _parts(row: Mapping[str, Any], field: str, where: str) -> list[str]:
    """Returns the stripped lines or sentences in a field, including empty ones."""
    value = row[field]
    if isinstance(value, bytes):  # TFDS yields bytes
        value = lines.decode(Line(where, 0, value, MAX_DOCUMENT_BYTES))
    if isinstance(value, str):
        texts = value.split("\n")
    elif isinstance(value, list):
        texts = [_sentence(sentence, field, where) for sentence in value]
    else:
        raise RowError(where, f"{type(value).__name__} in field {field!r}", "a text or a list of sentences")
    lines.check_text("\n".join(texts), where)
    return [text.strip() for text in texts]


def _sentence(value: Any, field: str, where: str) -> str:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RowError(
            where, f"a list in field {field!r} that has values other than text", "sentences, or lists of words"
        )
    return " ".join(" ".join(words).split("\n"))


def _gold(row: Mapping[str, Any], style: ArticleFormat, body: list[str], where: str) -> tuple[int, ...]:
    """Returns the numbers of the sentences in the gold field."""
    field = style.gold_field
    values = row[field]
    count = len(body)
    if not all(body):
        got = f"an empty sentence in an article with selected sentences in field {field!r}"
        raise RowError(where, got, "text in every sentence")
    is_numbers = style.gold_as == "numbers"
    allowed = range(count) if is_numbers else range(2)
    good = isinstance(values, list) and all(type(value) is int and value in allowed for value in values)
    if not good or (not is_numbers and len(values) != count):
        expected = f"numbers of sentences, 0 to {count - 1}" if is_numbers else f"0 or 1 for each of {count} sentences"
        fix = "correct the row, data.gold_field or data.gold_as"
        raise RowError(where, f"{values!r:.80} in field {field!r}", expected, fix)
    return tuple(sorted(set(values))) if is_numbers else tuple(i for i, label in enumerate(values) if label)
