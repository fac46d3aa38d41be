"""Scores of texts that are read together with a query, to rank them (Nogueira and Cho 2019, section 3).

Shapes: B queries, C texts of a query, S tokens of a query with one text.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float64

from bertjax.config import Count, Flat, always, one_of
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs.ranked_texts import RankedTextsCodec
from bertjax.data.codecs.related_texts import QueriesConfig, RelatedTexts
from bertjax.data.rows.buckets import bucket_lengths
from bertjax.data.rows.choice_rows import ChoiceRows
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.interop import sentence_transformers
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import is_best, mask_logits
from bertjax.models.ranking_losses import CORRELATIONS, OBJECTIVES, PRECISION, RANKS, Objective
from bertjax.scoring import glue
from bertjax.scoring.probabilities import sigmoid
from bertjax.tasks import bert, completion, fine_tuning, pretrained

_LENGTH = 512  # the maximum tokens of a row by default
_COLUMNS = ("text_columns", "score_column", "header", "separator")
FREE_AFTER_TRAINING = ("activation", *(f"data.{key}" for key in (*_COLUMNS, "num_negatives", "seq_len")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(fine_tuning.DataConfig):
    """The keys of `data`.

    Attributes:
      score_column: the column of the score of a pair, or of a list of scores, one for each text of the query; "" for
        rows with a positive and negatives.
      num_negatives: the negatives of a row that batches have room for. Default: the most that a training row has.
      seq_len: the maximum number of tokens of a query with a text; only texts are truncated. Default: 512, or the
        model's positions, or what `init_from` states if that is smaller or nothing is trained.
    """

    rows: Flat[QueriesConfig]
    num_negatives: Count | None = always(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(fine_tuning.FineTuningConfig):
    """The config keys that this experiment reads.

    Attributes:
      objective: the loss; see `bertjax.models.ranking_losses`.
      activation: what maps logits to scores: "identity" or "sigmoid". Default: in prediction, that of a `CrossEncoder`
        in `init_from`; otherwise "sigmoid" with objective=binary and "identity" with others.
    """

    model: fine_tuning.ClassifierConfig
    data: DataConfig
    objective: Annotated[str, one_of(*OBJECTIVES)] = always("listwise")
    activation: Annotated[str, one_of("identity", "sigmoid")] = always(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.data.rows
        objective = f"with objective={self.objective}"
        rows.check(len(rows.text_columns) > 1, "text_columns", "the columns of the query and of a text, or more")
        if rows.source:
            has_scores = rows.score_column or not self.definition.needs_scores
            rows.check(has_scores, "score_column", f"a column {objective}")
            has_negatives = len(rows.text_columns) > 2 or not self.ranks
            rows.check(has_negatives, "text_columns", f"a third column, of negatives, {objective}")

    def codec(self, tokenizer: EncoderTokenizer) -> RankedTextsCodec:
        return RankedTextsCodec(self.data.rows, tokenizer, self.definition.compares, self.definition.is_probability)

    @property
    def definition(self) -> Objective:
        """The definition of `objective`."""
        return OBJECTIVES[self.objective]

    @property
    def metrics(self) -> Sequence[str]:
        """The validation metrics."""
        return self.definition.metrics if self.data.score_column else RANKS

    @property
    def ranks(self) -> bool:
        """Whether the first text of each row is the relevant one."""
        return self.metrics == RANKS


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in what `init_from` determines: sizes, casing, the length, the activation and the prompt of queries."""
    length = (published and sentence_transformers.read_length(published.path)) or _LENGTH
    if published:
        sentence_transformers.check_casing(published.path, published.lowercase)
    trains = bool(config["data"]["source"])
    config = completion.bert(config, published, seq_len=min(length, _LENGTH) if trains else length)
    activation = "sigmoid" if OBJECTIVES[config["objective"]].is_probability else "identity"
    if published and not trains and published.num_classes == 1:
        # What `CrossEncoder` applies to one logit if the folder does not state it.
        activation = sentence_transformers.read_activation(published.path, published.config) or "sigmoid"
    data = config["data"]
    if data["query_prompt"] is None:
        data = {**data, "query_prompt": _prompt_of(published) if published else ""}
    return {**config, "activation": config["activation"] or activation, "data": data}


def _prompt_of(published: Published) -> str:
    """Returns the prompt of queries of a run of this experiment, or of a `CrossEncoder`."""
    if published.is_run and published.experiment == "reranker":
        return str(published.config["data"].get("query_prompt", ""))
    return sentence_transformers.read_prompt(published.path)


open_vocabulary = bert.open_vocabulary


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Each column of negatives has one, unless `data.num_negatives` is set."""
    data = config["data"]
    count = len(data["text_columns"]) - 2 if data["num_negatives"] is None else data["num_negatives"]
    return fine_tuning.example_config({**config, "data": {**data, "num_negatives": count}})


class Data(fine_tuning.FineTuningData[Config, RelatedTexts]):
    """Queries with texts to rank."""

    @functools.cached_property
    def _num_negatives(self) -> int:
        most = int(np.max(self.fields()["choice"]))
        data = self._config.data
        limit = most if data.num_negatives is None else data.num_negatives
        expected = f"{most} or more, the negatives of a training row"
        data.check(limit >= most, "num_negatives", expected, fix="raise or omit it")
        return limit

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fills in also `data.num_negatives`."""
        config = super().complete(config)
        return {**config, "data": {**config["data"], "num_negatives": self._num_negatives}} if self._trains else config

    @functools.cached_property
    def rows(self) -> ChoiceRows:
        return ChoiceRows(self.fields(), 1 + self._num_negatives)

    def baselines(self) -> Mapping[str, float]:
        """Returns the expected accuracy of a random order."""
        chances = [1 / len(example.rows) for example in self.valid]
        return {"valid/chance_accuracy@1": float(np.mean(chances))} if self._config.ranks else {}


