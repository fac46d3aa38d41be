"""Classification, multi-label classification and regression of texts and pairs (Devlin et al. 2019, section 4.1)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import Flat, above, always, choice, each, one_of
from bertjax.contract import Batch, Example, Metrics, Output, Params, Sums
from bertjax.data.codecs import labeled_text
from bertjax.data.codecs.label_sets import LabelSetsConfig, flags_of
from bertjax.data.codecs.labeled_text import LabeledText, LabeledTextCodec
from bertjax.data.readers import tables
from bertjax.data.rows.stored import Fields
from bertjax.data.splits import TRAIN
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.errors import UserError
from bertjax.interop import huggingface, sentence_transformers
from bertjax.interop.published import Published
from bertjax.models.bert import HeadConfig
from bertjax.models.heads import BertForSequenceClassification
from bertjax.scoring import glue
from bertjax.tasks import bert, completion, fine_tuning, pretrained
from bertjax.tasks.objectives import OBJECTIVES, Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(fine_tuning.DataConfig):
    """The keys of `data`.

    Attributes:
      label_column: the column of the label or number; "" if there is none. With objective=multi_label, that of a list
        of classes, or several columns of 0 and 1, separated by commas.
      labels: the classes or tags, in order. Default: those of the training rows, or of `init_from` without training
        rows.
      seq_len: the maximum number of tokens of a row; longer texts are truncated, longer sentences to tag split.
        Default: 128, or the model's positions if fewer.
      packing: whether several examples share a row of `seq_len` tokens in training, each attending only to itself.
    """

    rows: Flat[LabelSetsConfig]
    labels: tuple[str, ...] = always(())
    seq_len: int = always(None)
    packing: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(fine_tuning.ClassWeightsConfig):
    """The config keys that this experiment reads.

    Attributes:
      objective: "classification"; "multi_label": any number of classes for each row; or "regression": one number for
        each row.
      class_weights: weights of the classes in the loss, in the order of `data.labels`; empty for 1 each. In multi_label
        they are `pos_weight` of torch's BCEWithLogitsLoss.
      metrics: validation metrics: "accuracy", "f1" (of class 1), "macro_f1", "matthews_correlation"; in regression
        "pearson", "spearman", "f1_from_3" (of numbers from 3 on, as KLUE-STS); in multi_label always "accuracy" (of
        whole label sets), "micro_f1", "macro_f1". Default: "accuracy"; in regression both correlations, in multi_label
        both F1. The last one is the default of `checkpoint.best_metric`.
      threshold: in multi_label, the lowest probability of a class that is predicted.
    """

    model: fine_tuning.ClassifierConfig
    data: DataConfig
    objective: Annotated[str, one_of(*OBJECTIVES)] = always("classification")
    metrics: Annotated[tuple[str, ...], each(one_of(*dict.fromkeys((*glue.METRICS, *glue.MULTI_LABEL))))] = always(None)
    threshold: Annotated[float, above(0, below=1)] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = self.definition.metrics
        fix = "omit --config.metrics, or correct --config.objective"
        for metric in self.metrics:
            got = f"{metric} with objective={self.objective}"
            expected = f"{', '.join(allowed)} for {self.objective}"
            self.check(metric in allowed, "metrics", expected, got=got, fix=fix)
        if self.is_multi_label:
            self.data.rows.check_columns()
            if labels := self.data.labels or self.data.rows.flags:
                self.check_weights(labels)

    @property
    def definition(self) -> Objective:
        """The definition of `objective`."""
        return OBJECTIVES[self.objective]

    @property
    def is_multi_label(self) -> bool:
        """Whether a row has any number of classes."""
        return self.definition.problem == "multi_label"

    def codec(self, tokenizer: EncoderTokenizer) -> LabeledTextCodec:
        codec = self.definition.codec(self.data.rows, tokenizer, self.data.seq_len)
        return dataclasses.replace(codec, takes_pairs=not self.data.source)

    def check_labels(self) -> None:
        """Raises UserError unless there are two or more distinct classes that fit the metrics; none in regression.

        In multi-label classification, one class suffices.
        """
        data = self.data
        labels = data.labels
        fewest = self.definition.min_classes
        if not fewest:
            got = f"regression with {len(labels)} labels and {len(self.class_weights)} class_weights"
            expected = "no labels and no class_weights, because regression predicts a number"
            fix = "omit them, or set --config.objective=classification"
            self.check(not labels and not self.class_weights, "objective", expected, got=got, fix=fix)
            return
        got = "no value, and no classes in data.labels or init_from"
        expected = "training rows, or a classifier"
        fix = "set --config.data.source=FILE, or --config.init_from to the folder of a classifier; if its classes have "
        fix += "no names, also set --config.data.labels in their order"
        data.check(labels, "source", f"{expected} in init_from for prediction", got=got, fix=fix)
        fix = "omit it to use the classes of the training rows, or name each class once"
        are_distinct = len(set(labels)) >= max(fewest, len(labels))
        expected = f"{'one' if fewest == 1 else 'two'} or more different classes"
        data.check(are_distinct, "labels", expected, got=", ".join(labels), fix=fix)
        is_binary = "f1" not in self.metrics or len(labels) == 2
        expected = "two classes, because f1 is the F1 of the second class"
        self.check(is_binary, "metrics", expected, got=f"f1 with {len(labels)} classes", fix="use macro_f1")


FREE_AFTER_TRAINING = (
    *("metrics", "threshold", "data.text_columns", "data.label_column", "data.label_separator"),
    *("data.header", "data.separator", "data.seq_len"),
)


def resolve(config: Mapping[str, Any], published: Published | None) -> dict[str, Any]:
    """Fills in the metrics, and what `init_from` determines. This includes the classes if there are no training rows.

    Raises:
      UserError: if config keys contradict each other or the model in `init_from`.
    """
    config = completion.bert(config, published, seq_len=128)
    data = config["data"]
    objective = OBJECTIVES[choice(config["objective"], tuple(OBJECTIVES), "objective")]
    metrics = objective.default_metrics if config["metrics"] is None else config["metrics"]
    checkpoint = config["checkpoint"]
    if checkpoint["best_metric"] is None:
        checkpoint = {**checkpoint, "best_metric": f"valid/{metrics[-1]}" if metrics else ""}
    config = {**config, "metrics": metrics, "checkpoint": checkpoint}
    if published and not data.get("source"):
        classes = _known_classes(config, published)
        config = {**config, "data": {**data, "labels": data.get("labels") or classes}}
    return config


def _known_classes(config: Mapping[str, Any], published: Published) -> tuple[str, ...]:
    """The class names of the model in `init_from`. Raises UserError unless it was trained for this objective."""
    if not published.is_run and (prompt := sentence_transformers.read_prompt(published.path)):
        raise UserError(
            f"config key init_from={config['init_from']}",
            got=f"a cross-encoder with the default prompt {prompt!r}",
            expected="a classifier without a prompt, or a cross-encoder with one output",
            fix="remove default_prompt_name from its config_sentence_transformers.json and put the prompt before texts",
        )
    objective = config["objective"]
    problem_type = pretrained.problem_of(published)
    problem = OBJECTIVES[objective].problem
    if published.num_classes == 1 and problem != "regression" and problem_type != "multi_label":
        raise UserError(
            f"config key init_from={config['init_from']}",
            got="a model with one output: for regression, ranking or multiple choice",
            expected="a classifier",
            fix="set --config.objective=regression, use configs/reranker.py or configs/multiple_choice.py, or name "
            "another folder",
        )
    if not pretrained.is_alike(published, problem == "multi_label"):
        raise UserError(
            f"config key objective={objective}",
            got=f"init_from={config['init_from']}, a model for {problem_type} (stated in its config.json)",
            expected=f"objective={problem_type}",
            fix=f"set --config.objective={problem_type}, or set data.source "
            "to train with only the encoder of this model",
        )
    if problem_type == "regression" and published.num_classes > 1:
        raise UserError(
            f"config key init_from={config['init_from']}",
            got=f"a model that predicts {published.num_classes} numbers (problem_type in its config.json)",
            expected="a classifier, or a model that predicts one number",
            fix="name another, or set data.source to train with only the encoder of this model",
        )
    return () if problem == "regression" else published.labels


def _class_names(facts: Mapping[str, Any], order: Sequence[str], published: tuple[str, ...]) -> tuple[str, ...]:
    """The classes of training rows. If `init_from` has the same classes, they keep the order of its weights.

    Args:
      facts: the facts of `LabelSurvey`.
      order: the classes in the order of the source of the rows, if it has one.
      published: the classes of `init_from`.
    """
    names = labeled_text.label_names(facts, order)
    default_names = {labeled_text.with_default_name(name, published) for name in names}
    return published if set(published) in (set(names), default_names) else names


open_vocabulary = bert.open_vocabulary


def example_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], EncoderTokenizer]:
    """Returns a config with two classes, or as many as weights, in place of those of the training rows."""
    data = config["data"]
    objective = OBJECTIVES[config["objective"]]
    if objective.min_classes and data["source"] and not data["labels"]:
        labels: Sequence[str] = ("0", "1")
        if objective.problem == "multi_label":
            labels = flags_of(data["label_column"]) or tuple(map(str, range(len(config["class_weights"]) or 2)))
        config = {**config, "data": {**data, "labels": labels}}
    return fine_tuning.example_config(config)


class Data(fine_tuning.FineTuningData[Config, LabeledText]):
    """Texts with labels."""

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes of the config, or else of the training rows."""
        config = self._config
        data = config.data
        published = self._published
        if data.labels or not config.definition.min_classes or not data.source:
            return data.labels
        is_alike = published and pretrained.is_alike(published, config.is_multi_label)
        classes = published.labels if published and is_alike else ()
        if config.is_multi_label and data.rows.flags:
            return _class_names(self.read.facts, data.rows.flags, classes)
        if not config.is_multi_label:
            labeled_text.check_hidden(self.read.facts, classes)
            labeled_text.check_decimals(self.read.facts, classes)
        order = tables.class_names(data.source, "data.source", data.label_column)
        return _class_names(self.read.facts, order, classes)

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Raises UserError for labels or class weights that do not fit the classes."""
        if self._config.definition.min_classes:
            self._config.check_weights(self.labels)
            if self._config.is_multi_label:
                self._config.data.rows.check_labels(self.labels)
            labeled_text.check_labels(self.read.facts, self.labels)
        return super().complete(config)

    def fields(self) -> Fields:
        """Returns the fields of the training rows; "labels" are targets of the objective."""
        fields = self.prepared.fields
        # Rows of earlier versions have numbers of the sorted classes, from 0 on.
        facts = self.read.facts["classes"][TRAIN]
        names = ["", *self.prepared.names["labels"]] if self.prepared.names else list(facts)
        indices = np.array([self._index(name) if name else 0 for name in names], np.int32)
        return {**fields, "labels": self._config.definition.targets(fields["labels"], indices, len(self.labels))}

    def _index(self, name: str) -> int:
        return self.labels.index(labeled_text.with_default_name(name, self.labels))

    def baselines(self) -> Mapping[str, float]:
        labels = [self.codec.gold(example.source.item) for example in self.valid]
        targets = np.array([self._config.definition.target(label, self.labels) for label in labels])
        return {f"valid/{name}": value for name, value in self._config.definition.baseline(targets).items()}


class Task(fine_tuning.FineTuningTask[Config]):
    """Predicts classes or numbers of texts."""

    architecture = "BertForSequenceClassification"
    _codec: LabeledTextCodec

    def __init__(self, config: Config, vocabulary: EncoderTokenizer) -> None:
        """Initializes the task. Raises UserError if the classes do not fit the objective and the metrics."""
        self._objective = config.definition
        self.loss_name = config.objective
        self.labels = config.data.labels
        self.example_dtypes = {"labels": self._objective.dtype}
        config.check_labels()
        super().__init__(config, vocabulary)

    def with_head(self, encoder: HeadConfig, config: Config) -> BertForSequenceClassification:
        head = config.model
        num_outputs = config.definition.num_outputs(self.labels)
        return BertForSequenceClassification(encoder, num_outputs, head.classifier_dropout, head.lstm_size)

    def reinitialized_modules(self, published: Published) -> Sequence[str]:
        """Returns the classifier, unless the classes match: the same names, or as many classes without names."""
        matches = pretrained.has_classes(published, self.labels, self._config.is_multi_label, self._config.experiment)
        return () if matches else ("classifier",)

    def batch_specs(self) -> Sequence[Mapping[str, jax.ShapeDtypeStruct]]:
        shape = self._objective.target_shape(len(self.labels))
        specs = super().batch_specs()
        labels = [jax.ShapeDtypeStruct((*spec["labels"].shape, *shape), spec["labels"].dtype) for spec in specs]
        return [{**spec, "labels": of_batch} for spec, of_batch in zip(specs, labels, strict=True)]

    def denominators(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the sum of the weights of the texts."""
        return {self.loss_name: jnp.maximum(jnp.sum(self._weights(batch)), 1e-6)}

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> tuple[Sums, Metrics]:
        logits = self.apply(params, batch, rng)
        labels = batch["labels"]
        losses = self._objective.losses(logits, labels, self._config)
        right = self._objective.is_right(logits, labels, self._config)
        loss = jnp.sum(losses * self._weights(batch))
        return {self.loss_name: loss}, fine_tuning.metrics(batch, right, batch["weights"])

    def predictions(self, output: Any, batch: Batch) -> bert.Predictions:
        return bert.Predictions(output, self._weights(batch), self._objective.problem)

    def _weights(self, batch: Batch) -> jax.Array:
        """Returns the weight of each text in the loss; 0 for empty positions and rows that pad the batch."""
        return self._objective.weights(batch["weights"], batch["labels"], self._config)

    def score_names(self) -> Sequence[str]:
        return (*(self._objective.metrics if self._config.is_multi_label else self._config.metrics), "loss")

    def score(self, results: Sequence[tuple[Example, Sequence[Output]]]) -> Mapping[str, float]:
        """Returns the metrics and the mean loss. `class_weights` do not apply."""
        logits = np.stack([outputs[0]["logits"] for _, outputs in results]).astype(np.float64)
        targets = np.array([self._target(example) for example, _ in results])
        return self._objective.score(logits, targets, self._config)

    def _target(self, example: Example) -> Any:
        return self._objective.target(self._codec.gold(example.source.item), self.labels)

    def record(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        """Returns the prediction, and the probabilities of all classes."""
        (output,) = outputs
        return self._objective.record(output["logits"].astype(np.float64), self.labels, self._config)

    def record_fields(self) -> Sequence[str]:
        return self._objective.record_fields(self.labels)

    def sample(self, example: Example, outputs: Sequence[Output]) -> Mapping[str, Any]:
        row = example.source.item
        target = self._target(example)
        logits = outputs[0]["logits"].astype(np.float64)
        loss = self._objective.mean_loss(logits[None], np.array([target]), self._config)
        reference = self._objective.reference(target, self.labels)
        texts = {"kind": "label", "text": row.first, "second": row.second or ""}
        return {**texts, **self.record(example, outputs), "reference": reference, "loss": loss}

    def export(self, params: Params, folder: Path) -> None:
        more = {"problem_type": huggingface.PROBLEM_TYPES["multi_label"]} if self._config.is_multi_label else {}
        self.save(params, folder, self.architecture, self.labels or None, more=more)
