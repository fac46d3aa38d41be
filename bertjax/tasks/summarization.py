"""What all summarization has in common: a run's articles and their vocabulary, its tasks, and figures of summaries."""

import abc
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import numpy as np
from flax import linen as nn
from jaxtyping import Float

from bertjax import words
from bertjax.config import build, build_all, one_of
from bertjax.contract import Batch, Data, Example, Params, RowIndices
from bertjax.data.readers.lines import BadRows
from bertjax.data.rows.buckets import BucketedBatches, Padded, bucket_lengths, budget_sizes, check_seq_len
from bertjax.data.summarization import article_rows, article_text, articles
from bertjax.data.summarization.article_rows import ArticleRow, ArticleRowsConfig
from bertjax.data.summarization.article_text import ArticleText, LabelsConfig, TrainedVocabularyConfig
from bertjax.data.summarization.articles import Article, ArticlesConfig
from bertjax.data.summarization.limits import ArticleLimits, LimitedArticle, limit
from bertjax.data.text.tokenizers import WordPiece
from bertjax.decoding import selection
from bertjax.decoding.selection import Selection, SelectionConfig
from bertjax.interop import presumm
from bertjax.models.bert import BertConfig
from bertjax.progress import tell_once
from bertjax.scoring import bootstrap, rouge
from bertjax.scoring.rouge import RougeConfig
from bertjax.tasks import bert, inputs, pretrained
from bertjax.tasks.bert import BertFacts, BertTask, check_two_segments, model_configs, to_example
from bertjax.tasks.fine_tuning import WarmStartConfig

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
# Where neither the config nor `init_from` says what rows are like.
_ROWS = {"data.words": "bert", "data.interval_segments": True}
# Keys of `data` that may differ when a trained run is used: how articles are read and labeled.
FREE_AFTER_TRAINING = tuple(
    f"data.{key}"
    for key in (
        *("layout", "article_field", "summary_field", "gold_field", "gold_as", "splitter"),
        *("limits", "oracle", "seq_len", "long_articles", "window_overlap"),
    )
)
_SEQ_LEN, _OVERLAP = 512, 128  # the defaults
# What to say where few letters of the summaries are ASCII.
OF_OTHER_LETTERS = "--config.data.oracle.letters=unicode --config.rouge.flavor=unicode --config.rouge.stem=False"
_LOOKED_AT = 1000  # articles, which tell the letters of all
_ENDS = ("", "_low", "_high")
_OVER_LEAD = tuple(f"over_lead{end}" for end in (*_ENDS, "_p"))

Rules = Callable[[LimitedArticle], SelectionConfig]  # by which an article's sentences are chosen
Scores = Float[np.ndarray, " E"]
# In the order of `ArticleDataConfig`.
_DATA = (ArticlesConfig, LabelsConfig, ArticleRowsConfig, TrainedVocabularyConfig)


@dataclasses.dataclass(frozen=True)
class SummarizationConfig(WarmStartConfig):
    """The keys of the config that all summarization reads.

    Attributes:
      batch_size: rows of an update, over all devices and micro-batches, where they are padded to `data.seq_len` tokens;
        of shorter rows there are as many more as make up for it, in multiples of this.
      positions: what positions that the model in `init_from` does not have begin as: "tile", copies of all that it has,
        again and again; "repeat_last", copies of the last, as PreSumm. See `pretrained.extend_positions`.
      rouge: fields of `RougeConfig`.
    """

    positions: Annotated[str, one_of("tile", "repeat_last")]
    rouge: Mapping[str, Any]


C = TypeVar("C", bound=SummarizationConfig)


