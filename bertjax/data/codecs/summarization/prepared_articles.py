"""The codecs of articles with their summaries."""

import abc
import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertjax import words
from bertjax.data.codecs.codec import Encoded, Input, Survey, TrainingCodec, TrainingRows, limits_of, of_seq_len
from bertjax.data.codecs.summarization import article_rows, article_text, articles, summary_rows
from bertjax.data.codecs.summarization.article_rows import ArticleRow, ArticleRowsConfig
from bertjax.data.codecs.summarization.article_text import LabelsConfig
from bertjax.data.codecs.summarization.articles import Article, ArticlesConfig
from bertjax.data.codecs.summarization.limits import ArticleLimits, LimitedArticle, limit
from bertjax.data.codecs.summarization.oracle import oracle
from bertjax.data.readers.lines import BadRows
from bertjax.data.rows.stored import Fields, Row, fields_of
from bertjax.data.splits import TRAIN
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

# Recommended flags if few letters of the summaries are ASCII.
OF_OTHER_LETTERS = "--config.data.oracle.letters=unicode --config.rouge.flavor=unicode --config.rouge.stem=False"
_LOOKED_AT = 1000  # the number of articles from which the share of ASCII letters is estimated


class ArticleRows(NamedTuple):
    """The part of an article within the limits, and its rows."""

    article: LimitedArticle
    rows: Sequence[ArticleRow]


