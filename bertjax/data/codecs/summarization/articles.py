"""Articles with their summaries, split into sentences, for extractive and abstractive summarization."""

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from bertjax import korean
from bertjax.config import always, one_of
from bertjax.data.codecs.summarization import article_formats, docstring_summaries
from bertjax.data.codecs.summarization.article_formats import ArticleFormat, Stored
from bertjax.data.readers import documentation
from bertjax.data.readers.lines import BadRows, OnBadRow, RowError, check_text, named, of_row
from bertjax.data.splits import check_split, is_held_out
from bertjax.data.text import sentences
from bertjax.data.text.korean_sentences import is_korean
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

# Part of the fingerprint of Korean articles. Raise it when their sentences or lengths change.
_KOREAN_VERSION = 1
_NUM_SAMPLED = 100  # articles that decide whether a source is Korean
_DOCUMENTATION = "documentation"
_KEYS = {"train": "source", "valid": "valid_source", "test": "test_source"}


# "punkt" finds 99.5 % of the 14,185 sentences in the summaries of BBC News Summary (99.9 % in its test split); most of
# the others cross a line end. None of the libraries that were measured finds more, so English has no other splitter.
# `benchmarks.sentences` compares those for Korean.
_LINES = "lines"


@dataclasses.dataclass(frozen=True)
class ArticlesConfig(ArticleFormat):
    """The articles to read.

    A source is `documentation` (the embedded default, see `docstring_summaries`), or a source of
    `article_formats.read`: paths, globs and folders of .txt, .story and .pt files and tables, `.gz` or not, or
    `tfds:cnn_dailymail:train`.

    Attributes:
      source: the training data.
      valid_source: the validation data; "" to split them off the training data.
      test_source: the test data; "" for none.
      valid_fraction: the fraction that is split off if `valid_source` is empty. Equal texts, docstrings of one module,
        and both directions of a translation are in the same split.
      splitter: how lines of an article are split into sentences: "punkt"; "kiwi", which is kiwipiepy (extra
        `korean`) for Korean; or "lines" if each line is a sentence. With the first two, a line end ends a
        sentence, unless the text is wrapped: at least two lines, and a third of all, continue in lower case on the next
        line. Summaries have one sentence per line; lists of sentences are not split.
      on_bad_row: "stop" to raise an error at a bad row, article, sentence, pair or question; "skip" to skip and count
        it.
    """

    source: str = always("")
    valid_source: str = always("")
    test_source: str = always("")
    valid_fraction: float = always(0.1)
    splitter: Annotated[str, one_of(*sentences.SPLITTERS, _LINES)] = always("punkt")
    on_bad_row: OnBadRow = always("stop")


class Article(NamedTuple):
    """An article in its original text. It has at least one sentence; sentences are stripped and not empty."""

    id: str
    sentences: tuple[str, ...]
    summary: tuple[str, ...] | None  # the sentences of the summary; None if the source has none
    gold: tuple[int, ...] | None  # numbers of the sentences that annotators selected, ascending; None if not annotated
    where: str  # its position for messages, such as "file:line"
    references: tuple[tuple[str, ...], ...] = ()  # the sentences of further reference summaries, for scoring only
    columns: Mapping[str, Any] | None = None  # the values of its row, to predict


