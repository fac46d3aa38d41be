"""Articles with their summaries, as sentences: what extractive and abstractive summarization read."""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from bertjax.config import one_of
from bertjax.data.readers import documentation
from bertjax.data.readers.lines import BadRows, OnBadRow, RowError, check_text, named
from bertjax.data.splits import check_split, is_held_out
from bertjax.data.summarization import article_formats, docstring_summaries
from bertjax.data.summarization.article_formats import ArticleFormat, Stored
from bertjax.data.text import sentences
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

_DOCUMENTATION = "documentation"
_KEYS = {"train": "source", "valid": "valid_source", "test": "test_source"}


def _by_punkt(lines: Sequence[str]) -> Iterator[list[str]]:
    return map(sentences.split, sentences.unwrap(lines))


def _by_lines(lines: Sequence[str]) -> Iterator[list[str]]:
    return ([line] for line in lines if line)


# What makes sentences of lines. Punkt with our lists (`sentences`) finds 99.5 % of the 14,185 sentences that the
# summaries of BBC News Summary are made of (99.9 % in its test split), and most of the others go over a line end. No
# kept library that was measured finds more, so there is no second one to choose.
_SPLITTERS: dict[str, Callable[[Sequence[str]], Iterator[list[str]]]] = {"punkt": _by_punkt, "lines": _by_lines}


@dataclasses.dataclass(frozen=True)
class ArticlesConfig(ArticleFormat):
    """Which articles to read.

    A source is `documentation` (the embedded default, see `docstring_summaries`), or what `article_formats.read` takes:
    paths, globs and folders of .txt, .story, .jsonl, .json and .csv files, `.gz` or not, or
    `tfds:cnn_dailymail:train`.

    Attributes:
      source: articles to train on.
      valid_source: held-out articles; empty to hold out some of those to train on.
      test_source: articles to test on; empty for none.
      valid_fraction: which fraction is held out if `valid_source` is empty: articles of one text on one side, and
        docstrings of one module.
      splitter: what makes sentences of the lines of an article: "punkt", or "lines" where each line is a sentence.
        To the former a line end ends a sentence, unless the text is wrapped: two lines at least, and a third of all, go
        on in lower case in the next one; then a blank line does. Summaries always have one a line, and lists of
        sentences are left as they are.
      on_bad_row: "stop" at a bad article, or "skip" and count it.
    """

    source: str
    valid_source: str
    test_source: str
    valid_fraction: float
    splitter: Annotated[str, one_of(*_SPLITTERS)]
    on_bad_row: OnBadRow


class Article(NamedTuple):
    """An article as it was written. It has one sentence or more, none of them empty or with outer spaces."""

    id: str
    sentences: tuple[str, ...]
    summary: tuple[str, ...] | None  # its sentences; None if the source has none
    gold: tuple[int, ...] | None  # numbers of the sentences that someone chose, ascending; None if the source has none
    where: str  # "file:line" (or the like), for messages


class Articles:
    """The articles of one split, read anew each time."""

    def __init__(self, config: ArticlesConfig, split: str, seed: int, needs_summary: bool) -> None:
        """Args: which articles; "train", "valid" or "test"; what draws those held out; whether each has a summary.

        Raises:
          UserError: a source that is not given, is not there, has no summaries although it needs them, or none of the
            chosen sentences that it is said to have.
        """
        self._config, self._split, self._seed, self._needs_summary = config, split, seed, needs_summary
        self._is_divided = split != "test" and not config.valid_source
        if self._is_divided:
            check_split(config.valid_source, config.valid_fraction)
        name = _KEYS["train" if self._is_divided else split]
        self._key, self._source = f"data.{name}", getattr(config, name)
        self._check_source()

    def articles(self) -> Iterator[Article]:
        """Yields the articles, in order.

        Raises:
          UserError: a source that cannot be read; a bad article, with file and line; or no article at all. Bad are,
            besides those of `article_formats.read`, articles without a letter.
        """
        bad_rows = BadRows(self._config.on_bad_row)
        count, fraction = 0, self._config.valid_fraction
        for group, article in self._all_articles(bad_rows):
            if not self._is_divided or is_held_out(group, fraction, self._seed) == (self._split == "valid"):
                count += 1
                yield article
        if not count:
            raise UserError(
                f"config key {self._key}={self._source}",
                got=f"no articles for the split {self._split} ({bad_rows.count} bad ones left out)",
                expected="at least one",
                fix="check that the source is the one meant, give more articles, or change data.valid_fraction; "
                "config.data.on_bad_row=stop tells of the first bad article",
            )
        _log.info("read %s of %s: %d articles, %d left out", self._split, self._source, count, bad_rows.count)

    def fingerprint(self) -> dict[str, Any]:
        """Returns a JSON-able description of what is read, which tells nothing of its place and time."""
        is_documentation = self._source == _DOCUMENTATION
        text = documentation.fingerprint() if is_documentation else article_formats.fingerprint(self._source, self._key)
        read = [field.name for field in dataclasses.fields(ArticleFormat)]
        return {
            "split": [self._split, self._config.valid_fraction, self._seed] if self._is_divided else [self._split],
            "text": text,
            **{key: getattr(self._config, key) for key in (*read, "splitter", "on_bad_row")},
        }

    def _check_source(self) -> None:
        if not self._source:
            fix = f"set --config.{self._key}=FILE"
            raise UserError(f"config key {self._key}", got="nothing", expected="articles to read", fix=fix)
        if self._source == _DOCUMENTATION:
            return
        if not article_formats.has_summaries(self._source, self._key) and self._needs_summary:
            raise UserError(
                f"config key {self._key}={self._source}",
                got="plain text, which has no summaries",
                expected="articles with their summaries: .story, .jsonl, .json or .csv files, or tfds:NAME[:SPLIT]",
                fix="give such files; --mode=predict summarizes plain text",
            )
        # Those that are held out may well have none of their own.
        if self._config.gold_field and self._key == "data.source":
            article_formats.check_gold_field(self._source, self._key, self._config)

    def _all_articles(self, bad_rows: BadRows) -> Iterator[tuple[str, Article]]:
        """Yields the articles of both sides, each with a text: those of one text are on one side."""
        if self._source == _DOCUMENTATION:
            for name, module, body, summary in docstring_summaries.docstrings():
                yield module, Article(name, body, (summary,), None, name)
            return
        stored = article_formats.read(self._source, self._key, self._config, self._needs_summary, bad_rows)
        for article in bad_rows.sift(map(partial(_split, splitter=self._config.splitter), stored)):
            yield "\n".join(article.sentences), article


