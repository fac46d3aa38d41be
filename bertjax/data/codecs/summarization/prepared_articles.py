"""The recipes of articles with their summaries; see `bertjax.data.prepared`."""

import abc
import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, ClassVar

import numpy as np

from bertjax import words
from bertjax.data.codecs.summarization import article_rows, article_text, summary_rows
from bertjax.data.codecs.summarization.article_rows import ArticleRow, ArticleRowsConfig
from bertjax.data.codecs.summarization.article_text import LabelsConfig
from bertjax.data.codecs.summarization.articles import Article, ArticlesConfig
from bertjax.data.codecs.summarization.limits import ArticleLimits, LimitedArticle, limit
from bertjax.data.codecs.summarization.oracle import oracle
from bertjax.data.prepared import TRAIN, Encoded, Recipe, Survey
from bertjax.data.rows.stored import Fields, Row, fields_of
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

# Recommended flags if few letters of the summaries are ASCII.
OF_OTHER_LETTERS = "--config.data.oracle.letters=unicode --config.rouge.flavor=unicode --config.rouge.stem=False"
_LOOKED_AT = 1000  # the number of articles from which the share of ASCII letters is estimated


@dataclasses.dataclass(frozen=True)
class ArticleRecipe(Recipe[Article]):
    """The recipe of articles. Articles out of limits are dropped from the training rows only.

    Attributes:
      gold_suffices: whether the sentences that annotators selected are the summary of an article without one.
      articles: the articles to read. Each has a summary.
      labels: the limits on articles, and the oracle.
      rows: the conversion of articles to rows.
      tokenizer: the tokenizer.
      inputs: the row fields that the model reads; see `ArticleRow`.
    """

    gold_suffices: ClassVar[bool] = False
    articles: ArticlesConfig
    labels: LabelsConfig
    rows: ArticleRowsConfig
    tokenizer: Tokenizer
    inputs: tuple[str, ...]

    def key(self) -> Any:
        """See `Recipe.key`. Raises UserError for missing sources."""
        configs = [dataclasses.asdict(config) for config in (self.labels, self.rows)]
        splitter = metadata.version("nltk")  # NLTK splits sentences and stems words
        return [article_text.fingerprints(self.articles), configs, self.tokenizer.key, self.inputs, splitter]

    def read(self) -> Iterator[tuple[str, Article]]:
        """See `Recipe.read`. Training articles are last, so that errors in the few others are found early."""
        first, *others = article_text.splits(self.articles)
        for split in (*others, first) if self.articles.source else others:
            for article in article_text.of_split(self.articles, split, gold_suffices=self.gold_suffices).articles():
                yield split, article

    def survey(self) -> Survey[Article]:
        """See `Recipe.survey`."""
        return ArticleSurvey(self.articles.gold_field, self.labels.limits)

    def text(self, row: Article) -> str:
        """See `Recipe.text`."""
        return "\n".join(row.sentences)

    def scored(self, row: Article) -> Article:
        """See `Recipe.scored`. If the source selects no sentences, the article gets those of the oracle as `gold`."""
        return row._replace(gold=self.chosen(row))

    def chosen(self, article: Article) -> tuple[int, ...]:
        """Returns the numbers of the selected sentences: those of the source if it has any, otherwise the oracle's."""
        if article.gold is not None:
            return article.gold
        return oracle(article.sentences, article.summary or (), self.labels.oracle)

    def limited(self, article: Article) -> LimitedArticle:
        """Returns the part within the limits of a validation or test article from `scored`."""
        found = limit(article, article.gold or (), self.labels.limits, drops=False)
        assert isinstance(found, LimitedArticle)
        return found

    def encode(self, rows: Sequence[Article]) -> Encoded:
        """See `Recipe.encode`."""
        limited = [limit(row, self.targets(row), self.labels.limits, drops=True) for row in rows]
        pairs = [(each, self._rows(each)) for each in limited if isinstance(each, LimitedArticle)]
        truncated = sum(article.is_cut or any(row.is_cut for row in of_article) for article, of_article in pairs)
        counts = {"articles_truncated": truncated, **self.counts([article for article, _ in pairs])}
        return Encoded(self._fields(pairs), counts, left_out=Counter(each for each in limited if isinstance(each, str)))

    def fields(self, articles: Iterable[LimitedArticle]) -> Fields:
        """Returns the fields of the rows of articles, with their targets."""
        return self._fields((article, self._rows(article)) for article in articles)

    def _fields(self, pairs: Iterable[tuple[LimitedArticle, Sequence[ArticleRow]]]) -> Fields:
        return fields_of(self.with_targets(article, row) for article, of_article in pairs for row in of_article)

    def _rows(self, article: LimitedArticle) -> list[ArticleRow]:
        return article_rows.rows(article.sentences, self.tokenizer, self.rows, self.inputs)

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
        """See `Recipe.restored`."""
        id_, sentences, summary, gold, where, *more = values
        summary, gold = (None if each is None else tuple(each) for each in (summary, gold))
        references = map(tuple, more[0] if more else ())  # rows of earlier versions have none
        return Article(id_, tuple(sentences), summary, gold, where, tuple(references))


