"""Classification and regression of texts and pairs of texts (Devlin et al. 2019, section 4.1)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import each, one_of, part
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.fine_tuning import labeled_text
from bertjax.data.fine_tuning.labeled_text import LabeledRows, LabeledText, LabeledTextConfig
from bertjax.data.prepared import VALID
from bertjax.data.readers import tables
from bertjax.data.rows.stored import Fields
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import cross_entropy, is_best, squared_error
from bertjax.scoring import glue
from bertjax.tasks import bert, completion, fine_tuning, inputs, pretrained, samples
from bertjax.tasks.bert import text_example

_CORRELATIONS = ("pearson", "spearman")


@dataclasses.dataclass(frozen=True)
class DataConfig(LabeledTextConfig, fine_tuning.DataConfig):
    """The keys of `data`.

    Attributes:
      labels: the classes, in order. Default: those of the training rows, or of `init_from` without training rows.
      seq_len: the maximum number of tokens of a row, including special tokens; longer texts are
        truncated. Default: 128, or the model's number of positions if it is smaller.
      packing: whether several texts share a row of `seq_len` tokens in training.
    """

    labels: tuple[str, ...]
    packing: bool = False


@dataclasses.dataclass(frozen=True)
class Config(fine_tuning.FineTuningConfig):
    """The config keys that this experiment reads.

    Attributes:
      objective: "classification", or "regression": one number for each row.
      class_weights: weights of the classes in the loss, in the order of `data.labels`; empty for 1 each.
      metrics: validation metrics: "accuracy", "f1" (of class 1), "macro_f1", "matthews_correlation"; in regression
        "pearson", "spearman". See `bertjax.scoring.glue`.
    """

    model: fine_tuning.ClassifierConfig
    data: DataConfig
    objective: Annotated[str, one_of("classification", "regression")]
    class_weights: tuple[float, ...]
    metrics: Annotated[tuple[str, ...], each(one_of(*glue.METRICS))]

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "pearson and spearman for regression, the others for classification"
        fix = "set --config.metrics, or correct --config.objective"
        for metric in self.metrics:
            got = f"{metric} with objective={self.objective}"
            self.check((metric in _CORRELATIONS) == self.is_numeric, "metrics", expected, got=got, fix=fix)

    @property
    def is_numeric(self) -> bool:
        """Whether labels are numbers."""
        return self.objective == "regression"

    def check_weights(self, labels: Sequence[str]) -> None:
        """Raises UserError unless there are no class weights, or a valid one for each class."""
        weights, fix = self.class_weights, "give the weights in that order"
        ok = not weights or (len(weights) == len(labels) and min(weights) >= 0 and 0 < sum(weights) < np.inf)
        expected = f"a number of 0 or more for each of {', '.join(labels)}, not all of them 0, or no weights"
        self.check(ok, "class_weights", expected, fix=fix)

    def check_labels(self) -> None:
        """Raises UserError unless there are two or more distinct classes that fit the metrics; none in regression."""
        labels, data = self.data.labels, self.data
        if self.is_numeric:
            got = f"regression with {len(labels)} labels and {len(self.class_weights)} class_weights"
            expected = "no labels and no class_weights, because regression predicts a number"
            fix = "omit them, or set --config.objective=classification"
            self.check(not labels and not self.class_weights, "objective", expected, got=got, fix=fix)
            return
        got, expected = "no value, and no classes in data.labels or init_from", "training rows, or a classifier"
        fix = "set --config.data.source=FILE, or --config.init_from to the folder of a classifier; if its classes have "
        fix += "no names, also set --config.data.labels in their order"
        data.check(labels, "source", f"{expected} in init_from for prediction", got=got, fix=fix)
        fix = "omit it to use the classes of the training rows, or name each class once"
        are_distinct = len(set(labels)) >= max(2, len(labels))
        data.check(are_distinct, "labels", "two or more different classes", got=", ".join(labels), fix=fix)
        ok, got = "f1" not in self.metrics or len(labels) == 2, f"f1 with {len(labels)} classes"
        expected = "two classes, because f1 is the F1 of the second class"
        self.check(ok, "metrics", expected, got=got, fix="use macro_f1")


FREE_AFTER_TRAINING = (
    *("metrics", "data.text_columns", "data.label_column", "data.header", "data.separator"),
    "data.seq_len",
)


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in what `init_from` determines. This includes the classes if there are no training rows.

    Raises:
      UserError: if config keys contradict each other or the model in `init_from`.
    """
    config = completion.bert(config, published, seq_len=128)
    data = config["data"]
    if published and not data.get("source"):
        known = _known_classes(config, published)
        config = {**config, "data": {**data, "labels": data.get("labels") or known}}
    return config


