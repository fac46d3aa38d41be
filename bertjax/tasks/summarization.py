"""Base classes of summarization: config, articles, vocabulary and tasks. Metrics of summaries."""

import abc
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from flax import linen as nn
from jaxtyping import Float

from bertjax import words
from bertjax.config import one_of, part
from bertjax.contract import Example, Params
from bertjax.data.codecs.summarization import article_rows, article_text, articles
from bertjax.data.codecs.summarization.article_rows import ArticleRow, ArticleRowsConfig
from bertjax.data.codecs.summarization.article_text import ArticleText, LabelsConfig, TrainedVocabularyConfig
from bertjax.data.codecs.summarization.articles import Article, ArticlesConfig
from bertjax.data.codecs.summarization.limits import ArticleLimits, LimitedArticle, limit
from bertjax.data.codecs.summarization.prepared_articles import OF_OTHER_LETTERS, ArticleRecipe, ascii_share
from bertjax.data.prepared import PreparationConfig
from bertjax.data.readers.lines import BadRows
from bertjax.data.rows.buckets import (
    BucketedBatches,
    BucketsConfig,
    Padded,
    bucket_lengths,
    budget_sizes,
    check_seq_len,
)
from bertjax.data.rows.stored import Fields
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.data.text.vocabulary_config import load_tokenizer
from bertjax.decoding import selection
from bertjax.decoding.selection import Selection, SelectionConfig
from bertjax.interop import families
from bertjax.interop.families import presumm
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.progress import log_once
from bertjax.scoring import bootstrap, rouge
from bertjax.scoring.rouge import RougeConfig
from bertjax.tasks import bert, completion, inputs, pretrained
from bertjax.tasks.bert import BertTask, to_example
from bertjax.tasks.fine_tuning import WarmStartConfig
from bertjax.tasks.prepared_data import PreparedData

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
# Defaults of keys that neither the config nor `init_from` sets.
_ROWS = {"data.words": "bert", "data.interval_segments": True}
# Keys of `data` that may differ when a trained run is used: how articles are read and labeled.
FREE_AFTER_TRAINING = tuple(
    f"data.{key}"
    for key in (
        *("layout", "article_field", "summary_field", "summary_as", "gold_field", "gold_as", "splitter"),
        *("limits", "oracle", "seq_len", "long_articles", "window_overlap"),
    )
)
_SEQ_LEN, _OVERLAP = 512, 128  # the defaults
_ENDS = ("", "_low", "_high")
_OVER_LEAD = tuple(f"over_lead{end}" for end in (*_ENDS, "_p"))

Rules = Callable[[LimitedArticle], SelectionConfig]  # the selection rules for an article
Scores = Float[np.ndarray, " E"]


@dataclasses.dataclass(frozen=True)
class DataConfig(
    ArticlesConfig, LabelsConfig, ArticleRowsConfig, TrainedVocabularyConfig, PreparationConfig, BucketsConfig
):
    """The keys of `data`."""


@dataclasses.dataclass(frozen=True)
class SummarizationConfig(WarmStartConfig):
    """The config keys of all summarization.

    Attributes:
      batch_size: rows of an update, over all devices and micro-batches, if they have `data.seq_len` tokens. Batches of
        shorter rows hold a multiple of this, for about as many tokens.
      positions: the initial values of positions that the model in `init_from` lacks: "tile", repeated copies of all its
        positions; "repeat_last", copies of the last one, as PreSumm. See `pretrained.extend_positions`.
      rouge: the settings of ROUGE.
    """

    data: DataConfig
    positions: Annotated[str, one_of("tile", "repeat_last")]
    rouge: RougeConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seq_len(self.data.seq_len, self.model.max_positions)


C = TypeVar("C", bound=SummarizationConfig)