class Articles:
    """The articles of one split. Each iteration reads them again."""

    def __init__(
        self, config: ArticlesConfig, split: str, seed: int, needs_summary: bool, *, gold_suffices: bool = False
    ) -> None:
        """Checks the source.

        Args:
          config: the articles to read.
          split: "train", "valid" or "test".
          seed: the seed that selects validation articles.
          needs_summary: whether articles without summaries are an error.
          gold_suffices: see `article_formats.read`.
        Raises:
          UserError: if the source is not set, does not exist, lacks required summaries, or no row has `gold_field`.
        """
        self._config = config
        self._split = split
        self._seed = seed
        self._needs_summary = needs_summary
        self._gold_suffices = gold_suffices
        self._is_divided = split != "test" and not config.valid_source
        if self._is_divided:
            check_split(config.valid_source, config.valid_fraction)
        name = _KEYS["train" if self._is_divided else split]
        self._key = f"data.{name}"
        self._source = getattr(config, name)
        self._check_source()

    def articles(self) -> Iterator[Article]:
        """Yields the articles, in order.

        Raises:
          UserError: if a source cannot be read, an article is bad, with file and line, or there are no articles. In
            addition to the errors of `article_formats.read`, an article without letters is bad.
        """
        bad_rows = BadRows(self._config.on_bad_row)
        count = 0
        total = 0
        fraction = self._config.valid_fraction
        for group, article in self._all_articles(bad_rows):
            total += 1
            if not self._is_divided or is_held_out(group, fraction, self._seed) == (self._split == "valid"):
                count += 1
                yield article
        if not count:
            among, rule = (f" among {total}", "; articles with the same text share a split") if total else ("", "")
            raise UserError(
                f"config key {self._key}={self._source}",
                got=f"no articles for the split {self._split}{among}{bad_rows.skipped('bad articles')}",
                expected=f"at least one{rule}",
                fix="check the source, add articles, or change data.valid_fraction; "
                "config.data.on_bad_row=stop reports the first bad article",
            )
        _log.info("read %s of %s: %d articles%s", self._split, self._source, count, bad_rows.skipped("bad articles"))

    def fingerprint(self) -> dict[str, Any]:
        """Returns a JSON-serializable description of the articles, independent of their folder and time."""
        is_documentation = self._source == _DOCUMENTATION
        text = documentation.fingerprint() if is_documentation else article_formats.fingerprint(self._source, self._key)
        # Older runs lack `summary_as`. Without its default value, their fingerprint stays the same.
        is_default = self._config.summary_as == "sentences"
        fields = dataclasses.fields(ArticleFormat)
        names = [field.name for field in fields if field.name != "summary_as" or not is_default]
        return {
            "split": [self._split, self._config.valid_fraction, self._seed] if self._is_divided else [self._split],
            "text": text,
            **{key: getattr(self._config, key) for key in (*names, "splitter", "on_bad_row")},
            **({"kiwipiepy": korean.analyzer_version()} if self._config.splitter == sentences.KIWI else {}),
            **({"korean": _KOREAN_VERSION} if self._is_korean() else {}),
        }

    def _is_korean(self) -> bool:
        """Returns whether the first articles have Korean paragraphs."""
        if self._source == _DOCUMENTATION:
            return False
        stored = article_formats.read(self._source, self._key, self._config, False, BadRows("skip"))
        return any(is_korean(line) for article in itertools.islice(stored, _NUM_SAMPLED) for line in article.body)

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
                expected="articles with summaries: .story, .jsonl, .json or .csv files, or tfds:NAME[:SPLIT]",
                fix="use such files; --mode=predict summarizes plain text",
            )
        # Validation and test articles may lack the field.
        if self._config.gold_field and self._key == "data.source":
            article_formats.check_gold_field(self._source, self._key, self._config)

    def _all_articles(self, bad_rows: BadRows) -> Iterator[tuple[str, Article]]:
        """Yields all articles of the source, each with the text whose hash determines its split."""
        if self._source == _DOCUMENTATION:
            for name, module, body, summary in docstring_summaries.docstrings():
                yield module, Article(name, body, (summary,), None, name)
            return
        read = partial(article_formats.read, gold_suffices=self._gold_suffices)
        stored = read(self._source, self._key, self._config, self._needs_summary, bad_rows)
        for article in bad_rows.sift(map(partial(_split, splitter=self._config.splitter), stored)):
            yield "\n".join(article.sentences), article


def parse(texts: Iterable[str], config: ArticlesConfig, bad_rows: BadRows) -> Iterator[Article]:
    """Yields the articles in lines of input for prediction; see `ArticleFormat.layout`.

    Args:
      texts: the lines, checked with `check_text`.
      config: the format of articles.
      bad_rows: how to treat bad articles.
    Raises:
      UserError: if an article is bad, with its line, or there are no articles.
    """
    bodies = [list(texts)] if config.layout == "file" else ([text] for text in texts)
    return _parsed(bodies, config, bad_rows)


