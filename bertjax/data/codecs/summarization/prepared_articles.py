"""The codecs of articles with their summaries: rows of sentences to select, or of a summary to generate."""

import abc
import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from bertjax import words
from bertjax.data.codecs.codec import Encoded, Input, Survey, TrainingCodec, TrainingRows, limits_of
from bertjax.data.codecs.summarization import article_rows, article_text, articles, summary_rows
from bertjax.data.codecs.summarization.article_rows import ArticleRowsConfig
from bertjax.data.codecs.summarization.article_text import LabelsConfig
from bertjax.data.codecs.summarization.articles import Article, ArticlesConfig
from bertjax.data.codecs.summarization.limits import ArticleLimits, LimitedArticle, limit
from bertjax.data.codecs.summarization.oracle import oracle
from bertjax.data.readers.lines import BadRows
from bertjax.data.rows.stored import Fields, Ragged, fields_of, ragged
from bertjax.data.rows.windows import Part
from bertjax.data.splits import TRAIN
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.korean import analyzer_version

_log = logging.getLogger(__name__)

# Recommended flags if few letters of the summaries are ASCII.
OF_OTHER_LETTERS = "--config.data.oracle.letters=unicode --config.rouge.flavor=unicode --config.rouge.stem=False"
_LOOKED_AT = 1000  # the number of articles from which the share of ASCII letters is estimated


class ArticleParts(NamedTuple):
    """An article and the sentences of each of its rows."""

    article: LimitedArticle
    parts: tuple[Part, ...]  # for each row, the sentences in it, and those whose scores come from it


