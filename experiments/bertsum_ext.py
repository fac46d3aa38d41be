"""Extractive summarization: selects sentences of an article (Liu 2019; Liu and Lapata 2019, section 3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config import always, one_of
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs.summarization import article_rows
from bertjax.data.codecs.summarization.article_rows import sentence_counts
from bertjax.data.codecs.summarization.limits import LimitedArticle
from bertjax.data.codecs.summarization.prepared_articles import ExtractiveCodec
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.decoding import selection
from bertjax.decoding.selection import SelectionConfig
from bertjax.errors import UserError
from bertjax.interop.published import Published
from bertjax.models.bert import BertInputs
from bertjax.models.bertsum import BertSum, BertSumConfig, first_places
from bertjax.tasks import bert, completion, fine_tuning, summaries, summarization
from bertjax.tasks.fine_tuning import EpochsConfig
from bertjax.tasks.summarization import SummarizationConfig, SummarizationData, SummarizationTask

FREE_AFTER_TRAINING = ("selection", "match_reference", "rouge", *summarization.FREE_AFTER_TRAINING)

_TOKEN_DTYPES = {"sentence_starts": np.int32, "labels": np.float32, "label_weights": np.float32}
_SHORTEST = 3  # tokens of the shortest sentence besides `min_words`: [CLS], a piece, [SEP]
# Defaults of keys that neither the config nor `init_from` sets.
_DEFAULTS = {
    "model.scorer": "classifier",
    "model.scorer_layers": 2,
    "model.scorer_heads": 8,
    "model.scorer_intermediate": 2048,
    "model.rnn_compat": False,
}


@dataclasses.dataclass(frozen=True)
class ModelConfig(bert.ModelConfig, BertSumConfig):
    """The encoder and the scorer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(EpochsConfig, SummarizationConfig):
    """The config keys that this experiment reads.

    Attributes:
      loss_reduction: "mean" over the sentences of a batch, or "sum", as in the published code.
      selection: how sentences are selected.
      match_reference: replaces the length limits of `selection` in scoring: "sentences", as many as the reference;
        "words", at most as many; "" to keep the limits.
    """

    model: ModelConfig
    loss_reduction: Annotated[str, one_of("mean", "sum")] = always("mean")
    selection: SelectionConfig
    match_reference: Annotated[str, one_of(*selection.MATCHES)] = always("")

    def codec(self, tokenizer: EncoderTokenizer) -> ExtractiveCodec:
        return ExtractiveCodec(self.data.articles, self.data.labels, self.data.rows, tokenizer)

    def rules(self, article: LimitedArticle) -> SelectionConfig:
        return selection.rules_for_reference(self.selection, article.article.summary or (), self.match_reference)


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in what `init_from` determines, and defaults. Raises UserError if keys contradict it or each other."""
    return summarization.resolve(config, published, {**_DEFAULTS, "model.sentence_pooling": _pooling(published)})


def _pooling(published: Published | None) -> str:
    """The default of `model.sentence_pooling`: "mean" if the encoder was trained for mean pooling, else "cls"."""
    try:
        sentences = published.sentences if published else None
    except UserError:  # an unsupported module; the encoder can still be used
        sentences = None
    return "mean" if sentences and sentences.pooling == "mean" else "cls"


open_vocabulary = bert.open_vocabulary
example_config = fine_tuning.example_config


class Data(SummarizationData[Config]):
    """Articles with labeled sentences."""

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fills in also the lengths in updates."""
        config = super().complete(config)
        return completion.lengths(config, self._count_rows) if self._trains else config

    def _count_rows(self) -> int:
        """The updates of an epoch times `batch_size`: batches of short rows hold more than `batch_size` rows."""
        return self._config.batch_size * self.train.steps_per_epoch


