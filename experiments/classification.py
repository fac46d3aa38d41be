"""Classification and regression of texts and pairs of texts (Devlin et al. 2019, section 4.1)."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import build_all, each, one_of
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.fine_tuning import labeled_text
from bertjax.data.fine_tuning.labeled_text import LabeledRows, LabeledText, LabeledTextConfig
from bertjax.data.prepared import PreparationConfig
from bertjax.data.readers import tables
from bertjax.data.rows.buckets import check_seq_len
from bertjax.data.rows.stored import Fields
from bertjax.data.rows.text_rows import text_row, truncate
from bertjax.data.text.vocabulary_config import VocabularyConfig
from bertjax.errors import UserError
from bertjax.models.heads import BertForSequenceClassification
from bertjax.models.losses import cross_entropy, is_best, squared_error
from bertjax.scoring import glue
from bertjax.tasks import fine_tuning, inputs, pretrained, samples
from bertjax.tasks.bert import BertTask, check_two_segments, model_configs, stand_in_tokenizer, to_example
from bertjax.tasks.fine_tuning import FineTuningConfig, FineTuningData, FineTuningFacts, HeadConfig

_CORRELATIONS = ("pearson", "spearman")
_SEQ_LEN = 128  # the default


@dataclasses.dataclass(frozen=True)
class Config(FineTuningConfig):
    """The config keys that this experiment reads.

    Attributes:
      objective: "classification", or "regression": one number for each row.
      class_weights: weights of the classes in the loss, in the order of `data.labels`; empty for 1 each.
      metrics: validation metrics: "accuracy", "f1" (of class 1), "macro_f1", "matthews_correlation"; in regression
        "pearson", "spearman". See `bertjax.scoring.glue`.
    """

    objective: Annotated[str, one_of("classification", "regression")]
    class_weights: tuple[float, ...]
    metrics: Annotated[tuple[str, ...], each(one_of(*glue.METRICS))]

    def __post_init__(self) -> None:
        super().__post_init__()
        for metric in self.metrics:
            if (metric in _CORRELATIONS) != (self.objective == "regression"):
                raise UserError(
                    "config key metrics",
                    got=f"{metric} with objective={self.objective}",
                    expected="pearson and spearman for regression, the others for classification",
                    fix="set --config.metrics, or correct --config.objective",
                )


@dataclasses.dataclass(frozen=True)
class RowsConfig:
    """How texts become rows.

    Attributes:
      labels: the classes, in order. Default: those of the training rows, or of `init_from` without training rows.
      seq_len: the maximum number of tokens of a row, including special tokens; longer texts are
        truncated. Default: 128, or the model's number of positions if it is smaller.
      packing: whether several texts share a row of `seq_len` tokens in training.
    """

    labels: tuple[str, ...]
    seq_len: int
    packing: bool = False


_DATA = (LabeledTextConfig, RowsConfig, VocabularyConfig, PreparationConfig)
FREE_AFTER_TRAINING = (
    *("metrics", "data.text_columns", "data.label_column", "data.header", "data.separator"),
    "data.seq_len",
)


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what `init_from` determines. This includes the classes if there are no training rows.

    Raises:
      UserError: if config keys contradict each other or the model in `init_from`.
    """
    config = pretrained.resolve(config, seq_len=_SEQ_LEN)
    data = config["data"]
    if config["init_from"] and not data.get("source"):
        known = _known_classes(config)
        config = {**config, "data": {**data, "labels": data.get("labels") or known}}
    return config