def parse_each(texts: Iterable[Any], config: ArticlesConfig, bad_rows: BadRows, first: int = 1) -> Iterator[Article]:
    """Yields the article in each text.

    Args:
      texts: the texts, each with any number of lines; or lists of lines.
      config: the format of the articles; `layout` is ignored.
      bad_rows: how to treat bad articles, which include objects that are not str.
      first: the number of the first text.
    Raises:
      UserError: if an article is bad, with its number; or if there are no texts.
    """
    bodies = (text.split("\n") if isinstance(text, str) else text for text in texts)
    return _parsed(bodies, config, bad_rows, first)


def _parsed(bodies: Iterable[Any], config: ArticlesConfig, bad_rows: BadRows, first: int = 1) -> Iterator[Article]:
    stored = bad_rows.sift(itertools.starmap(_of_lines, enumerate(bodies, start=first)))
    return _to_summarize(stored, "input", config, bad_rows)


def _of_lines(number: int, body: Any) -> Stored:
    where = f"input line {number}"
    if not isinstance(body, list) or not all(isinstance(line, str) for line in body):
        raise RowError(where, f"an object of type {type(body).__name__}", "a text (str)", "convert it to a str")
    for offset, line in enumerate(body):
        check_text(line, f"input line {number + offset}")
    return Stored(str(number), tuple(map(str.strip, body)), False, None, None, where)


def read(source: str, key: str, config: ArticlesConfig, bad_rows: BadRows) -> Iterator[Article]:
    """Yields the articles of files or of a TFDS dataset, with or without summaries.

    Args:
      source: a source of `article_formats.read`.
      key: the config key or flag of the source, for messages.
      config: the format of articles.
      bad_rows: how to treat bad articles.
    Raises:
      UserError: if a source cannot be read, an article is bad, or there are no articles.
    """
    stored = article_formats.read(source, key, config, False, bad_rows)
    return _to_summarize(stored, f"{named(key)}={source}", config, bad_rows)


def _to_summarize(stored: Iterable[Stored], where: str, config: ArticlesConfig, bad_rows: BadRows) -> Iterator[Article]:
    """Yields the articles. Raises UserError if there are none, neither good nor bad."""

    def split(row: Stored) -> Article:
        with of_row(row.columns):
            return _split(row, config.splitter)._replace(columns=row.columns or None)

    articles = bad_rows.sift(map(split, stored))
    count = 0
    for count, article in enumerate(articles, start=1):  # noqa: B007
        yield article
    if not count + bad_rows.count:
        raise UserError(where, got="no articles", expected="at least one", fix="check the input")


def _split(stored: Stored, splitter: str) -> Article:
    """Returns the article with its sentences."""
    sentences = stored.body if stored.is_split else _sentences(stored.body, splitter)
    if fault := _fault(sentences):
        raise RowError(stored.where, fault, "a text with letters", "add the text or delete the article")
    if stored.gold is not None and len(sentences) != len(stored.body):
        expected = "an article whose sentences are split already, so that the numbers refer to them"
        fix = "set --config.data.splitter=lines, or set data.gold_field to ''"
        raise RowError(stored.where, "sentence numbers, but the article is not split into sentences", expected, fix)
    return Article(stored.id, sentences, stored.summary, stored.gold, stored.where, stored.references)


def _sentences(body: Sequence[str], splitter: str) -> tuple[str, ...]:
    if splitter == _LINES:
        return tuple(filter(None, body))
    return tuple(s for paragraph in sentences.unwrap(body) for s in sentences.split(paragraph, splitter))


def _fault(sentences: Sequence[str]) -> str:
    """Returns why sentences are not an article; "" if they are."""
    if not sentences:
        return "an empty article"
    return "" if any(map(str.isalpha, "".join(sentences))) else "an article without letters"