def resolve(config: Mapping[str, Any], published: Published | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what `init_from` determines, and the defaults of `data`.

    Args:
      config: the whole config.
      published: the weights in `init_from`, if any.
      defaults: see `completion.bert`.
    Raises:
      UserError: if keys contradict each other or `init_from`.
    """
    defaults = {**_ROWS, **defaults}
    config = completion.bert(config, published, seq_len=_SEQ_LEN, extends_positions=True, defaults=defaults)
    data = config["data"]
    if data.get("window_overlap", 0) is None and isinstance(length := data.get("seq_len"), int):
        data["window_overlap"] = _OVERLAP if length > _OVERLAP else length // 4
    return config


class Source(NamedTuple):
    """The article of an example, and its rows."""

    article: LimitedArticle
    rows: Sequence[ArticleRow]


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Encodes articles as examples.

    Attributes:
      tokenizer: the tokenizer, with the vocabulary.
      config: how articles become rows.
      inputs: the row fields that the model reads, see `ArticleRow`.
    """

    tokenizer: Tokenizer
    config: ArticleRowsConfig
    inputs: Sequence[str]

    def rows(self, article: LimitedArticle) -> list[ArticleRow]:
        """The rows of an article, at least one."""
        return article_rows.rows(article.sentences, self.tokenizer, self.config, self.inputs)

    def example(self, article: LimitedArticle) -> Example:
        """The example of an article. Its source is a `Source`."""
        rows = self.rows(article)
        is_cut = any(row.is_cut for row in rows)
        limited = {
            **inputs.limited("data.limits allow", truncated=article.is_cut),
            **inputs.limited(bert.of_seq_len(self.config.seq_len), truncated=is_cut, split=len(rows) > 1),
        }
        return to_example([row.inputs for row in rows], Source(article, rows), limited)

    def numbered(self, examples: Iterable[Example]) -> Iterable[Example]:
        """Returns the examples of one input, numbered if their outputs depend on their numbers."""
        return examples


class SummarizationData(PreparedData[C, Article]):
    """Articles, and a vocabulary in the folder, given or trained on the articles."""

    more: tuple[str, ...] = ()  # tokens to add to a trained vocabulary

    def __init__(self, config: C, folder: Path, published: Published | None) -> None:
        """See `Evaluable`."""
        super().__init__(config, folder, published)
        self.articles, vocabulary = part(ArticlesConfig, config.data), part(TrainedVocabularyConfig, config.data)
        self._text = ArticleText(folder, self.articles, vocabulary, config.data.words, self.more)

    @property
    def fingerprint(self) -> str:
        """See `Data.fingerprint`."""
        return self._text.fingerprint

    @property
    def has_vocabulary(self) -> bool:
        """See `PreparedData.has_vocabulary`."""
        return bool(self._config.data.vocab_file) or self._text.is_finished()

    def write_vocabulary(self) -> None:
        """Writes the vocabulary into the folder, after training it unless it is given."""
        self._text.run()

    @functools.cached_property
    def vocabulary(self) -> Tokenizer:
        """The folder's vocabulary if it is prepared or there are no training articles; otherwise the given one."""
        is_kept = not self._trains or self._text.is_finished()
        if not is_kept or presumm.is_checkpoint(self._folder):
            return article_text.named_vocabulary(self._config.data)
        return load_tokenizer(self._folder, self._config.data.lowercase)

    @abc.abstractmethod
    def rules(self, article: LimitedArticle) -> SelectionConfig:
        """The selection rules of the baselines for an article."""

    @property
    @abc.abstractmethod
    def encoding(self) -> Encoding:
        """The encoding of articles."""

    @functools.cached_property
    @abc.abstractmethod
    def recipe(self) -> ArticleRecipe:
        """How the articles are read and encoded."""

    @abc.abstractmethod
    def padded(self, fields: Fields) -> Padded:
        """The rows with the fields of `recipe`."""

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Data.complete`. Reads the validation and test articles, so that bad ones raise UserError early."""
        _ = self.scored
        return super().complete(config)

    @functools.cached_property
    def scored(self) -> Mapping[str, tuple[LimitedArticle, ...]]:
        """The validation and test articles, by split."""
        splits = article_text.splits(self.articles)[1:]
        return {split: tuple(map(self.recipe.limited, self.read.held_out(split))) for split in splits}

    @property
    def summarized(self) -> Mapping[str, Sequence[LimitedArticle]]:
        """The articles of `scored` that are summarized for metrics."""
        return self.scored

    @functools.cached_property
    def rows(self) -> Padded:
        """See `PreparedData.rows`."""
        return self.padded(self.prepared.train)

    @functools.cached_property
    def train(self) -> BucketedBatches:
        """See `PreparedData.train`."""
        return self.bucketed(self.rows)

    def examples(self, split: str) -> Iterator[Example]:
        """See `PreparedData.examples`; an example is an article."""
        return iter(self.encoding.numbered(map(self.encoding.example, self.summarized.get(split, ()))))

    def baselines(self) -> Mapping[str, float]:
        """Metrics of the first sentences and of the oracle; see `baselines`."""
        return baselines(self.summarized, self.rules, self._config.rouge)


class SummarizationTask(BertTask[C]):
    """A task that summarizes articles with a BERT encoder."""

    def __init__(
        self, config: C, encoding: Encoding, head: type[Any], model: Callable[[HeadConfig, Any], nn.Module]
    ) -> None:
        """Initializes the task; see `Experiment`.

        Args:
          config: the settings.
          encoding: the encoding of articles.
          head: the dataclass of the head.
          model: builds the whole model from the configurations of BERT and of the head.
        """
        self._encoding, self._head = encoding, part(head, config.model)
        encoder = config.model.encoder(encoding.tokenizer.vocab)
        super().__init__(config, encoding.tokenizer, encoder, model(encoder, self._head), config.data.seq_len)

    def warm_start(self, params: Params, published: Published) -> Params:
        """See `PredictionTask.warm_start`. `config.positions` selects how positions without weights are initialized."""
        tokens = self.new_tokens(published)
        return pretrained.warm_start(params, published, positions=self._config.positions, tokens=tokens)

    def predict_lengths(self) -> Sequence[int]:
        """See `PredictionTask.predict_lengths`."""
        return bucket_lengths(self._seq_len, self._config.data.row_lengths)

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, length) of each possible batch."""
        lengths = bucket_lengths(self._seq_len, self._config.data.row_lengths)
        return list(zip(budget_sizes(lengths, self._config.batch_size), lengths, strict=True))

    @property
    def limits(self) -> ArticleLimits:
        """The limits of articles to summarize."""
        return self._config.data.limits

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """One example of all lines, or one per line; see `ArticleFormat.layout`."""
        data, bad_rows = self._config.data, BadRows(self._config.data.on_bad_row)
        return self._examples(articles.parse(lines, data, bad_rows), bad_rows)

    def examples_of(self, path: str) -> Iterator[Example]:
        """One example per article of the files or folder; see `article_formats.read`."""
        data, bad_rows = self._config.data, BadRows(self._config.data.on_bad_row)
        return self._examples(articles.read(path, "--input", data, bad_rows), bad_rows)

    def examples_in(self, inputs: Iterable[Any]) -> Iterator[Example]:
        """One example per text, whose lines are those of a text file; see `PredictionTask.examples_in`."""
        data, bad_rows = self._config.data, BadRows(self._config.data.on_bad_row)
        return self._examples(articles.parse_each(inputs, data, bad_rows), bad_rows)

    def _examples(self, found: Iterator[Article], bad_rows: BadRows) -> Iterator[Example]:
        return iter(self._encoding.numbered(inputs.examples(found, self._example, bad_rows)))

    def _example(self, article: Article) -> Example:
        found = limit(article, article.gold or (), self.limits, drops=False)
        assert isinstance(found, LimitedArticle)
        return self._encoding.example(found)._replace(columns=article.columns or {})

    def line(self, record: Mapping[str, Any]) -> str:
        """The summary on one line."""
        return " ".join(record["summary"])

    def export(self, params: Params, folder: Path) -> None:
        """Writes weights and vocabulary; `transformers.AutoModel.from_pretrained` opens the encoder."""
        rows = {key: getattr(self._config.data, key) for key in ("words", "interval_segments")}
        bert, tokenizer = self._model_config, self._tokenizer
        family = self._config.model.family or families.of_model(vars(bert))
        presumm.save(folder, params, bert, self._head, rows, family=family, special=self._special)
        tokenizer.save(folder, bert.max_positions, token_types=bert.type_vocab_size > 1)


REFERENCE_FIELDS = ("reference", "references")  # of `with_reference`


def with_reference(record: dict[str, Any], article: Article) -> dict[str, Any]:
    """Adds the `reference` to a record if the article has one, and the list of all `references` if it has several."""
    if article.summary is None:
        return record
    several = {"references": list(map(list, _references(article)))} if article.references else {}
    return {**record, "reference": list(article.summary), **several}


def texts(article: LimitedArticle) -> list[str]:
    """The sentences within the limits, not truncated."""
    return [article.article.sentences[number] for number in article.numbers]


def select(article: LimitedArticle, scores: Scores, rules: SelectionConfig) -> Selection:
    """Selects the sentences of the summary. N-gram blocking ignores case, as in PreSumm."""
    found = [text.lower() for text in texts(article)]
    selected = selection.select(scores, found, rules)
    if rules.word_budget and not selected.chosen and min(len(words.split(text)) for text in found) > rules.word_budget:
        told = "a summary is empty: each sentence of its article has more words than selection.word_budget allows"
        log_once(told, logging.WARNING)
    return selected


def summary(article: LimitedArticle, scores: Scores, rules: SelectionConfig) -> list[str]:
    """The sentences of a summary."""
    found = texts(article)
    return [found[i] for i in select(article, scores, rules).chosen]


def lead(article: LimitedArticle, rules: SelectionConfig) -> list[str]:
    """The first sentences, as many as `rules` allow, without threshold and n-gram blocking."""
    return summary(article, selection.lead_scores(len(article.numbers)), selection.rules_for_baselines(rules))


def oracle(article: LimitedArticle, rules: SelectionConfig) -> list[str]:
    """The oracle's sentences, as many as `rules` allow, without threshold and n-gram blocking."""
    labels = np.flatnonzero(article.labels).tolist()
    return summary(article, selection.oracle_scores(labels, len(article.numbers)), selection.rules_for_baselines(rules))


def metric_names(config: RougeConfig) -> tuple[str, ...]:
    """Returns the names of the metrics of `metrics`."""
    return (*_rouge_names(config), *_OVER_LEAD)


def _rouge_names(config: RougeConfig) -> tuple[str, ...]:
    """Returns the names of F1, of recall if `words` limits the length, and of their interval ends."""
    parts = ("",) if config.words is None else ("", "_recall")
    return tuple(f"{name}{part}{end}" for part in parts for name in METRICS for end in _ENDS)


def baselines(scored: Mapping[str, Sequence[LimitedArticle]], rules: Rules, config: RougeConfig) -> dict[str, float]:
    """Returns metrics of `lead` and `oracle` on each split, such as "SPLIT/lead_rouge1", with 95 % intervals."""
    found: dict[str, float] = {}
    for split, members in scored.items():
        _check_letters(members, config)
        for name, choose in (("lead", lead), ("oracle", oracle)):
            summaries = [choose(each, rules(each)) for each in members]
            values = rouge.rouge(summaries, [_references(each.article) for each in members], config, confidence=True)
            found |= {f"{split}/{name}_{metric}": values[metric] for metric in _rouge_names(config)}
    return found


def metrics(
    summaries: Sequence[Sequence[str]], found: Sequence[LimitedArticle], rules: Rules, config: RougeConfig
) -> dict[str, float]:
    """Returns the metrics of summaries: ROUGE with 95 % intervals, and "over_lead".

    "over_lead" is the difference in rougeLsum to `lead`, with interval and p-value of a paired bootstrap.

    Args:
      summaries: the sentences of each summary.
      found: the article of each summary.
      rules: the selection rules of `lead` for an article.
      config: the settings of ROUGE.
    """
    references = [_references(each.article) for each in found]
    log_once(f"ROUGE settings: {rouge.signature(config, max(map(len, references)))}")
    _check_letters(found, config)
    ours = rouge.score(summaries, references, config)
    theirs = rouge.score([lead(article, rules(article)) for article in found], references, config)
    values = rouge.summarize(ours, confidence=True)
    values |= dict(zip(_OVER_LEAD, bootstrap.compare(ours["rougeLsum"], theirs["rougeLsum"]), strict=True))
    return {name: values[name] for name in metric_names(config)}


def _check_letters(found: Sequence[LimitedArticle], config: RougeConfig) -> None:
    """Warns if ROUGE ignores most letters of the summaries."""
    if config.flavor != "unicode" and (share := ascii_share(each.article for each in found)) < 0.5:
        log_once(
            f"ROUGE reads ASCII letters only, {share:.0%} of the letters of the summaries; "
            f"for other languages, set {OF_OTHER_LETTERS}",
            logging.WARNING,
        )


def _references(article: Article) -> list[Sequence[str]]:
    return [article.summary or (), *article.references]