@dataclasses.dataclass(frozen=True)
class ArticleCodec(TrainingCodec[Article]):
    """Articles with their summaries: one row for each article, or several for a long one.

    An article out of limits is left out of training. In validation and prediction it is cut.

    Attributes:
      gold_suffices: whether the sentences that annotators selected are the summary of an article without one.
      predicted_inputs: fields of `ArticleRow` that only predictions read.
      articles: the articles to read. Those of training have summaries.
      labels: the limits on articles, and the oracle.
      rows: the conversion of articles to rows.
      tokenizer: the tokenizer.
      inputs: the fields of `ArticleRow` that the model reads.
    """

    gold_suffices: ClassVar[bool] = False
    predicted_inputs: ClassVar[tuple[str, ...]] = ()
    articles: ArticlesConfig
    labels: LabelsConfig
    rows: ArticleRowsConfig
    tokenizer: Tokenizer
    inputs: tuple[str, ...]

    def key(self) -> Any:
        """Raises UserError for missing sources."""
        configs = [dataclasses.asdict(config) for config in (self.labels, self.rows)]
        splitter = metadata.version("nltk")  # NLTK splits sentences and stems words
        return [article_text.fingerprints(self.articles), configs, self.tokenizer.key, self.inputs, splitter]

    def splits(self) -> Iterator[tuple[str, Article]]:
        """Yields the training articles last, so that errors in the few others are found early."""
        first, *others = article_text.splits(self.articles)
        for split in (*others, first) if self.articles.source else others:
            for article in article_text.of_split(self.articles, split, gold_suffices=self.gold_suffices).articles():
                yield split, article

    def lines(self, lines: Iterable[str], bad_rows: BadRows) -> Iterator[Input]:
        """Returns one article of all lines, or one per line; see `ArticleFormat.layout`."""
        return map(_input, articles.parse(lines, self.articles, bad_rows))

    def objects(self, values: Iterable[Any], bad_rows: BadRows, first: int = 1) -> Iterator[Input]:
        """Returns one article per text, whose lines are those of a text file."""
        return map(_input, articles.parse_each(values, self.articles, bad_rows))

    def file(self, path: str, bad_rows: BadRows) -> Iterator[Input]:
        """Returns the articles of files or a folder; see `article_formats.read`."""
        return map(_input, articles.read(path, "--input", self.articles, bad_rows))

    def survey(self) -> Survey[Article]:
        return ArticleSurvey(self.articles.gold_field, self.labels.limits)

    def text(self, example: Article) -> str:
        return "\n".join(example.sentences)

    def gold(self, example: Article) -> tuple[str, ...] | None:
        """Returns the sentences of the summary."""
        return example.summary

    def scored(self, example: Article) -> Article:
        """If the source selects no sentences, the article gets those of the oracle as `gold`."""
        return example._replace(gold=self.chosen(example))

    def chosen(self, article: Article) -> tuple[int, ...]:
        """Returns the numbers of the selected sentences: those of the source if it has any, otherwise the oracle's."""
        if article.gold is not None:
            return article.gold
        return oracle(article.sentences, article.summary or (), self.labels.oracle)

    def limited(self, article: Article) -> LimitedArticle:
        """Returns the part of an article within the limits, with the sentences in `gold` as labels."""
        part = limit(article, article.gold or (), self.labels.limits, drops=False)
        assert isinstance(part, LimitedArticle)
        return part

    def encode(self, examples: Sequence[Article]) -> Encoded:
        """Returns the rows of the parts within the limits; `kept` is an `ArticleRows`."""
        kept = [self.rows_of(self.limited(example)) for example in examples]
        fields = fields_of(row.inputs for _, rows in kept for row in rows)
        sizes = np.array([len(rows) for _, rows in kept], np.int32)
        cut = limits_of("data.limits allow", truncated=[article.is_cut for article, _ in kept])
        truncated = [any(row.is_cut for row in rows) for _, rows in kept]
        of_rows = limits_of(of_seq_len(self.rows.seq_len), truncated=truncated, split=sizes > 1)
        return Encoded(fields, sizes, [{**one, **other} for one, other in zip(cut, of_rows, strict=True)], kept)

    def rows_of(self, article: LimitedArticle) -> ArticleRows:
        """Returns an article within the limits with its rows."""
        inputs = (*self.inputs, *self.predicted_inputs)
        return ArticleRows(article, article_rows.rows(article.sentences, self.tokenizer, self.rows, inputs))

    def training(self, examples: Sequence[Article]) -> TrainingRows:
        parts = [limit(example, self.targets(example), self.labels.limits, drops=True) for example in examples]
        encoded = [self.rows_of(part) for part in parts if isinstance(part, LimitedArticle)]
        truncated = sum(article.is_cut or any(row.is_cut for row in rows) for article, rows in encoded)
        counts = {"articles_truncated": truncated, **self.counts([article for article, _ in encoded])}
        left_out = Counter(part for part in parts if isinstance(part, str))
        return TrainingRows(self._fields(encoded), counts, left_out=left_out)

    def fields(self, articles: Iterable[LimitedArticle]) -> Fields:
        """Returns the fields of the rows of articles, with their targets."""
        return self._fields(map(self.rows_of, articles))

    def _fields(self, encoded: Iterable[ArticleRows]) -> Fields:
        return fields_of(
            {
                name: array
                for name, array in self.with_targets(article, row).items()
                if name not in self.predicted_inputs
            }
            for article, rows in encoded
            for row in rows
        )

    def counts(self, articles: Iterable[LimitedArticle]) -> Mapping[str, int]:
        """Returns counts of training articles for the report."""
        return {}

    @abc.abstractmethod
    def targets(self, article: Article) -> Sequence[int]:
        """Returns the numbers of the sentences that have label 1 in training."""

    @abc.abstractmethod
    def with_targets(self, article: LimitedArticle, row: ArticleRow) -> Row:
        """Returns a row of an article with its targets."""

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Raises UserError if the limits drop all training articles."""
        if not report["rows"][TRAIN]:
            raise UserError(
                "config keys data.limits",
                got=f"limits that drop all articles of the split {TRAIN}",
                expected="limits that some articles satisfy",
                fix="lower data.limits.min_sentences, min_words or min_summary_words",
            )

    def restored(self, values: Any) -> Article:
        id_, sentences, summary, gold, where, *more = values
        summary, gold = (None if each is None else tuple(each) for each in (summary, gold))
        references = map(tuple, more[0] if more else ())  # rows of earlier versions have none
        return Article(id_, tuple(sentences), summary, gold, where, tuple(references))


@dataclasses.dataclass(frozen=True)
class ExtractiveCodec(ArticleCodec):
    """Articles whose rows have the labels of sentences; see `article_rows.with_labels`."""

    kind = "ExtractiveRows"
    predicted_inputs = ("cls_positions",)

    gold_suffices = True

    def targets(self, article: Article) -> Sequence[int]:
        return self.chosen(article)

    def counts(self, articles: Iterable[LimitedArticle]) -> Mapping[str, int]:
        """Returns the counts; "articles_without_labels" counts articles without a sentence with label 1."""
        return {"articles_without_labels": sum(not any(article.labels) for article in articles)}

    def with_targets(self, article: LimitedArticle, row: ArticleRow) -> Row:
        return article_rows.with_labels(row, article.labels)

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Raises UserError if no article has a sentence with label 1.

        Logs a warning if most articles have none, or if the oracle ignores most letters.
        """
        super().check(facts, report)
        config, number = self.labels.oracle, report["rows"][TRAIN]
        count = number - report["articles_without_labels"]
        is_ascii = config.letters == "ascii" and config.method != "verbatim"  # "verbatim" compares no words
        seen = facts["ascii_share"] if is_ascii else 1.0
        if 2 * count >= number and seen >= 0.5:
            return
        got = f"{count} of {number} articles in which the oracle selects a sentence"
        fix = "check that the summaries belong to the articles"
        if config.method == "verbatim":
            fix += ", and that they have one sentence per line"
        if seen < 0.5:
            got += f"; the oracle reads ASCII letters only, {seen:.0%} of the letters of the summaries"
        if is_ascii:
            fix += f"; if they are not in English, set {OF_OTHER_LETTERS}"
        if not count:
            raise UserError(
                "config keys data.{source,oracle}", got=got, expected="a selected sentence in most articles", fix=fix
            )
        _log.warning("%s; %s", got, fix)