@dataclasses.dataclass(frozen=True)
class ArticleCodec(TrainingCodec[Article]):
    """Articles: one row for each window of an article.

    An article out of `data.limits` is left out of training, and cut for validation and prediction.

    Attributes:
      inputs: the row fields that the model reads; see `ArticleRow`.
      prediction_inputs: further row fields that it reads in validation and prediction.
      gold_suffices: whether the sentences that annotators selected are the summary of an article without one.
      articles: the articles to read. Those of training and validation have summaries.
      labels: the limits on articles, and the oracle.
      rows: the conversion of articles to rows.
      tokenizer: the tokenizer.
    """

    inputs: ClassVar[tuple[str, ...]]
    prediction_inputs: ClassVar[tuple[str, ...]] = ()
    gold_suffices: ClassVar[bool] = False
    articles: ArticlesConfig
    labels: LabelsConfig
    rows: ArticleRowsConfig
    tokenizer: EncoderTokenizer

    def __post_init__(self) -> None:
        if self.tokenizer.template.truncates_left:
            got = "'left', which removes the first sentences"
            expected = "'right', because articles are truncated at their end"
            fix = 'set "truncation_side": "right" in tokenizer_config.json of the folder'
            raise UserError("truncation_side of the tokenizer", got=got, expected=expected, fix=fix)

    def key(self) -> Any:
        """Returns the description. Raises UserError for missing sources."""
        configs = [dataclasses.asdict(config) for config in (self.labels, self.rows)]
        if self.labels.oracle.units == words.WORDS:
            del configs[0]["oracle"]["units"]  # rows that are older than the key stay valid
        splitter = metadata.version("nltk")  # NLTK splits sentences and stems words
        analyzer = [analyzer_version()] if self.labels.oracle.units == words.MORPHEMES else []
        fingerprints = article_text.fingerprints(self.articles)
        return [fingerprints, configs, self.tokenizer.key, self.inputs, splitter, *analyzer]

    def splits(self) -> Iterator[tuple[str, Article]]:
        """Yields the articles. Training articles are last, so that errors in the few others are found early."""
        first, *others = article_text.splits(self.articles)
        for split in (*others, first) if self.articles.source else others:
            for article in article_text.of_split(self.articles, split, gold_suffices=self.gold_suffices).articles():
                yield split, article

    def lines(self, lines: Iterable[str], bad_rows: BadRows) -> Iterator[Input]:
        """Returns one article of all lines, or one for each line; see `ArticleFormat.layout`."""
        return map(_input, articles.parse(lines, self.articles, bad_rows))

    def objects(self, values: Iterable[Any], bad_rows: BadRows, first: int = 1) -> Iterator[Input]:
        """Returns one article for each text, whose lines are those of a text file."""
        return map(_input, articles.parse_each(values, self.articles, bad_rows, first))

    def file(self, path: str, bad_rows: BadRows) -> Iterator[Input]:
        """Returns the articles of files, a folder or a TFDS dataset; see `article_formats.read`."""
        return map(_input, articles.read(path, "--input", self.articles, bad_rows))

    def survey(self) -> Survey[Article]:
        return ArticleSurvey(self.articles.gold_field, self.labels.limits)

    def text(self, example: Article) -> str:
        return "\n".join(example.sentences)

    def scored(self, example: Article) -> Article:
        """Returns the article with `gold`, for the metrics of the oracle."""
        return example._replace(gold=self.chosen(example))

    def chosen(self, article: Article) -> tuple[int, ...]:
        """Returns the numbers of the selected sentences: those of the source if it has any, otherwise the oracle's."""
        if article.gold is not None:
            return article.gold
        return oracle(article.sentences, article.summary or (), self.labels.oracle)

    def limited(self, example: Article) -> LimitedArticle:
        """Returns the part of an article that is validated or predicted."""
        article = limit(example, example.gold or (), self.labels.limits, drops=False)
        assert isinstance(article, LimitedArticle)
        return article

    def encode(self, examples: Sequence[Article]) -> Encoded:
        return self.encode_limited(list(map(self.limited, examples)))

    def encode_limited(self, limited: Sequence[LimitedArticle]) -> Encoded:
        """Returns the rows of articles within the limits; `extras` are the `ArticleParts` of each."""
        rows = [article_rows.rows(article.sentences, self.tokenizer, self.rows) for article in limited]
        names = (*self.inputs, *self.prediction_inputs)
        fields = fields_of({name: row.inputs[name] for name in names} for row in itertools.chain.from_iterable(rows))
        sizes = np.array(list(map(len, rows)), np.int32)
        of_articles = [{"truncated": "data.limits allow"} if article.is_cut else {} for article in limited]
        is_cut = [any(row.is_cut for row in of_article) for of_article in rows]
        of_rows = limits_of(self.rows.seq_len, truncated=is_cut, split=sizes > 1)
        limits = [{**of_article, **of_row} for of_article, of_row in zip(of_articles, of_rows, strict=True)]
        parts = [tuple(row.part for row in of_article) for of_article in rows]
        return Encoded(fields, sizes, limits, list(map(ArticleParts, limited, parts)))

    def training(self, examples: Sequence[Article]) -> TrainingRows:
        """Returns the rows of the articles within the limits, with their targets."""
        outcomes = [limit(example, self.labeled(example), self.labels.limits, drops=True) for example in examples]
        limited = [outcome for outcome in outcomes if isinstance(outcome, LimitedArticle)]
        left_out = Counter(outcome for outcome in outcomes if isinstance(outcome, str))
        rows = self.with_targets(limited) if limited else TrainingRows({}, {})
        return rows._replace(left_out=left_out)

    def with_targets(self, limited: Sequence[LimitedArticle]) -> TrainingRows:
        """Returns the rows of at least one article within the limits, with their targets."""
        encoded = self.encode_limited(limited)
        targets, counts = self.targets(encoded)
        truncated = sum("truncated" in limits for limits in encoded.limits)
        fields = {**{name: encoded.fields[name] for name in self.inputs}, **targets}
        return TrainingRows(fields, {"articles_truncated": truncated, **counts})

    @abc.abstractmethod
    def labeled(self, example: Article) -> Sequence[int]:
        """Returns the numbers of the sentences that have label 1 in training."""

    @abc.abstractmethod
    def targets(self, encoded: Encoded) -> tuple[Fields, Mapping[str, int]]:
        """Returns the fields that are learned from the rows of articles, and counts for the report."""

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Raises UserError if the limits drop all training articles."""
        if not report["rows"][TRAIN]:
            dropped = ", ".join(f"{count} by {key}" for key, count in report["left_out"].items())
            limits = self.labels.limits
            fix = f"lower {' and '.join(report['left_out'])}"
            if "data.limits.min_sentences" in report["left_out"]:
                fix += f" (now {limits.min_sentences}), or data.limits.min_words: shorter sentences do not count"
            got = f"limits that drop all articles of the split {TRAIN}: {dropped}"
            raise UserError("config keys data.limits", got=got, expected="limits that some articles satisfy", fix=fix)

    def restored(self, values: Any) -> Article:
        id_, sentences, summary, gold, where, *more = values
        references = more[0] if more else ()  # articles of earlier versions have none
        return Article(id_, tuple(sentences), _tuple(summary), _tuple(gold), where, tuple(map(tuple, references)))


@dataclasses.dataclass(frozen=True)
class ExtractiveCodec(ArticleCodec):
    """Articles with the labels of their sentences; see `article_rows.sentence_labels`."""

    kind = "ExtractiveRows"
    inputs = ("input_ids", "token_type_ids", "sentence_starts", "first_sentences")
    prediction_inputs = ("cls_positions",)
    gold_suffices = True

    def gold(self, example: Article) -> tuple[int, ...] | None:
        """Returns the numbers of the selected sentences."""
        return example.gold

    def labeled(self, example: Article) -> Sequence[int]:
        return self.chosen(example)

    def targets(self, encoded: Encoded) -> tuple[Fields, Mapping[str, int]]:
        """Returns the labels. "articles_without_labels" counts articles without a sentence with label 1."""
        rows = [(part, article.labels) for article, parts in encoded.extras for part in parts]
        fields = article_rows.sentence_labels(cast(Ragged, encoded.fields["sentence_starts"]), rows)
        return fields, {"articles_without_labels": sum(not any(article.labels) for article, _ in encoded.extras)}

    def check(self, facts: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Raises UserError if no article has a sentence with label 1.

        Logs a warning if most articles have none, or if the oracle ignores most letters.
        """
        super().check(facts, report)
        config = self.labels.oracle
        number = report["rows"][TRAIN]
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
    """Articles with the tokens of their summaries; see `summary_rows.target`. Each article has one row.

    Attributes:
      target_len: the maximum number of tokens of a summary.
    """

    kind = "AbstractiveRows"
    inputs = ("input_ids", "token_type_ids")
    target_len: int

    def key(self) -> Any:
        return [super().key(), self.target_len]

    def gold(self, example: Article) -> tuple[str, ...] | None:
        """Returns the sentences of the summary."""
        return example.summary

    def labeled(self, example: Article) -> Sequence[int]:
        """Returns no sentences, because only summaries are learned."""
        return ()

    def targets(self, encoded: Encoded) -> tuple[Fields, Mapping[str, int]]:
        """Returns `labels`, int32 of the summary's length. "summaries_truncated" counts those longer than a limit."""
        limited = [article for article, _ in encoded.extras]
        targets = [summary_rows.target(article.summary or (), self.tokenizer, self.rows.words) for article in limited]
        labels = [np.append(ids[:-1][: self.target_len - 1], ids[-1:]) for ids in targets]
        is_cut = [
            len(ids) > self.target_len or article.summary != article.article.summary
            for ids, article in zip(targets, limited, strict=True)
        ]
        return {"labels": ragged(labels)}, {"summaries_truncated": sum(is_cut)}


