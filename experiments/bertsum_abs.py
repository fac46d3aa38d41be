"""Abstractive summarization: a decoder on a BERT encoder (Liu and Lapata 2019, section 4)."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import always, at_least
from bertjax.contract import Batch, Example, Output, Params
from bertjax.data.codecs.summarization import summary_rows
from bertjax.data.codecs.summarization.articles import Article
from bertjax.data.codecs.summarization.limits import LimitedArticle
from bertjax.data.codecs.summarization.prepared_articles import AbstractiveCodec
from bertjax.data.codecs.summarization.summary_rows import SummaryRows
from bertjax.data.rows.buckets import BucketedBatches
from bertjax.data.rows.stored import Fields
from bertjax.data.splits import VALID
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.decoding.config import DecodingConfig
from bertjax.decoding.selection import SelectionConfig
from bertjax.interop.published import Published
from bertjax.models.bertsum_abs import BertSumAbs, BertSumAbsConfig, copy_embeddings
from bertjax.tasks import bert, seq2seq, summaries, summarization
from bertjax.tasks.seq2seq import Seq2SeqTask, TargetIds
from bertjax.tasks.summarization import SummarizationConfig, SummarizationData, SummarizationTask

FREE_AFTER_TRAINING = ("decoding", "rouge", *summarization.FREE_AFTER_TRAINING)
# Defaults of keys that neither the config nor `init_from` sets.
_DEFAULTS = {"model.decoder_layers": 6, "model.decoder_heads": 8, "model.decoder_intermediate": 2048}


@dataclasses.dataclass(frozen=True)
class ModelConfig(bert.ModelConfig, BertSumAbsConfig):
    """The encoder and the decoder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(SummarizationConfig, seq2seq.SmoothingConfig):
    """The config keys that this experiment reads.

    Attributes:
      copy_embeddings: whether the decoder's embeddings start as BERT's, if `init_from` has no decoder (PreSumm's
        `-use_bert_emb`).
      target_len: the maximum number of tokens of a training summary, including separators of sentences and the end.
      decoding: how summaries are generated.
      num_scored: validation articles that are summarized at each evaluation, at least 2; 0 for all. The loss is that of
        all.
    """

    model: ModelConfig
    copy_embeddings: bool = always(True)
    target_len: Annotated[int, at_least(2)] = always(139)
    decoding: DecodingConfig
    num_scored: int = always(200)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.num_scored == 0 or self.num_scored >= 2, "num_scored", "at least 2, or 0 for all")
        seq2seq.check_generates(self.decoding)
        is_cut = self.data.long_articles == "cut"
        expected = "cut, because the decoder sees only one row"
        fix = "set --config.data.long_articles=cut, and raise --config.data.seq_len to keep more of an article"
        self.data.check(is_cut, "long_articles", expected, fix=fix)

    def codec(self, tokenizer: EncoderTokenizer) -> AbstractiveCodec:
        return AbstractiveCodec(self.data.articles, self.data.labels, self.data.rows, tokenizer, self.target_len)

    def rules(self, article: LimitedArticle) -> SelectionConfig:
        """Returns the selection rules of the baselines."""
        return SelectionConfig(num_sentences=3, word_budget=0, threshold=None, block_ngrams=0, order="document")


resolve = functools.partial(summarization.resolve, defaults=_DEFAULTS)
open_vocabulary = bert.open_vocabulary
example_config = functools.partial(bert.example_config, more=summary_rows.TARGET_TOKENS)


class Data(SummarizationData[Config]):
    """Articles with summaries to generate."""

    more = summary_rows.TARGET_TOKENS

    def padded(self, fields: Fields) -> SummaryRows:
        return SummaryRows(fields, self._config.target_len)

    @functools.cached_property
    def valid_batches(self) -> BucketedBatches:
        limited = list(map(self.codec.limited, self.scored[VALID]))
        return self.bucketed(self.padded(self.codec.with_targets(limited).fields))

    @property
    def summarized(self) -> Mapping[str, Sequence[Article]]:
        """The first `num_scored` validation articles, and all test articles."""
        return {**self.scored, VALID: self.scored[VALID][: self._config.num_scored or None]}

    def examples(self, split: str) -> Iterator[Example]:
        return seq2seq.numbered(super().examples(split), self._config.decoding)


class Task(Seq2SeqTask, SummarizationTask[Config]):
    """Generates summaries."""

    loss_name = "summary"

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        super().__init__(config, vocabulary, BertSumAbsConfig, BertSumAbs)
        self._decoding = config.decoding
        start, end, _ = summary_rows.target_ids(vocabulary)
        self._ids = TargetIds(start, end, vocabulary.pad_id, vocabulary.unk_id)

    def warm_start(self, params: Params, published: Published) -> Params:
        params = super().warm_start(params, published)
        is_new = "decoder_layers" not in published.fields
        return copy_embeddings(params) if is_new and self._config.copy_embeddings else params

    def numbered(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Yields the examples, numbered if sampling needs it."""
        return seq2seq.numbered(examples, self._decoding)

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        target = np.dtype((np.int32, self._config.target_len))
        return bert.batch_specs(self.shapes(), {}, {"labels": target, "target_segment_ids": target})

    def score_names(self) -> Sequence[str]:
        """Returns the names of `summaries.metric_names`, and those of the loss on reference summaries."""
        return (*summaries.metric_names(self._config.rouge), *seq2seq.METRICS)

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns the metrics of the summaries; see `summaries.metrics`."""
        texts = [self._sentences(outputs) for _, outputs in results]
        articles = [example.source.extra.article for example, _ in results]
        return summaries.metrics(texts, articles, self._config.rules, self._config.rouge)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The summary of each row: ids [B, 1, T], lengths and scores [B, 1]."""
        continues = jnp.asarray(self._tokenizer.is_continuation)
        return seq2seq.generate(self._model, params, batch, self._decoding, self._ids, self._config.seed, continues)

    def _sentences(self, outputs: Sequence[Output], rank: int = 0) -> list[str]:
        (output,) = outputs
        return summary_rows.sentences(output["ids"][rank, : output["lengths"][rank]].tolist(), self._tokenizer)

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The sentences and the score of the summary; all `n_best` if more than one; and the reference if known.

        "complete" is false if the summary was truncated at its maximum length.
        """
        article = example.source.item
        ranked = [
            {"summary": self._sentences(outputs, rank), "score": round(float(outputs[0]["scores"][rank]), 6)}
            for rank in range(self._decoding.n_best)
        ]
        record = {"id": article.id, **ranked[0], "complete": self.is_complete(outputs[0], 0)}
        if len(ranked) > 1:
            record["n_best"] = ranked
        return summaries.with_reference(record, article)

    def record_fields(self) -> Sequence[str]:
        several = ("n_best",) if self._decoding.n_best > 1 else ()
        return ("id", "summary", "score", "complete", *several, *summaries.REFERENCE_FIELDS)

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record with the article."""
        sentences = list(example.source.item.sentences)
        record = self.record(example, outputs)
        return {**record, "kind": "summary", "article": sentences, **summaries.scored(record, self._config.rouge)}