def resolve(config: Mapping[str, Any], otherwise: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what `init_from` determines, and how articles become rows.

    Args:
      config: the whole of it.
      otherwise: see `pretrained.resolve`.
    Raises:
      UserError: contradictions, and keys of `data` that are missing or wrong.
    """
    config = pretrained.resolve(config, seq_len=_SEQ_LEN, extends_positions=True, otherwise={**_ROWS, **otherwise})
    data = config["data"]
    if data.get("window_overlap", 0) is None and isinstance(length := data.get("seq_len"), int):
        data["window_overlap"] = _OVERLAP if length > _OVERLAP else length // 4
    ArticleDataConfig.of(data)
    return config


class ArticleDataConfig(NamedTuple):
    """What `config.data` says."""

    articles: ArticlesConfig
    labels: LabelsConfig
    rows: ArticleRowsConfig
    vocabulary: TrainedVocabularyConfig

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "ArticleDataConfig":
        """Reads it. Raises UserError for keys or values that are not right."""
        return cls(*build_all(_DATA, data, "data"))


def read_tokenizer(config: SummarizationConfig, folder: Path) -> WordPiece:
    """The vocabulary in a folder, or that of the config for a checkpoint of PreSumm's, which has none."""
    return bert.read_tokenizer(config, Path(config.data["vocab_file"]) if presumm.is_checkpoint(folder) else folder)


class Source(NamedTuple):
    """What the rows of an example have been made of."""

    article: LimitedArticle
    rows: Sequence[ArticleRow]


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How articles become examples.

    Attributes:
      tokenizer: with the vocabulary.
      config: how they become rows.
      inputs: the fields of these rows that the model reads, see `ArticleRow`.
    """

    tokenizer: WordPiece
    config: ArticleRowsConfig
    inputs: Sequence[str]

    def rows(self, article: LimitedArticle) -> list[ArticleRow]:
        """The rows of an article, one at least."""
        found = article_rows.rows(article.sentences, self.tokenizer, self.config)
        return [row._replace(inputs={name: row.inputs[name] for name in self.inputs}) for row in found]

    def example(self, article: LimitedArticle) -> Example:
        """An article to summarize; its source is a `Source`."""
        rows = self.rows(article)
        return to_example([row.inputs for row in rows], Source(article, rows))

    def counted(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yields examples that are summarized together; subclasses may number them, and log what concerns them all."""
        yield from examples


class SummarizationData(Data, Generic[C]):
    """Articles as they stand, and a vocabulary, kept in the folder, which may have to be trained on them."""

    def __init__(self, config: C, folder: Path, rules: Rules, more: tuple[str, ...] = ()) -> None:
        """Initializes the data; see `Trainable.build_data`.

        Args:
          config: the settings.
          folder: of the vocabulary.
          rules: of the baselines.
          more: tokens of a vocabulary that is trained, beside its own.
        """
        self._config, self._folder, self._rules = config, folder, rules
        self._parts = ArticleDataConfig.of(config.data)
        articles, _, rows, vocabulary = self._parts
        self._text = ArticleText(folder, articles, vocabulary, rows.words, more)

    @property
    def fingerprint(self) -> str:
        """See `Data.fingerprint`."""
        return self._text.fingerprint

    @property
    def is_prepared(self) -> bool:
        """See `Data.is_prepared`."""
        is_given = bool(self._parts.vocabulary.vocab_file)
        return bool(self._parts.articles.source) and (is_given or self._text.is_finished())

    def prepare(self) -> None:
        """Keeps the vocabulary in the folder; trains it first unless it is given."""
        self._text.run()

    @functools.cached_property
    def tokenizer(self) -> WordPiece:
        """The vocabulary: the given one, as the folder keeps it; where nothing is trained, that of the folder."""
        is_kept = not self._parts.articles.source or self._text.is_finished()
        return read_tokenizer(self._config, self._folder) if is_kept else article_text.given(self._parts.vocabulary)

    @property
    def facts(self) -> BertFacts:
        """See `Data.facts`. Raises UserError for bad articles to score, before a model is trained or read."""
        _ = self.scored
        return BertFacts(self.tokenizer)

    def read(self, split: str) -> tuple[LimitedArticle, ...]:
        """See `article_text.read`."""
        return article_text.read(self._parts.articles, self._parts.labels, split)

    @functools.cached_property
    def scored(self) -> Mapping[str, tuple[LimitedArticle, ...]]:
        """The articles of all splits but "train"."""
        return {split: self.read(split) for split in article_text.splits(self._parts.articles)[1:]}

    @property
    def summarized(self) -> Mapping[str, Sequence[LimitedArticle]]:
        """Those of them that summaries are made of."""
        return self.scored

    @property
    @abc.abstractmethod
    def encoding(self) -> Encoding:
        """How articles become examples, with the vocabulary."""

    @abc.abstractmethod
    def encoded(self, articles: Sequence[LimitedArticle]) -> Padded:
        """Articles as rows to learn from."""

    def bucketed(self, articles: Sequence[LimitedArticle]) -> BucketedBatches:
        """The rows to learn from in batches."""
        lengths = bucket_lengths(self._parts.rows.seq_len)
        sizes = budget_sizes(lengths, self._config.batch_size)
        return BucketedBatches(self.encoded(articles), lengths, sizes, self._config.seed)

    @functools.cached_property
    def train(self) -> BucketedBatches:
        """The batches of the training articles, which are not read to be scored."""
        return self.bucketed(self.read("train"))

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        """See `Data.batches`."""
        return self.train.training(start, rows) if split == "train" else iter(())

    def held_out(self) -> Iterator[Example]:
        """See `Data.held_out`; an article each."""
        return self._examples("valid")

    def tested(self) -> Iterator[Example]:
        """See `Data.tested`."""
        return self._examples("test")

    def _examples(self, split: str) -> Iterator[Example]:
        return self.encoding.counted(map(self.encoding.example, self.summarized.get(split, ())))

    def baselines(self) -> Mapping[str, float]:
        """What the first sentences score, and those of the oracle; see `baselines`."""
        return baselines(self.summarized, self._rules, build(RougeConfig, self._config.rouge, "rouge"))


class SummarizationTask(BertTask[C]):
    """A task with a model that reads articles with BERT."""

    def __init__(
        self, config: C, encoding: Encoding, head: type, model: Callable[[BertConfig, Any], nn.Module]
    ) -> None:
        """Initializes the task; see `Experiment.build_task`.

        Args:
          config: its settings.
          encoding: of articles.
          head: the dataclass of what is on top of BERT.
          model: makes the whole model from the configuration of BERT and that of the head.
        """
        self._parts, self._encoding = ArticleDataConfig.of(config.data), encoding
        configs = model_configs(config, head, encoding.tokenizer.vocab)
        check_seq_len(self._parts.rows.seq_len, configs[0].max_positions)
        if self._parts.rows.interval_segments:
            check_two_segments(configs[0])
        super().__init__(config, encoding.tokenizer, configs[0], model(*configs), self._parts.rows.seq_len)
        self._head = configs[1]
        self._rouge = build(RougeConfig, config.rouge, "rouge")

    def warm_start(self, params: Params) -> Params:
        """See `Predicts.warm_start`; positions beyond those of the weights are copies, see `config.positions`."""
        folder, positions = self._config.init_from, self._config.positions
        return pretrained.warm_start(params, Path(folder), positions=positions) if folder else params

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and lengths that a batch may have."""
        lengths = self.predict_lengths()
        return list(zip(budget_sizes(lengths, self._config.batch_size), lengths, strict=True))

    @property
    def limits(self) -> ArticleLimits:
        """What is taken of articles to summarize."""
        return self._parts.labels.limits

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """An example of all lines, or one of each: see `ArticleFormat.layout`."""
        bad_rows = BadRows(self._parts.articles.on_bad_row)
        return self._examples(articles.parse(lines, self._parts.articles, bad_rows), bad_rows)

    def examples_of(self, path: str) -> Iterator[Example]:
        """An example of each article of files or of a folder; see `article_formats.read`."""
        bad_rows = BadRows(self._parts.articles.on_bad_row)
        return self._examples(articles.read(path, "--input", self._parts.articles, bad_rows), bad_rows)

    def _examples(self, found: Iterator[Article], bad_rows: BadRows) -> Iterator[Example]:
        return self._encoding.counted(inputs.examples(found, self._example, bad_rows))

    def _example(self, article: Article) -> Example:
        found = limit(article, article.gold or (), self.limits, drops=False)
        assert found is not None
        return self._encoding.example(found)

    def line(self, record: Mapping[str, Any]) -> str:
        """What a file of summaries has of a record."""
        return " ".join(record["summary"])

    def export(self, params: Params, folder: Path) -> None:
        """A folder whose encoder `transformers.BertModel.from_pretrained` opens, with the rest and the vocabulary."""
        rows = {"words": self._parts.rows.words, "interval_segments": self._parts.rows.interval_segments}
        presumm.save(folder, params, self._model_config, self._head, rows)
        self._tokenizer.save(folder, self._model_config.max_positions)


def with_reference(record: dict[str, Any], article: Article) -> dict[str, Any]:
    """A record with the reference of its article, if it has one."""
    return record if article.summary is None else {**record, "reference": list(article.summary)}


def texts(article: LimitedArticle) -> list[str]:
    """The sentences that were taken, uncut."""
    return [article.article.sentences[number] for number in article.numbers]


def select(article: LimitedArticle, scores: Scores, rules: SelectionConfig) -> Selection:
    """Which of the sentences that were taken make the summary; compared in lower case, as PreSumm does."""
    found = [text.lower() for text in texts(article)]
    selected = selection.select(scores, found, rules)
    if rules.word_budget and not selected.chosen and min(len(words.split(text)) for text in found) > rules.word_budget:
        told = "a summary is empty: each sentence of its article has more words than selection.word_budget allows"
        tell_once(told, logging.WARNING)
    return selected


def summary(article: LimitedArticle, scores: Scores, rules: SelectionConfig) -> list[str]:
    """The sentences of a summary."""
    found = texts(article)
    return [found[i] for i in select(article, scores, rules).chosen]


def lead(article: LimitedArticle, rules: SelectionConfig) -> list[str]:
    """The first sentences: as many, but with no rules for their scores."""
    return summary(article, selection.lead_scores(len(article.numbers)), selection.plain(rules))


def oracle(article: LimitedArticle, rules: SelectionConfig) -> list[str]:
    """The sentences that are to be learned: as many, but with no rules for their scores."""
    labels = np.flatnonzero(article.labels).tolist()
    return summary(article, selection.oracle_scores(labels, len(article.numbers)), selection.plain(rules))


def figure_names(config: RougeConfig) -> tuple[str, ...]:
    """The names that `figures` gives."""
    return (*_rouge_names(config), *_OVER_LEAD)


def _rouge_names(config: RougeConfig) -> tuple[str, ...]:
    """F1, and recall where the words are limited, each with its interval."""
    parts = ("",) if config.words is None else ("", "_recall")
    return tuple(f"{name}{part}{end}" for part in parts for name in METRICS for end in _ENDS)


def ascii_share(found: Sequence[LimitedArticle]) -> float:
    """The share of the letters of the summaries that ASCII has, by which the oracle and ROUGE may go."""
    return words.ascii_share(sentence for summary in _references(found[:_LOOKED_AT]) for sentence in summary)


def baselines(scored: Mapping[str, Sequence[LimitedArticle]], rules: Rules, config: RougeConfig) -> dict[str, float]:
    """What `lead` and `oracle` score on each split, as "SPLIT/lead_rouge1" and so on, with 95 % intervals."""
    found: dict[str, float] = {}
    for split, members in scored.items():
        _check_letters(members, config)
        for name, choose in (("lead", lead), ("oracle", oracle)):
            summaries = [choose(each, rules(each)) for each in members]
            values = rouge.rouge(summaries, _references(members), config, confidence=True)
            found |= {f"{split}/{name}_{metric}": values[metric] for metric in _rouge_names(config)}
    return found


def figures(
    summaries: Sequence[Sequence[str]], found: Sequence[LimitedArticle], rules: Rules, config: RougeConfig
) -> dict[str, float]:
    """`figure_names`: ROUGE of summaries with 95 % intervals; "over_lead", by how much their rougeLsum is above that of
    `lead`, with interval and p by a paired bootstrap.

    Args:
      summaries: the sentences of each.
      found: their articles.
      rules: of each article's `lead`.
      config: what is counted.
    """
    references = _references(found)
    tell_once(f"ROUGE is {rouge.signature(config)}")
    _check_letters(found, config)
    ours = rouge.score(summaries, references, config)
    theirs = rouge.score([lead(article, rules(article)) for article in found], references, config)
    values = rouge.summarize(ours, confidence=True)
    values |= dict(zip(_OVER_LEAD, bootstrap.compare(ours["rougeLsum"], theirs["rougeLsum"]), strict=True))
    return {name: values[name] for name in figure_names(config)}


def _check_letters(found: Sequence[LimitedArticle], config: RougeConfig) -> None:
    """Warns if ROUGE does not see most of the letters."""
    if config.flavor != "unicode" and (share := ascii_share(found)) < 0.5:
        told = f"ROUGE sees {share:.0%} of the letters of the summaries, those of ASCII; for the others set"
        tell_once(f"{told} {OF_OTHER_LETTERS}", logging.WARNING)


def _references(found: Sequence[LimitedArticle]) -> list[Sequence[str]]:
    return [article.article.summary or () for article in found]
