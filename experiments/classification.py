"""Classification, multi-label classification and regression of texts and pairs (Devlin et al. 2019, section 4.1)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import above, each, one_of, part
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs import labeled_text
from bertjax.data.codecs.label_sets import LabelSetRows, LabelSetsConfig, flags_of, indicators
from bertjax.data.codecs.labeled_text import LabeledRows, LabeledText, LabeledTextConfig
from bertjax.data.prepared import VALID
from bertjax.data.readers import tables
from bertjax.data.rows.stored import Fields, Ragged
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.errors import UserError
from bertjax.interop import huggingface
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import binary_cross_entropy, cross_entropy, is_best, squared_error
from bertjax.scoring import glue
from bertjax.tasks import bert, completion, fine_tuning, inputs, pretrained, samples
from bertjax.tasks.bert import text_example

_CORRELATIONS = ("pearson", "spearman")
_METRICS = {
    "classification": tuple(name for name in glue.METRICS if name not in _CORRELATIONS),
    "multi_label": glue.MULTI_LABEL,
    "regression": _CORRELATIONS,
}


@dataclasses.dataclass(frozen=True)
class DataConfig(LabelSetsConfig, fine_tuning.DataConfig):
    """The keys of `data`.

    Attributes:
      label_column: the column of the label or number; empty if there is none. With objective=multi_label, the column of
        a list of classes, or two or more columns of 0 and 1, separated by commas, whose names are the classes.
      labels: the classes, in order. Default: those of the training rows, or of `init_from` without training rows.
      seq_len: the maximum number of tokens of a row, including special tokens; longer texts are
        truncated. Default: 128, or the model's number of positions if it is smaller.
      packing: whether several texts share a row of `seq_len` tokens in training.
    """

    labels: tuple[str, ...]
    packing: bool = False


@dataclasses.dataclass(frozen=True)
class Config(fine_tuning.ClassWeightsConfig):
    """The config keys that this experiment reads.

    Attributes:
      objective: "classification"; "multi_label": any number of classes for each row; or "regression": one number for
        each row.
      class_weights: see `ClassWeightsConfig`. In multi_label they apply to rows that have the class, as `pos_weight` of
        torch's BCEWithLogitsLoss.
      metrics: validation metrics: "accuracy", "f1" (of class 1), "macro_f1", "matthews_correlation"; in regression
        "pearson", "spearman"; in multi_label always "accuracy" (of whole label sets), "micro_f1", "macro_f1". See
        `bertjax.scoring.glue`.
      threshold: in multi_label, the lowest probability of a class that is predicted.
    """

    model: fine_tuning.ClassifierConfig
    data: DataConfig
    objective: Annotated[str, one_of(*_METRICS)]
    metrics: Annotated[tuple[str, ...], each(one_of(*dict.fromkeys((*glue.METRICS, *glue.MULTI_LABEL))))]
    threshold: Annotated[float, above(0, below=1)] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        known = _METRICS[self.objective]
        fix = "set --config.metrics, or correct --config.objective"
        for metric in self.metrics:
            got = f"{metric} with objective={self.objective}"
            self.check(metric in known, "metrics", f"{', '.join(known)} for {self.objective}", got=got, fix=fix)
        if self.is_multi_label:
            self.data.check_columns()
            if labels := self.data.labels or self.data.flags:
                self.check_weights(labels)

    @property
    def is_numeric(self) -> bool:
        """Whether labels are numbers."""
        return self.objective == "regression"

    @property
    def is_multi_label(self) -> bool:
        """Whether a row has any number of classes."""
        return self.objective == "multi_label"

    def check_labels(self) -> None:
        """Raises UserError unless there are two or more distinct classes that fit the metrics; none in regression.

        In multi-label classification, one class suffices.
        """
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
        fewest, word = (1, "one") if self.is_multi_label else (2, "two")
        are_distinct = len(set(labels)) >= max(fewest, len(labels))
        data.check(are_distinct, "labels", f"{word} or more different classes", got=", ".join(labels), fix=fix)
        ok, got = "f1" not in self.metrics or len(labels) == 2, f"f1 with {len(labels)} classes"
        expected = "two classes, because f1 is the F1 of the second class"
        self.check(ok, "metrics", expected, got=got, fix="use macro_f1")


FREE_AFTER_TRAINING = (
    *("metrics", "threshold", "data.text_columns", "data.label_column", "data.label_separator"),
    *("data.header", "data.separator", "data.seq_len"),
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
    """The class names of the model in `init_from`. Raises UserError unless it was trained for this objective."""
    objective, stated = config["objective"], published.objective
    numeric, is_multi_label = objective == "regression", objective == "multi_label"
    if published.num_classes == 1 and not numeric and stated != "multi_label":
        raise UserError(
            f"config key init_from={config['init_from']}",
            got="a model with one output: for regression, ranking or multiple choice",
            expected="a classifier",
            fix="set --config.objective=regression and its --config.metrics, use configs/reranker.py or "
            "configs/multiple_choice.py, or name another folder",
        )
    if not pretrained.is_alike(published, is_multi_label):
        raise UserError(
            f"config key objective={objective}",
            got=f"init_from={config['init_from']}, a model for {stated} (stated in its config.json)",
            expected=f"objective={stated}",
            fix=f"set --config.objective={stated}, or set data.source to train with only the encoder of this model",
        )
    if stated == "regression" and published.num_classes > 1:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got=f"a model that predicts {published.num_classes} numbers (problem_type in its config.json)",
            expected="a classifier, or a model that predicts one number",
            fix="name another, or set data.source to train with only the encoder of this model",
        )
    return () if numeric else published.labels


def _class_names(facts: Mapping[str, Any], order: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """The classes of training rows. If `init_from` has the same classes, they keep the order of its weights.

    Args:
      facts: the facts about the rows, see `LabeledRows.survey`.
      order: the classes in the order of the source of the rows, if it has one.
      known: the classes of `init_from`.
    """
    names = labeled_text.label_names(facts, order)
    by_default = {labeled_text.with_default_name(name, known) for name in names}
    return known if set(known) in (set(names), by_default) else names


open_vocabulary = bert.open_vocabulary


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], Tokenizer]:
    """See `Trainable.example_config`. Has two classes, or as many as weights, if they come from the training rows."""
    data, objective = config["data"], config["objective"]
    if objective != "regression" and data["source"] and not data["labels"]:
        labels: Sequence[str] = ("0", "1")
        if objective == "multi_label":
            labels = flags_of(data["label_column"]) or tuple(map(str, range(len(config["class_weights"]) or 2)))
        config = {**config, "data": {**data, "labels": labels}}
    return fine_tuning.example_config(config)


class Data(fine_tuning.FineTuningData[Config, LabeledText]):
    """See `bertjax.contract.Data`."""

    @functools.cached_property
    def recipe(self) -> LabeledRows:
        """See `FineTuningData.recipe`."""
        config, data = self._config, self._config.data
        if config.is_multi_label:
            return LabelSetRows(part(LabelSetsConfig, data), False, self.vocabulary, data.seq_len)
        return LabeledRows(part(LabeledTextConfig, data), config.is_numeric, self.vocabulary, data.seq_len)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """See `FineTuningData.labels`; from the config, or else from the training rows."""
        config, data, published = self._config, self._config.data, self._published
        if data.labels or config.is_numeric or not data.source:
            return data.labels
        known = published.labels if published and pretrained.is_alike(published, config.is_multi_label) else ()
        if config.is_multi_label and data.flags:
            return _class_names(self.read.facts, data.flags, known)
        if not config.is_multi_label:
            labeled_text.check_hidden(self.read.facts, known)
        order = tables.class_names(data.source, "data.source", data.label_column)
        return _class_names(self.read.facts, order, known)

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Data.complete`. Raises UserError for labels or class weights that do not fit the classes."""
        if not self._config.is_numeric:
            self._config.check_weights(self.labels)
            if self._config.is_multi_label:
                self._config.data.check_labels(self.labels)
            labeled_text.check_labels(self.read.facts, self.labels)
        return super().complete(config)

    def fields(self) -> Fields:
        """See `FineTuningData.fields`.

        "labels" are numbers to predict, or places in `labels`, or in multi-label classification whether a row has each
        class, [rows, C].
        """
        fields = self.prepared.train
        if self._config.is_numeric:
            return fields
        places = np.array([self._place(name) for name in self.read.facts["classes"]["train"]], np.int32)
        labels = fields["labels"]
        if isinstance(labels, Ragged):
            return {**fields, "labels": indicators(labels, places, len(self.labels))}
        return {**fields, "labels": places[labels]}

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
        if isinstance(row.label, float):
            label: Any = np.float32(row.label)
        elif self._config.is_multi_label:
            label = np.zeros(len(self.labels), bool)
            label[[self._place(name) for name in row.classes]] = True
        else:
            label = np.int32(self._place(str(row.label)))
        return text_example(segments, self.vocabulary, self._config.data.seq_len, label)

    def baselines(self) -> Mapping[str, float]:
        """Metrics of always predicting the mean of the validation labels or, in classification, the majority class.

        In multi-label classification, it is the most frequent label set.
        """
        labels = np.array([example.source for example in self.valid])
        if self._config.is_numeric:
            return {"valid/mean_loss": float(labels.var())}
        _, counts = np.unique(labels, axis=0, return_counts=True)
        return {"valid/majority_accuracy": float(counts.max() / len(labels))}