class ArticleSurvey(Survey[Article]):
    """Estimates the share of ASCII letters in training summaries, from articles that the oracle labels."""

    def __init__(self, gold_field: str, limits: ArticleLimits) -> None:
        """Initializes the survey.

        Args:
          gold_field: the field with the selected sentences; "" for none.
          limits: the limits on training articles.
        """
        self._gold_field = gold_field
        self._limits = limits
        self._without = Counter[str]()
        self._seen = list[Article]()

    def add(self, split: str, examples: Sequence[Article]) -> None:
        without = [article for article in examples if article.gold is None]
        self._without[split] += len(without)
        for article in without if split == TRAIN else ():
            limited = len(self._seen) < _LOOKED_AT and limit(article, (), self._limits, drops=True)
            if isinstance(limited, LimitedArticle):
                self._seen.append(article)

    def facts(self) -> dict[str, Any]:
        """Returns the share. Logs a warning if articles lack the field `gold_field`."""
        for split, count in (+self._without).items() if self._gold_field else ():
            _log.warning("%s: %d articles have no field %r; the oracle labels them", split, count, self._gold_field)
        return {"ascii_share": ascii_share(self._seen)}


def ascii_share(articles: Iterable[Article]) -> float:
    """Returns the share of ASCII letters in the first summaries. With "ascii", the oracle and ROUGE use only these."""
    first = itertools.islice(articles, _LOOKED_AT)
    return words.ascii_share(sentence for article in first for sentence in article.summary or ())


def _input(article: Article) -> Input:
    return Input(article, article.columns or {})


def _tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)
