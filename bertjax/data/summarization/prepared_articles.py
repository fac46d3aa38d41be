"""Articles with their summaries as prepared rows."""

import abc
import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from bertjax import words
from bertjax.data.prepared import TRAIN, Encoded, Recipe, Survey
from bertjax.data.rows.stored import Fields, Row, fields_of
from bertjax.data.summarization import article_rows, article_text, summary_rows
from bertjax.data.summarization.article_rows import ArticleRow, ArticleRowsConfig
from bertjax.data.summarization.article_text import LabelsConfig
from bertjax.data.summarization.articles import Article, ArticlesConfig
from bertjax.data.summarization.limits import ArticleLimits, LimitedArticle, limit
from bertjax.data.summarization.oracle import oracle
from bertjax.data.text.tokenizers import WordPiece
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

# The advice if few letters of the summaries are ASCII.
OF_OTHER_LETTERS = "--config.data.oracle.letters=unicode --config.rouge.flavor=unicode --config.rouge.stem=False"
_LOOKED_AT = 1000  # articles that the share of ASCII letters is estimated from


@dataclasses.dataclass(frozen=True)
class ArticleRecipe(Recipe[Article]):
    """Articles as rows. Articles out of limits are left out of the training rows only.

    Attributes:
      articles: the articles to read. Each has a summary.
      labels: the limits of articles, and the oracle.
      rows: how articles become rows.
      tokenizer: the tokenizer.
      inputs: the row fields that the model reads, see `ArticleRow`.
    """

    articles: ArticlesConfig
    labels: LabelsConfig
    rows: ArticleRowsConfig
    tokenizer: WordPiece
    inputs: tuple[str, ...]

    def key(self) -> Any:
        """See `Recipe.key`. Raises UserError for missing sources."""
        configs = [dataclasses.asdict(config) for config in (self.labels, self.rows)]
        splitter = metadata.version("nltk")  # which splits sentences and stems words
        return [article_text.fingerprints(self.articles), configs, self.tokenizer.key, self.inputs, splitter]

    def read(self) -> Iterator[tuple[str, Article]]:
        """See `Recipe.read`. Training articles come last, so that errors in the few others are found soon."""
        first, *others = article_text.splits(self.articles)
        for split in (*others, first) if self.articles.source else others:
            for article in article_text.of_split(self.articles, split).articles():
                yield split, article

    def survey(self) -> Survey[Article]:
        """See `Recipe.survey`."""
        return ArticleSurvey(self.articles.gold_field, self.labels.limits)

    def text(self, row: Article) -> str:
        """See `Recipe.text`."""
        return "\n".join(row.sentences)

    def scored(self, row: Article) -> Article:
        """The article with the oracle's sentences as `gold` if its source names none."""
        return row._replace(gold=self.chosen(row))

    def chosen(self, article: Article) -> tuple[int, ...]:
        """The numbers of the sentences to choose: those that the source names, otherwise the oracle's."""
        if article.gold is not None:
            return article.gold
        return oracle(article.sentences, article.summary or (), self.labels.oracle)

    def limited(self, article: Article) -> LimitedArticle:
        """A validation or test article of `scored` within the limits."""
        found = limit(article, article.gold or (), self.labels.limits, drops=False)
        assert found is not None
        return found

    def encode(self, rows: Sequence[Article]) -> Encoded:
        """See `Recipe.encode`."""
        limited = (limit(row, self.targets(row), self.labels.limits, drops=True) for row in rows)
        found = [article for article in limited if article is not None]
        return Encoded(self.fields(found), {"articles_left_out": len(rows) - len(found), **self.counts(found)})

    def fields(self, articles: Iterable[LimitedArticle]) -> Fields:
        """The fields of the rows of articles, with what is to be learned."""
        return fields_of(self.with_targets(article, row) for article in articles for row in self._rows(article))

    def _rows(self, article: LimitedArticle) -> list[ArticleRow]:
        return article_rows.rows(article.sentences, self.tokenizer, self.rows, self.inputs)

    def counts(self, articles: Iterable[LimitedArticle]) -> Mapping[str, int]:
        """Counts of training articles for the report."""
        return {}

    @abc.abstractmethod
    def targets(self, article: Article) -> Sequence[int]:
        """The numbers of the sentences whose label is 1 in training."""

    @abc.abstractmethod
    def with_targets(self, article: LimitedArticle, row: ArticleRow) -> Row:
        """A row of an article with what is to be learned."""

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Raises UserError if the limits leave no training article."""
        if report["articles_left_out"] == report["rows"][TRAIN]:
            raise UserError(
                "config keys data.limits",
                got=f"limits that leave nothing of the split {TRAIN}",
                expected="articles of more sentences and words than that",
                fix="lower data.limits.min_sentences, min_words or min_summary_words",
            )

    def restored(self, values: Any) -> Article:
        """See `Recipe.restored`."""
        id_, sentences, summary, gold, where = values
        summary, gold = (None if each is None else tuple(each) for each in (summary, gold))
        return Article(id_, tuple(sentences), summary, gold, where)


@dataclasses.dataclass(frozen=True)
class ExtractiveRows(ArticleRecipe):
    """Rows with the labels of sentences; see `article_rows.with_labels`."""

    def targets(self, article: Article) -> Sequence[int]:
        """See `ArticleRecipe.targets`."""
        return self.chosen(article)

    def counts(self, articles: Iterable[LimitedArticle]) -> Mapping[str, int]:
        """See `ArticleRecipe.counts`; "articles_without_labels" articles have no sentence with label 1."""
        return {"articles_without_labels": sum(not any(article.labels) for article in articles)}

    def with_targets(self, article: LimitedArticle, row: ArticleRow) -> Row:
        """See `ArticleRecipe.with_targets`."""
        return article_rows.with_labels(row, article.labels)

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Raises UserError if no article has a sentence with label 1.

        Warns if most articles have none, or if the oracle ignores most letters.
        """
        super().check(facts, report)
        config, number = self.labels.oracle, report["rows"][TRAIN] - report["articles_left_out"]
        count = number - report["articles_without_labels"]
        is_ascii = config.letters == "ascii" and config.method != "verbatim"  # no words compared
        seen = facts["ascii_share"] if is_ascii else 1.0
        if 2 * count >= number and seen >= 0.5:
            return
        got = f"{count} of {number} articles with a sentence that belongs in their summary"
        fix = "check that the summaries are those of the articles"
        if config.method == "verbatim":
            fix += ", and that they have one sentence a line"
        if seen < 0.5:
            got += f", by ASCII letters, which are {seen:.0%} of the letters of the summaries"
        if is_ascii:
            fix += f"; if they are not in English, set {OF_OTHER_LETTERS}"
        if not count:
            raise UserError("config keys data.{source,oracle}", got=got, expected="one in most", fix=fix)
        _log.warning("%s; %s", got, fix)