class Task(fine_tuning.FineTuningTask[Config]):
    """See `bertjax.contract.TrainingTask`."""

    architecture, columns_key = "BertForSequenceClassification", "text_columns"

    def __init__(self, config: Config, vocabulary: Tokenizer) -> None:
        """See `FineTuningTask`. Raises UserError if the classes do not fit the objective and the metrics."""
        self._numeric, self._multi_label = config.is_numeric, config.is_multi_label
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
        return () if pretrained.has_classes(published, self.labels, self._multi_label) else ("classifier",)

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `TrainingTask.batch_specs`."""
        specs = super().batch_specs()
        if not self._multi_label:
            return specs
        labels = (jax.ShapeDtypeStruct((*spec["weights"].shape, len(self.labels)), bool) for spec in specs)
        return [{**spec, "labels": each} for spec, each in zip(specs, labels, strict=True)]

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The sum of the weights of the texts."""
        return {self.term: jnp.maximum(jnp.sum(self._row_weights(batch)), 1e-6)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy, or the squared error, of each text; see `TrainingTask.loss`."""
        logits, labels, right = self.apply(params, batch, rng), batch["labels"], None
        if self._numeric:
            each = squared_error(logits[..., 0], labels)
        elif self._multi_label:
            weights = self._config.class_weights
            each = binary_cross_entropy(logits, labels, jnp.asarray(weights) if weights else None)
            right = jnp.all((jax.nn.sigmoid(logits) >= self._config.threshold) == labels, axis=-1)
        else:
            each, right = cross_entropy(logits, labels), is_best(logits, labels)
        metrics = fine_tuning.metrics(batch, right, batch["weights"])
        return {self.term: jnp.sum(each * self._row_weights(batch))}, metrics

    def _row_weights(self, batch: Batch) -> jax.Array:
        """The weight of each text in the loss; 0 for empty positions and rows that pad the batch."""
        if self._multi_label:
            return jnp.asarray(batch["weights"])
        return self._config.weighted(batch["weights"], batch["labels"])

    def score_names(self) -> Sequence[str]:
        """The metrics of the config, or those of multi-label classification, and the mean loss."""
        return (*(glue.MULTI_LABEL if self._multi_label else self._config.metrics), "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """See `score_names`; `class_weights` do not apply. In multi-label classification also the F1 of each class."""
        logits = np.stack([outputs[0]["logits"] for _, outputs in results]).astype(np.float64)
        labels = np.array([example.source for example, _ in results])
        if self._multi_label:
            found = glue.score_label_sets(_sigmoid(logits), labels, self._config.threshold, self.labels)
            return {**found, "loss": float(np.mean(np.logaddexp(0, logits) - logits * labels))}
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
        """The most probable class and the probabilities of all classes, or the predicted number.

        In multi-label classification, all classes whose probability is at least `threshold`.
        """
        (output,) = outputs
        if self._numeric:
            return {"score": round(float(output["logits"][0]), 6)}
        probabilities = (_sigmoid if self._multi_label else _softmax)(output["logits"].astype(np.float64))
        each = {label: round(float(p), 6) for label, p in zip(self.labels, probabilities, strict=True)}
        if self._multi_label:
            return {"labels": self._names(probabilities >= self._config.threshold), "probabilities": each}
        return {"label": self.labels[int(probabilities.argmax())], "probabilities": each}

    def _names(self, chosen: np.ndarray) -> list[str]:
        return [name for name, is_chosen in zip(self.labels, chosen, strict=True) if is_chosen]

    def record_fields(self) -> Sequence[str]:
        """See `PredictionTask.record_fields`."""
        if self._numeric:
            return ("score",)
        return ("labels" if self._multi_label else "label", *(f"probabilities.{label}" for label in self.labels))

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """See `BertTask.sample`."""
        first, *second = samples.texts(example.rows[0], self._tokenizer)
        shown = {"kind": "label", "text": first, "second": " ".join(second)}
        if self._multi_label:
            right: Any = self._names(example.source)
        else:
            right = float(example.source) if self._numeric else self.labels[int(example.source)]
        return {**shown, **self.record(example, outputs), "reference": right}

    def export(self, params: Params, folder: Path) -> None:
        """See `BertTask.export`."""
        more = {"problem_type": huggingface.PROBLEM_TYPES["multi_label"]} if self._multi_label else {}
        self.save(params, folder, self.architecture, self.labels or None, more=more)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(-np.logaddexp(0, -logits))
    return found


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