def parse(texts: Iterable[str], config: ArticlesConfig, bad_rows: BadRows) -> Iterator[Article]:
    """Yields the articles in lines of text that is to be summarized; see `ArticleFormat.layout`.

    Args:
      texts: the lines, as `check_text` takes them.
      config: how they are read.
      bad_rows: what to do with a bad article.
    Raises:
      UserError: a bad article, with its line; or no article at all.
    """
    bodies = [list(texts)] if config.layout == "file" else ([text] for text in texts)
    return _parsed(bodies, config, bad_rows)


def parse_each(texts: Iterable[Any], config: ArticlesConfig, bad_rows: BadRows) -> Iterator[Article]:
    """Yields the article in each text.

    Args:
      texts: the texts, each with any number of lines.
      config: how they are read; `layout` is ignored.
      bad_rows: what to do with a bad article. An object that is not a str is one.
    Raises:
      UserError: for a bad article, with its number; or if there are no texts.
    """
    return _parsed((text.splitlines() if isinstance(text, str) else text for text in texts), config, bad_rows)


def _parsed(bodies: Iterable[Any], config: ArticlesConfig, bad_rows: BadRows) -> Iterator[Article]:
    stored = bad_rows.sift(itertools.starmap(_of_lines, enumerate(bodies, start=1)))
    return _to_summarize(stored, "input", config, bad_rows)


def _of_lines(number: int, body: Any) -> Stored:
    where = f"input line {number}"
    if not isinstance(body, list):
        raise RowError(where, f"an object of type {type(body).__name__}", "a text (str)", "convert it")
    for offset, line in enumerate(body):
        check_text(line, f"input line {number + offset}")
    return Stored(str(number), tuple(map(str.strip, body)), False, None, None, where)


def read(source: str, key: str, config: ArticlesConfig, bad_rows: BadRows) -> Iterator[Article]:
    """Yields the articles of files or of a TFDS dataset, with summaries or without.

    Args:
      source: as `article_formats.read` takes it.
      key: the config key or flag that names it, for messages.
      config: how it is read.
      bad_rows: what to do with a bad article.
    Raises:
      UserError: a source that cannot be read, a bad article, or no article at all.
    """
    stored = article_formats.read(source, key, config, False, bad_rows)
    return _to_summarize(stored, f"{named(key)}={source}", config, bad_rows)


def _to_summarize(stored: Iterable[Stored], where: str, config: ArticlesConfig, bad_rows: BadRows) -> Iterator[Article]:
    """Yields the articles. Raises UserError if there are none, good or bad."""
    found = bad_rows.sift(map(partial(_split, splitter=config.splitter), stored))
    count = 0
    for count, article in enumerate(found, start=1):  # noqa: B007
        yield article
    if not count + bad_rows.count:
        fix = "check that it is the one meant"
        raise UserError(where, got="no articles", expected="at least one", fix=fix)


def _split(stored: Stored, splitter: str) -> Article:
    """Returns the article with its sentences."""
    found = stored.body if stored.is_split else _sentences(stored.body, splitter)
    if fault := _fault(found):
        raise RowError(stored.where, fault, "a text with letters", "complete or delete it")
    if stored.gold is not None and len(found) != len(stored.body):
        expected = "sentences that are parted already, so that their numbers mean the same"
        fix = "set --config.data.splitter=lines, or empty data.gold_field"
        raise RowError(stored.where, "numbers of sentences of an article that is still to be split", expected, fix)
    return Article(stored.id, found, stored.summary, stored.gold, stored.where)


def _sentences(body: Sequence[str], splitter: str) -> tuple[str, ...]:
    return tuple(itertools.chain.from_iterable(_SPLITTERS[splitter](body)))


def _fault(found: Iterable[str]) -> str:
    """What keeps sentences from being an article; "" if nothing."""
    found = list(found)
    if not found:
        return "an empty article"
    return "" if any(map(str.isalpha, "".join(found))) else "an article without a letter"
