"""Base classes of summarization: config, articles, vocabulary and tasks."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from flax import linen as nn

from bertjax import korean, words
from bertjax.config import Composed, Flat, always, one_of, part
from bertjax.contract import Example, Params
from bertjax.data.codecs.summarization import article_text
from bertjax.data.codecs.summarization.article_rows import ArticleRowsConfig
from bertjax.data.codecs.summarization.article_text import ArticleText, LabelsConfig
from bertjax.data.codecs.summarization.articles import Article, ArticlesConfig
from bertjax.data.codecs.summarization.limits import LimitedArticle
from bertjax.data.codecs.summarization.prepared_articles import ArticleCodec
from bertjax.data.prepared import PreparationConfig
from bertjax.data.rows.buckets import BucketedBatches, BucketsConfig, Padded, Rows, budget_sizes, check_seq_len
from bertjax.data.rows.stored import Fields
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabulary_config import TrainedVocabularyConfig, load_named, load_tokenizer
from bertjax.decoding.selection import SelectionConfig
from bertjax.interop import families
from bertjax.interop.families import presumm
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.scoring.rouge import RougeConfig
from bertjax.tasks import completion, inputs, pretrained, summaries
from bertjax.tasks.bert import BertTask, SampledTask
from bertjax.tasks.fine_tuning import WarmStartConfig
from bertjax.tasks.prepared_data import PreparedData

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
_SEQ_LEN = 512  # the default
_OVERLAP = 128  # the default


@dataclasses.dataclass(frozen=True)
class DataConfig(Composed, prefix="data"):
    """The keys of `data`."""

    articles: Flat[ArticlesConfig]
    labels: Flat[LabelsConfig]
    rows: Flat[ArticleRowsConfig]
    vocabulary: Flat[TrainedVocabularyConfig]
    preparation: Flat[PreparationConfig]
    buckets: Flat[BucketsConfig]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummarizationConfig(WarmStartConfig):
    """The config keys of all summarization.

    Attributes:
      batch_size: rows of an update, over all devices and micro-batches, if they have `data.seq_len` tokens. A batch of
        shorter rows holds a multiple of this.
      positions: the initial values of positions that the model in `init_from` lacks: "tile", repeated copies of all its
        positions; "repeat_last", copies of the last one, as PreSumm.
      rouge: the settings of ROUGE.
    """

    data: DataConfig
    positions: Annotated[str, one_of("tile", "repeat_last")] = always("tile")
    rouge: RougeConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seq_len(self.data.seq_len, self.model.max_positions)

    @abc.abstractmethod
    def codec(self, tokenizer: EncoderTokenizer) -> ArticleCodec:
        """Returns the kind of the rows."""

    @abc.abstractmethod
    def rules(self, article: LimitedArticle) -> SelectionConfig:
        """Returns the selection rules for a summary that is compared with the reference."""


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


class SummarizationData(PreparedData[C, Article]):
    """Articles, and a vocabulary in the folder, given or trained on the articles."""

    more: tuple[str, ...] = ()  # tokens to add to a trained vocabulary

    def __init__(self, config: C, folder: Path, published: Published | None) -> None:
        super().__init__(config, folder, published)
        if config.rouge.units == words.MORPHEMES:
            korean.analyzer_version()  # raises before long work
        data = config.data
        self._text = ArticleText(folder, data.articles, data.vocabulary, data.words, self.more)

    @property
    def fingerprint(self) -> str:
        return self._text.fingerprint

    @property
    def has_vocabulary(self) -> bool:
        return bool(self._config.data.vocab_file) or self._text.is_finished()

    def write_vocabulary(self) -> None:
        """Writes the vocabulary into the folder, after training it unless it is given."""
        self._text.run()

    @functools.cached_property
    def vocabulary(self) -> EncoderTokenizer:
        """The folder's vocabulary if it is prepared or there are no training articles; otherwise the given one."""
        is_kept = not self._trains or self._text.is_finished()
        if not is_kept or presumm.is_checkpoint(self._folder):
            return load_named(self._config.data.vocabulary)
        data = self._config.data
        return load_tokenizer(self._folder, data.lowercase, strip_accents=data.strip_accents)

    @functools.cached_property
    def codec(self) -> ArticleCodec:
        return self._config.codec(self.vocabulary)

    def padded(self, fields: Fields) -> Padded:
        """Returns the rows with the fields of the codec."""
        return Rows(fields)

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the validation and test articles, so that bad ones raise UserError early."""
        _ = self.scored
        return super().complete(config)

    @functools.cached_property
    def scored(self) -> Mapping[str, Sequence[Article]]:
        """The validation and test articles, by split."""
        splits = article_text.splits(self._config.data.articles)[1:]
        return {split: tuple(self.read.held_out(split)) for split in splits}

    @property
    def summarized(self) -> Mapping[str, Sequence[Article]]:
        """The articles of `scored` that are summarized for metrics."""
        return self.scored

    @functools.cached_property
    def rows(self) -> Padded:
        return self.padded(self.prepared.fields)

    @functools.cached_property
    def train(self) -> BucketedBatches:
        return self.bucketed(self.rows)

    def examples(self, split: str) -> Iterator[Example]:
        return inputs.encoded(self.codec, self.summarized.get(split, ()))

    def baselines(self) -> Mapping[str, float]:
        """Returns metrics of the first sentences and of the oracle; see `summaries.baselines`."""
        limited = {split: list(map(self.codec.limited, articles)) for split, articles in self.summarized.items()}
        return summaries.baselines(limited, self._config.rules, self._config.rouge)


class SummarizationTask(BertTask[C], SampledTask):
    """A task that summarizes articles with a BERT encoder. `Source.extra` of an example is an `ArticleParts`."""

    def __init__(
        self, config: C, vocabulary: EncoderTokenizer, head: type[Any], model: Callable[[HeadConfig, Any], nn.Module]
    ) -> None:
        """Initializes the task; see `Experiment`.

        Args:
          config: the settings.
          vocabulary: the tokenizer.
          head: the dataclass of the head.
          model: builds the whole model from the configurations of BERT and of the head.
        """
        self._head = part(head, config.model)
        encoder = config.model.encoder(vocabulary.vocab)
        super().__init__(config, vocabulary, encoder, model(encoder, self._head), config.data.seq_len)

    def warm_start(self, params: Params, published: Published) -> Params:
        """`config.positions` selects how positions without weights are initialized."""
        tokens = self.new_tokens(published)
        return pretrained.warm_start(params, published, positions=self._config.positions, tokens=tokens)

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, length) of each possible batch."""
        lengths = super().predict_lengths()
        return list(zip(budget_sizes(lengths, self._config.batch_size), lengths, strict=True))

    def line(self, record: Mapping[str, Any]) -> str:
        """The summary on one line."""
        return " ".join(record["summary"])

    def export(self, params: Params, folder: Path) -> None:
        """Writes weights and vocabulary; `transformers.AutoModel.from_pretrained` opens the encoder."""
        rows = {key: getattr(self._config.data, key) for key in ("words", "interval_segments")}
        bert = self._model_config
        tokenizer = self._tokenizer
        family = self._config.model.family or families.of_model(vars(bert))
        presumm.save(folder, params, bert, self._head, rows, family=family, special=self._special)
        tokenizer.save(folder, bert.max_positions, token_types=bert.type_vocab_size > 1)