@dataclasses.dataclass(frozen=True)
class ExtractiveRows(ArticleRecipe):
    """The recipe of rows with the labels of sentences; see `article_rows.with_labels`."""

    gold_suffices: ClassVar[bool] = True

    def targets(self, article: Article) -> Sequence[int]:
        """See `ArticleRecipe.targets`."""
        return self.chosen(article)

    def counts(self, articles: Iterable[LimitedArticle]) -> Mapping[str, int]:
        """See `ArticleRecipe.counts`. "articles_without_labels" counts articles without a sentence with label 1."""
        return {"articles_without_labels": sum(not any(article.labels) for article in articles)}

    def with_targets(self, article: LimitedArticle, row: ArticleRow) -> Row:
        """See `ArticleRecipe.with_targets`."""
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
class AbstractiveRows(ArticleRecipe):
    """The recipe of rows with the tokens of the summary; see `summary_rows.target`.

    Attributes:
      target_len: the maximum number of tokens of a summary.
    """

    target_len: int

    def key(self) -> Any:
        """See `Recipe.key`."""
        return [super().key(), self.target_len]

    def targets(self, article: Article) -> Sequence[int]:
        """See `ArticleRecipe.targets`. There are none, because only summaries are learned."""
        return ()

    def with_targets(self, article: LimitedArticle, row: ArticleRow) -> Row:
        """See `ArticleRecipe.with_targets`. `labels` are int32 of the summary's length."""
        ids, _ = self._target(article)
        return {**row.inputs, "labels": ids}

    def counts(self, articles: Iterable[LimitedArticle]) -> Mapping[str, int]:
        """See `ArticleRecipe.counts`. "summaries_truncated" counts summaries that are longer than a limit."""
        return {"summaries_truncated": sum(self._target(each)[1] for each in articles)}

    def _target(self, article: LimitedArticle) -> tuple[np.ndarray, bool]:
        """Returns the tokens of the summary, and whether it was truncated."""
        ids = summary_rows.target(article.summary or (), self.tokenizer, self.rows.words)
        kept = np.append(ids[:-1][: self.target_len - 1], ids[-1:])
        return kept, len(kept) < len(ids) or article.summary != article.article.summary


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

    def add(self, split: str, rows: Sequence[Article]) -> None:
        """See `Survey.add`."""
        without = [article for article in rows if article.gold is None]
        self._without[split] += len(without)
        for article in without if split == TRAIN else ():
            limited = len(self._seen) < _LOOKED_AT and limit(article, (), self._limits, drops=True)
            if isinstance(limited, LimitedArticle):
                self._seen.append(article)

    def facts(self) -> dict[str, Any]:
        """See `Survey.facts`. Logs a warning if articles lack the field `gold_field`."""
        for split, count in (+self._without).items() if self._gold_field else ():
            _log.warning("%s: %d articles have no field %r; the oracle labels them", split, count, self._gold_field)
        return {"ascii_share": ascii_share(self._seen)}


def ascii_share(articles: Iterable[Article]) -> float:
    """Returns the share of ASCII letters in the first summaries. With "ascii", the oracle and ROUGE use only these."""
    found = itertools.islice(articles, _LOOKED_AT)
    return words.ascii_share(sentence for article in found for sentence in article.summary or ())