def _known_classes(config: Mapping[str, Any], published: Published) -> tuple[str, ...]:
    """The class names of the model in `init_from`. Raises UserError unless it is a single-label classifier."""
    numeric = config["objective"] == "regression"
    if published.num_classes == 1 and not numeric:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got="a model with one output: for regression, ranking or multiple choice",
            expected="a classifier",
            fix="set --config.objective=regression and its --config.metrics, use configs/reranker.py or "
            "configs/multiple_choice.py, or name another folder",
        )
    if published.is_multi_label:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got="a multi-label or multi-output model (problem_type in its config.json)",
            expected="a single-label classifier",
            fix="name another, or set data.source to train with only the encoder of this model",
        )
    return () if numeric else published.labels


def _class_names(facts: Mapping[str, Any], text: LabeledTextConfig, known: tuple[str, ...]) -> tuple[str, ...]:
    """The classes of training rows. If `init_from` has the same classes, they keep the order of its weights.

    Args:
      facts: the facts about the rows, see `LabeledRows.survey`.
      text: the rows.
      known: the classes of `init_from`.
    """
    names = labeled_text.label_names(facts, tables.class_names(text.source, "data.source", text.label_column))
    by_default = {labeled_text.with_default_name(name, known) for name in names}
    return known if set(known) in (set(names), by_default) else names


open_vocabulary = bert.open_vocabulary


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], Tokenizer]:
    """See `Trainable.example_config`. Has two classes if the classes come from the training rows."""
    data = config["data"]
    if config["objective"] == "classification" and data["source"] and not data["labels"]:
        config = {**config, "data": {**data, "labels": ("0", "1")}}
    return fine_tuning.example_config(config)