class Task(SummarizationTask[Config]):
    """Selects sentences. Predictions read sentences of more than `selection.min_words` words."""

    _codec: ExtractiveCodec

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        super().__init__(config, vocabulary, BertSumConfig, BertSum)
        limits = dataclasses.replace(config.data.limits, min_words=config.selection.min_words)
        labels = dataclasses.replace(config.data.labels, limits=limits)
        self._codec = dataclasses.replace(self._codec, labels=labels)

    def init(self, rng: jax.Array) -> Params:
        ids = jnp.zeros((1, 1), jnp.int32)
        return self._model.init(rng, BertInputs(ids, ids, ids, cls_positions=ids), ids, deterministic=True)["params"]

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        return bert.batch_specs(self.shapes(), _TOKEN_DTYPES, {"first_sentences": np.int32})

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The number of sentences, each counted in the row that owns it; 1 if the loss is a sum."""
        number = jnp.maximum(jnp.sum(batch["label_weights"]), 1)
        return {"sentences": number if self._config.loss_reduction == "mean" else jnp.ones_like(number)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The binary cross-entropy of each sentence's label; see `TrainingTask.loss`."""
        # Sentences whose words normalize to nothing may be shorter; a full row then drops some from the loss.
        shortest = _SHORTEST + self._config.data.limits.min_words
        count = batch["input_ids"].shape[1] // shortest + 1
        positions = first_places(batch["sentence_starts"], count + count % 2)  # cuDNN trains on even lengths only
        names = "sentence_starts", "labels", "label_weights"
        is_sentence, labels, weights = (jnp.take_along_axis(batch[name], positions, axis=1) for name in names)
        rows = {**batch, "cls_positions": positions}
        logits = self.apply(params, rows, rng, is_sentence, batch["first_sentences"])
        losses = optax.sigmoid_binary_cross_entropy(logits, labels)
        metrics = fine_tuning.metrics(batch, (logits > 0) == (labels > 0), weights)
        return {"sentences": jnp.sum(losses * weights)}, metrics

    def score_names(self) -> Sequence[str]:
        """Returns the names of `summaries.metric_names`, and the loss."""
        return (*summaries.metric_names(self._config.rouge), "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns the metrics of the summaries. The loss is the mean over articles of the sum over sentences."""
        rules = self._config.rules
        articles = [example.source.extra.article for example, _ in results]
        logits = [_merged(*result) for result in results]
        pairs = list(zip(articles, logits, strict=True))
        selected = [summaries.summary(a, _probabilities(of_a), rules(a)) for a, of_a in pairs]
        metrics = summaries.metrics(selected, articles, rules, self._config.rouge)
        return {**metrics, "loss": float(np.mean([_loss(of_a, a.labels) for a, of_a in pairs]))}

    def predict_lengths(self) -> Sequence[int]:
        """Returns the lengths of tokens, and of sentences."""
        return sorted({*super().predict_lengths(), *sentence_counts(self._seq_len)})

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logits of the sentences of each row, [B, E]."""
        positions = batch["cls_positions"]
        is_sentence = (positions > 0) | (jnp.arange(positions.shape[1]) == 0)  # the first sentence starts at 0
        return {"logits": self.apply(params, batch, None, is_sentence, batch["first_sentences"])}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The summary, the score of each sentence (null outside the limits), and the sentences skipped with reasons."""
        article = example.source.item
        limited = example.source.extra.article
        probabilities = _probabilities(_merged(example, outputs))
        selected = summaries.select(limited, probabilities, self._config.selection)
        scores: list[float | None] = [None] * len(article.sentences)
        for number, score in zip(limited.numbers, probabilities.tolist(), strict=True):
            scores[number] = None if score == -np.inf else round(score, 6)
        positions = [limited.numbers[i] for i in selected.chosen]
        record = {
            "id": article.id,
            "summary": [article.sentences[i] for i in positions],
            "positions": positions,
            "sentences": list(article.sentences),
            "scores": scores,
            "refused": [
                {
                    "position": limited.numbers[refusal.sentence],
                    "reason": refusal.reason,
                    "blocked_by": None if refusal.blocked_by is None else limited.numbers[refusal.blocked_by],
                    "ngram": " ".join(refusal.ngram),
                }
                for refusal in selected.refused
            ],
        }
        return summaries.with_reference(record, article)

    def record_fields(self) -> Sequence[str]:
        return ("id", "summary", "positions", "sentences", "scores", "refused", *summaries.REFERENCE_FIELDS)

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the record with the oracle's choice."""
        limited = example.source.extra.article
        oracle = [limited.numbers[i] for i in np.flatnonzero(limited.labels)]
        record = self.record(example, outputs)
        return {**record, "kind": "extract", "oracle": oracle, **summaries.scored(record, self._config.rouge)}


def _merged(example: Example, outputs: Sequence[Output]) -> np.ndarray:
    """The logit of each sentence within the limits; -inf if no row contains it."""
    limited, parts = example.source.extra
    return article_rows.merge_scores(parts, [output["logits"] for output in outputs], len(limited.sentences))


def _probabilities(logits: np.ndarray) -> np.ndarray:
    """The probability of each sentence; -inf stays -inf, and NaN stays NaN."""
    return np.where(logits == -np.inf, -np.inf, 1 / (1 + np.exp(-logits)))


def _loss(logits: np.ndarray, labels: Sequence[int]) -> float:
    """The summed loss of the sentences that have a logit."""
    has_logit = logits != -np.inf
    logits = logits[has_logit]
    return float(np.sum(np.logaddexp(0, logits) - logits * np.array(labels)[has_logit]))