def _known_classes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The class names of the model in `init_from`. Raises UserError unless it is a single-label classifier."""
    found, numeric = pretrained.describe(Path(config["init_from"])), config["objective"] == "regression"
    if found.num_classes == 1 and not numeric:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got="a model with one output: for regression or multiple choice",
            expected="a classifier",
            fix="set --config.objective=regression and its --config.metrics, use configs/multiple_choice.py, or name "
            "another folder",
        )
    if found.is_multi_label:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got="a multi-label or multi-output model (problem_type in its config.json)",
            expected="a single-label classifier",
            fix="name another, or set data.source to train with only the encoder of this model",
        )
    return () if numeric else found.labels


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


read_facts = fine_tuning.read_facts


def stand_in_facts(config: Config) -> FineTuningFacts:
    """See `Trainable.stand_in_facts`. Uses two placeholder classes if the classes come from the training rows."""
    is_open = config.objective == "classification" and config.data["source"] and not config.data["labels"]
    return FineTuningFacts(stand_in_tokenizer(), ("0", "1") if is_open else ())


class ClassificationData(FineTuningData[Config, LabeledText]):
    """See `bertjax.contract.Data`."""

    def __init__(self, config: Config, folder: Path) -> None:
        """See `Trainable.build_data`."""
        self._text, self._columns, *_ = build_all(_DATA, config.data, "data")
        super().__init__(config, folder, self._columns.seq_len, self._columns.packing)
        self._numeric = config.objective == "regression"

    @functools.cached_property
    def recipe(self) -> LabeledRows:
        """See `FineTuningData.recipe`."""
        return LabeledRows(self._text, self._numeric, self.tokenizer, self._seq_len)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """See `FineTuningData.labels`; from the config, or else from the training rows."""
        labels = self._columns.labels
        if labels or self._numeric or not self._text.source:
            return labels
        init_from = self._config.init_from
        return _class_names(self.read.facts, self._text, pretrained.class_names(init_from) if init_from else ())

    @property
    def facts(self) -> FineTuningFacts:
        """See `Data.facts`. Raises UserError for labels or class weights that do not fit the classes."""
        if not self._numeric:
            _check_weights(self._config, self.labels)
            labeled_text.check_labels(self.read.facts, self.labels)
        return super().facts

    def fields(self) -> Fields:
        """See `FineTuningData.fields`; "labels" are numbers to predict, or places in `labels`."""
        fields = self.prepared.train
        if self._numeric:
            return fields
        classes = self.read.facts["classes"]["train"]
        return {**fields, "labels": np.array([self._place(name) for name in classes], np.int32)[fields["labels"]]}

    def _place(self, name: str) -> int:
        return self.labels.index(labeled_text.with_default_name(name, self.labels))

    @functools.cached_property
    def _held_out(self) -> list[Example]:
        rows = list(self.read.valid())
        places = {name: np.int32(self._place(name)) for name in self.read.facts["classes"]["valid"]}
        labels = (np.float32(row.label) if self._numeric else places[str(row.label)] for row in rows)
        return [to_example([row], label) for row, label in zip(self.recipe.inputs(rows), labels, strict=True)]

    def held_out(self) -> Iterator[Example]:
        """See `Data.held_out`; the source is the label."""
        return iter(self._held_out)

    def baselines(self) -> Mapping[str, float]:
        """Metrics of always predicting the mean of the validation labels or, in classification, the majority class."""
        labels = np.array([example.source for example in self._held_out])
        if self._numeric:
            return {"valid/mean_loss": float(labels.var())}
        return {"valid/majority_accuracy": float(np.bincount(labels).max() / len(labels))}


build_data = ClassificationData


class Classification(BertTask[Config]):
    """See `bertjax.contract.Task`."""

    architecture = "BertForSequenceClassification"

    def __init__(self, config: Config, facts: FineTuningFacts) -> None:
        """See `Experiment.build_task`."""
        self._text, self._rows, *_ = build_all(_DATA, config.data, "data")
        bert, head = model_configs(config, HeadConfig, facts.tokenizer.vocab)
        check_seq_len(self._rows.seq_len, bert.max_positions)
        if len(self._text.text_columns) == 2:
            check_two_segments(bert)
        fine_tuning.check_packing(self._rows.packing, config.model)
        self._numeric, self.labels = config.objective == "regression", self._rows.labels
        if self._numeric:
            _check_no_labels(config, self.labels)
        else:
            _check_labels(config, self.labels)
        num_labels = 1 if self._numeric else len(self.labels)
        model = BertForSequenceClassification(bert, num_labels, head.classifier_dropout, head.lstm_size)
        super().__init__(config, facts.tokenizer, bert, model, self._rows.seq_len)

    def reinitialized_modules(self, folder: Path) -> Sequence[str]:
        """The classifier, unless the folder's classes match: the same names, or as many classes without names."""
        return () if pretrained.has_classes(folder, self.labels) else ("classifier",)

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        """See `Task.batch_specs`."""
        label, rows = np.float32 if self._numeric else np.int32, self._rows
        return fine_tuning.training_specs(self._config.batch_size, rows.seq_len, rows.packing, {}, {"labels": label})

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """The sum of the weights of the texts."""
        return {self._config.objective: jnp.maximum(jnp.sum(self._row_weights(batch)), 1e-6)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        """The cross-entropy, or the squared error, of each text; see `Task.loss`."""
        logits = self.apply(params, batch, rng)
        labels = batch["labels"]
        weights, count = batch["weights"], jnp.sum(batch["weights"])
        each = squared_error(logits[..., 0], labels) if self._numeric else cross_entropy(logits, labels)
        metrics = {"tokens": (jnp.sum(batch["segment_ids"] != 0, dtype=jnp.float32), jnp.ones(()))}
        if not self._numeric:
            metrics["accuracy"] = jnp.sum(is_best(logits, labels) * weights), count
        return {self._config.objective: jnp.sum(each * self._row_weights(batch))}, metrics

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

    def examples(self, lines: Iterator[str]) -> Iterator[Example]:
        """An example for each line: a text, or two texts separated by a tab if `data.text_columns` has two columns."""

        def make(line: Sequence[str], where: str) -> Example:
            return self._example(labeled_text.texts_of_line(line[0], where, self._text.text_columns), where)

        return inputs.of_lines(lines, make, self._text.on_bad_row)

    def examples_of(self, path: str) -> Iterator[Example] | None:
        """The texts in `data.text_columns` of a table; see `Task.examples_of`."""
        text, key = self._text, "data.text_columns"
        return inputs.of_table(path, key, text.text_columns, self._example, text.on_bad_row, text.header)

    def _example(self, texts: Sequence[str], where: str) -> Example:
        ids = truncate(self._tokenizer.encode_batch(texts), self._rows.seq_len)
        return to_example([text_row(ids, self._tokenizer)], None)

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

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """See `BertTask.sample`."""
        first, *second = samples.texts(example.rows[0], self._tokenizer)
        shown = {"kind": "label", "text": first, "second": " ".join(second)}
        right = float(example.source) if self._numeric else self.labels[int(example.source)]
        return {**shown, **self.record(example, outputs), "reference": right}


build_task = Classification


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _check_no_labels(config: Config, labels: Sequence[str]) -> None:
    """Raises UserError if classes or class weights are set in regression."""
    if labels or config.class_weights:
        raise UserError(
            "config key objective",
            got=f"regression with {len(labels)} labels and {len(config.class_weights)} class_weights",
            expected="no labels and no class_weights, because regression predicts a number",
            fix="omit them, or set --config.objective=classification",
        )


def _check_weights(config: Config, labels: Sequence[str]) -> None:
    """Raises UserError unless there are no class weights, or a valid one for each class."""
    weights = config.class_weights
    if weights and not (len(weights) == len(labels) and min(weights) >= 0 and 0 < sum(weights) < np.inf):
        raise UserError(
            "config key class_weights",
            got=weights,
            expected=f"a number of 0 or more for each of {', '.join(labels)}, not all of them 0, or no weights",
            fix="give the weights in that order",
        )


def _check_labels(config: Config, labels: Sequence[str]) -> None:
    """Raises UserError unless there are two or more distinct classes, and the metrics fit them."""
    if not labels:
        raise UserError(
            "config key data.source",
            got="no value, and no classes in data.labels or init_from",
            expected="training rows, or a classifier in init_from for prediction",
            fix="set --config.data.source=FILE, or --config.init_from to the folder of a classifier; if its classes "
            "have no names, also set --config.data.labels in their order",
        )
    if len(set(labels)) < max(2, len(labels)):
        raise UserError(
            "config key data.labels",
            got=", ".join(labels),
            expected="two or more different classes",
            fix="omit it to use the classes of the training rows, or name each class once",
        )
    if "f1" in config.metrics and len(labels) > 2:
        raise UserError(
            "config key metrics",
            got=f"f1 with {len(labels)} classes",
            expected="two classes, because f1 is the F1 of the second class",
            fix="use macro_f1",
        )