class Data(fine_tuning.FineTuningData[Config, LabeledText]):
    """See `bertjax.contract.Data`."""

    @functools.cached_property
    def recipe(self) -> LabeledRows:
        """See `FineTuningData.recipe`."""
        text = part(LabeledTextConfig, self._config.data)
        return LabeledRows(text, self._config.is_numeric, self.vocabulary, self._config.data.seq_len)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """See `FineTuningData.labels`; from the config, or else from the training rows."""
        data, published = self._config.data, self._published
        if data.labels or self._config.is_numeric or not data.source:
            return data.labels
        known = published.labels if published and not published.is_multi_label else ()
        labeled_text.check_hidden(self.read.facts, known)
        return _class_names(self.read.facts, data, known)

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Data.complete`. Raises UserError for labels or class weights that do not fit the classes."""
        if not self._config.is_numeric:
            self._config.check_weights(self.labels)
            labeled_text.check_labels(self.read.facts, self.labels)
        return super().complete(config)

    def fields(self) -> Fields:
        """See `FineTuningData.fields`; "labels" are numbers to predict, or places in `labels`."""
        fields = self.prepared.train
        if self._config.is_numeric:
            return fields
        classes = self.read.facts["classes"]["train"]
        return {**fields, "labels": np.array([self._place(name) for name in classes], np.int32)[fields["labels"]]}

    def _place(self, name: str) -> int:
        return self.labels.index(labeled_text.with_default_name(name, self.labels))

    @functools.cached_property
    def valid(self) -> list[Example]:
        """See `FineTuningData.valid`; the texts are encoded together, because that is faster."""
        rows = list(self.read.held_out(VALID))
        return [self._example(*each) for each in zip(rows, self.recipe.segments(rows), strict=True)]

    def example(self, row: LabeledText) -> Example:
        """See `FineTuningData.example`; the source is the label."""
        return self._example(row, *self.recipe.segments([row]))

    def _example(self, row: LabeledText, segments: Sequence[Sequence[int]]) -> Example:
        label = np.float32(row.label) if self._config.is_numeric else np.int32(self._place(str(row.label)))
        return text_example(segments, self.vocabulary, self._config.data.seq_len, label)

    def baselines(self) -> Mapping[str, float]:
        """Metrics of always predicting the mean of the validation labels or, in classification, the majority class."""
        labels = np.array([example.source for example in self.valid])
        if self._config.is_numeric:
            return {"valid/mean_loss": float(labels.var())}
        return {"valid/majority_accuracy": float(np.bincount(labels).max() / len(labels))}


class Task(fine_tuning.FineTuningTask[Config]):
    """See `bertjax.contract.TrainingTask`."""

    architecture, columns_key = "BertForSequenceClassification", "text_columns"

    def __init__(self, config: Config, vocabulary: Tokenizer) -> None:
        """See `FineTuningTask`. Raises UserError if the classes do not fit the objective and the metrics."""
        self._numeric = config.is_numeric
        self.term = config.objective
        self.labels, self.tabs = config.data.labels, len(config.data.text_columns) == 2
        self.of_examples = {"labels": np.float32 if self._numeric else np.int32}
        config.check_labels()
        super().__init__(config, vocabulary)

    def with_head(self, encoder: HeadConfig, config: Config) -> BertForSequenceClassification:
        """See `FineTuningTask.with_head`."""
        num_labels, head = 1 if self._numeric else len(self.labels), config.model
        return BertForSequenceClassification(encoder, num_labels, head.classifier_dropout, head.lstm_size)

    def reinitialized_modules(self, published: Published) -> Sequence[str]:
        """The classifier, unless the classes match: the same names, or as many classes without names."""
        return () if pretrained.has_classes(published, self.labels) else ("classifier",)

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The sum of the weights of the texts."""
        return {self.term: jnp.maximum(jnp.sum(self._row_weights(batch)), 1e-6)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy, or the squared error, of each text; see `TrainingTask.loss`."""
        logits = self.apply(params, batch, rng)
        labels = batch["labels"]
        each = squared_error(logits[..., 0], labels) if self._numeric else cross_entropy(logits, labels)
        right = None if self._numeric else is_best(logits, labels)
        metrics = fine_tuning.metrics(batch, right, batch["weights"])
        return {self.term: jnp.sum(each * self._row_weights(batch))}, metrics

    def _row_weights(self, batch: Batch) -> jax.Array:
        """The weight of each text in the loss; 0 for empty positions and rows that pad the batch."""
        if not self._config.class_weights:
            return jnp.asarray(batch["weights"])
        return batch["weights"] * jnp.asarray(self._config.class_weights)[batch["labels"]]

    def score_names(self) -> Sequence[str]:
        """The metrics of the config, and the mean loss."""
        return (*self._config.metrics, "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `score_names`; `class_weights` do not apply."""
        logits = np.stack([outputs[0]["logits"] for _, outputs in results]).astype(np.float64)
        labels = np.array([example.source for example, _ in results])
        predictions = logits[:, 0] if self._numeric else logits.argmax(axis=1)
        if self._numeric:
            losses = (predictions - labels) ** 2
        else:
            losses = -np.log(_softmax(logits)[np.arange(len(labels)), labels])
        return {**glue.score(self._config.metrics, predictions, labels), "loss": float(losses.mean())}

    def example(self, texts: Sequence[str], where: str) -> Example:
        """See `BertPredictionTask.example`; of as many texts as `data.text_columns` has columns."""
        count = len(self._config.data.text_columns)
        fix = f"set --config.data.text_columns to {len(texts)} names instead of {count}"
        inputs.check_texts(texts, where, (count,), fix)
        return text_example(self._tokenizer.encode_batch(texts), self._tokenizer, self._seq_len, None)

    def infer(self, params: Params, batch: Batch) -> Mapping[str, jax.Array]:
        """The logits of each row, [B, C]."""
        return {"logits": self.apply(params, batch, None)}

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """The most probable class and the probabilities of all classes, or the predicted number."""
        (output,) = outputs
        if self._numeric:
            return {"score": round(float(output["logits"][0]), 6)}
        probabilities = _softmax(output["logits"].astype(np.float64))
        each = {label: round(float(p), 6) for label, p in zip(self.labels, probabilities, strict=True)}
        return {"label": self.labels[int(probabilities.argmax())], "probabilities": each}

    def record_fields(self) -> Sequence[str]:
        """See `PredictionTask.record_fields`."""
        if self._numeric:
            return ("score",)
        return ("label", *(f"probabilities.{label}" for label in self.labels))

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """See `BertTask.sample`."""
        first, *second = samples.texts(example.rows[0], self._tokenizer)
        shown = {"kind": "label", "text": first, "second": " ".join(second)}
        right = float(example.source) if self._numeric else self.labels[int(example.source)]
        return {**shown, **self.record(example, outputs), "reference": right}


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