@dataclasses.dataclass(frozen=True)
class AbstractiveCodec(ArticleCodec):
    """Articles whose rows have the tokens of the summary; see `summary_rows.target`.

    Attributes:
      target_len: the maximum number of tokens of a summary.
    """

    kind = "AbstractiveRows"
    target_len: int

    def key(self) -> Any:
        return [super().key(), self.target_len]

    def targets(self, article: Article) -> Sequence[int]:
        """Returns none: there are none, because only summaries are learned."""
        return ()

    def with_targets(self, article: LimitedArticle, row: ArticleRow) -> Row:
        """Returns the row; "labels" are int32 of the summary's length."""
        ids, _ = self._target(article)
        return {**row.inputs, "labels": ids}

    def counts(self, articles: Iterable[LimitedArticle]) -> Mapping[str, int]:
        """Returns the counts; "summaries_truncated" counts summaries that are longer than a limit."""
        return {"summaries_truncated": sum(self._target(each)[1] for each in articles)}

    def _target(self, article: LimitedArticle) -> tuple[np.ndarray, bool]:
        """Returns the tokens of the summary, and whether it was truncated."""
        ids = summary_rows.target(article.summary or (), self.tokenizer, self.rows.words)
        kept = np.append(ids[:-1][: self.target_len - 1], ids[-1:])
        return kept, len(kept) < len(ids) or article.summary != article.article.summary


def _input(article: Article) -> Input:
    return Input(article, article.columns or {})


class ArticleSurvey(Survey[Article]):
    """Estimates the share of ASCII letters in training summaries, from articles that the oracle labels."""

    def __init__(self, gold_field: str, limits: ArticleLimits) -> None:
        """Initializes the survey.

        Args:
          gold_field: the field with the selected sentences; "" for none.
          limits: the limits on training articles.
        """
        self._gold_field, self._limits = gold_field, limits
        self._without, self._seen = Counter[str](), list[Article]()

    def add(self, split: str, examples: Sequence[Article]) -> None:
        without = [article for article in examples if article.gold is None]
        self._without[split] += len(without)
        for article in without if split == TRAIN else ():
            limited = len(self._seen) < _LOOKED_AT and limit(article, (), self._limits, drops=True)
            if isinstance(limited, LimitedArticle):
                self._seen.append(article)

    def facts(self) -> dict[str, Any]:
        """Logs a warning if articles lack the field `gold_field`."""
        for split, count in (+self._without).items() if self._gold_field else ():
            _log.warning("%s: %d articles have no field %r; the oracle labels them", split, count, self._gold_field)
        return {"ascii_share": ascii_share(self._seen)}


def ascii_share(articles: Iterable[Article]) -> float:
    """Returns the share of ASCII letters in the first summaries. With "ascii", the oracle and ROUGE use only these."""
    found = itertools.islice(articles, _LOOKED_AT)
    return words.ascii_share(sentence for article in found for sentence in article.summary or ())