class Task(fine_tuning.FineTuningTask[Config]):
    """Scores each text of a query."""

    architecture = "BertForSequenceClassification"

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        self.loss_name = config.objective
        super().__init__(config, vocabulary)
        self.example_dtypes = {"labels": np.int32, "scores": np.dtype((np.float32, self.example_shape))}

    def with_head(self, encoder: HeadConfig, config: Config) -> BertForSequenceClassification:
        return BertForSequenceClassification(encoder, 1, config.model.classifier_dropout, config.model.lstm_size)

    def reinitialized_modules(self, published: Published) -> Sequence[str]:
        """Returns the classifier, unless it has one output."""
        return () if pretrained.has_classes(published, ()) else ("classifier",)

    def predict_lengths(self) -> Sequence[int]:
        """Returns many lengths, because thousands of texts are worth the time to compile them."""
        return bucket_lengths(self._seq_len, (*range(16, 512, 16), *range(512, self._seq_len, 128)))

    @property
    def example_shape(self) -> tuple[int, ...]:
        return (1 + (self._config.data.num_negatives or 0),)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the number of queries if the loss compares their texts, otherwise that of texts."""
        if self._config.definition.compares:
            return super().denominators(batch)
        return {self.loss_name: jnp.maximum(jnp.sum(_present(batch), dtype=jnp.float32), 1.0)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        present = _present(batch)
        scores = mask_logits(batch["scores"], present)
        rows = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in bert.INPUTS}
        logits = self.apply(params, rows, rng).reshape(present.shape)
        best = jnp.argmax(scores, axis=1)  # the positive, or the text with the highest score
        right = is_best(mask_logits(logits, present), best) if self._config.ranks else None
        is_distribution = self._config.definition.is_distribution and self._config.data.score_column
        targets = jax.nn.softmax(scores) if is_distribution else batch["scores"]
        losses = self._config.definition.loss(logits, targets, present)
        return {self.loss_name: jnp.sum(losses * batch["weights"])}, fine_tuning.metrics(batch, right, batch["weights"])

    def predictions(self, output: jax.Array, batch: Batch) -> bert.Predictions:
        present = _present(batch)
        return bert.Predictions(output.reshape(*present.shape, 1), present * batch["weights"][:, None], "regression")

    def score_names(self) -> Sequence[str]:
        return self._config.metrics

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Compares a positive with the negatives of its row; equal scores count against it."""
        logits = [np.array([output["logits"] for output in outputs], np.float64) for _, outputs in results]
        if self._config.ranks:
            ranks = np.array([1 + np.sum(~(row[1:] < row[0])) for row in logits])
            values = (ranks == 1), (ranks <= 10) / ranks, (ranks <= 10) / np.log2(1 + ranks)
            return {name: float(np.mean(of_rows)) for name, of_rows in zip(RANKS, values, strict=True)}
        scores = np.concatenate([example.source.item.scores for example, _ in results])
        if self._config.metrics == PRECISION:
            return {"average_precision": _average_precision(np.concatenate(logits), scores >= 0.5)}
        return glue.score(CORRELATIONS, self._activated(np.concatenate(logits)), scores)

    def _activated(self, logits: np.ndarray) -> np.ndarray:
        return logits if self._config.activation == "identity" else sigmoid(logits)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the logit of each row, [B]."""
        return {"logits": self.apply(params, batch, None)[:, 0]}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the score, with seven significant digits."""
        score = self._activated(np.asarray(outputs[0]["logits"], np.float64))
        return {"score": float(f"{score:.7g}")}

    def record_fields(self) -> Sequence[str]:
        return ("score",)

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        (query, *texts), scores, _ = example.source.item
        if not self._config.ranks:
            prediction = self.record(example, outputs)
            loss = (prediction["score"] - scores[0]) ** 2
            texts_of_pair = {"kind": "label", "text": query, "second": texts[0]}
            return {**texts_of_pair, **prediction, "reference": scores[0], "loss": loss}
        logits = np.array([output["logits"] for output in outputs], np.float64)
        losses = np.logaddexp.reduce(logits) - logits
        probabilities = dict(zip(texts, np.exp(-losses).tolist(), strict=True))
        record = {"kind": "label", "text": query, "second": "", "reference": texts[0], "loss": float(losses[0])}
        return {**record, "label": max(probabilities, key=probabilities.__getitem__), "probabilities": probabilities}

    def export(self, params: Params, folder: Path) -> None:
        """Writes a folder that `CrossEncoder` of sentence-transformers opens."""
        activation = self._config.activation
        more = sentence_transformers.cross_encoder(activation)
        self.save(params, folder, self.architecture, more=more, max_length=self._seq_len)
        if prompt := self._config.data.query_prompt:
            sentence_transformers.save_cross_encoder(folder, activation, prompt)


def _present(batch: Batch) -> jax.Array:
    """Returns whether the rows of a batch have each text, [B, C]."""
    return jnp.any(batch["segment_ids"] != 0, axis=-1)


def _average_precision(scores: Float64[np.ndarray, " n"], relevant: Bool[np.ndarray, " n"]) -> float:
    """Returns the mean precision among the texts that score at least as high as each relevant one; 0.0 without any."""
    thresholds = np.sort(scores[relevant])
    num_relevant = len(thresholds) - np.searchsorted(thresholds, thresholds)
    num_texts = len(scores) - np.searchsorted(np.sort(scores), thresholds)
    return float(np.mean(num_relevant / num_texts)) if len(thresholds) else 0.0