@dataclasses.dataclass(frozen=True)
class AbstractiveRows(ArticleRecipe):
    """Rows with the tokens of the summary; see `summary_rows.target`.

    Attributes:
      target_len: the most tokens of a summary.
    """

    target_len: int

    def key(self) -> Any:
        """See `Recipe.key`."""
        return [super().key(), self.target_len]

    def targets(self, article: Article) -> Sequence[int]:
        """See `ArticleRecipe.targets`; none, because only summaries are learned."""
        return ()

    def with_targets(self, article: LimitedArticle, row: ArticleRow) -> Row:
        """See `ArticleRecipe.with_targets`; `labels` is int32 of the summary's length."""
        ids = summary_rows.target(article.summary or (), self.tokenizer, self.rows.words, self.target_len)
        return {**row.inputs, "labels": ids}


class ArticleSurvey(Survey[Article]):
    """The share of ASCII letters among those of training summaries, of articles that the oracle labels."""

    def __init__(self, gold_field: str, limits: ArticleLimits) -> None:
        """Initializes the survey.

        Args:
          gold_field: the field with the sentences to choose; "" for none.
          limits: the limits of training articles.
        """
        self._gold_field, self._limits = gold_field, limits
        self._without, self._seen = Counter[str](), list[Article]()

    def add(self, split: str, rows: Sequence[Article]) -> None:
        """See `Survey.add`."""
        without = [article for article in rows if article.gold is None]
        self._without[split] += len(without)
        for article in without if split == TRAIN else ():
            if len(self._seen) < _LOOKED_AT and limit(article, (), self._limits, drops=True):
                self._seen.append(article)

    def facts(self) -> dict[str, Any]:
        """See `Survey.facts`. Warns of articles that lack the field."""
        for split, count in (+self._without).items() if self._gold_field else ():
            _log.warning("%s: %d articles without field %r, where the oracle chooses", split, count, self._gold_field)
        return {"ascii_share": ascii_share(self._seen)}


def ascii_share(articles: Iterable[Article]) -> float:
    """The share of ASCII letters among the letters of the first summaries; the oracle and ROUGE may see only these."""
    found = itertools.islice(articles, _LOOKED_AT)
    return words.ascii_share(sentence for article in found for sentence in article.summary or ())
