"""The objectives of classification: what the label of a row is, its loss, and how predictions are scored and written.

A new loss is a subclass that overrides `losses`, and an entry of `OBJECTIVES`.

Shapes: C outputs, n rows. The fields of a batch are [B] or, in packed rows, [B, E].
"""

import abc
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32

from bertjax.data.codecs.label_sets import LabelSetCodec, LabelSetsConfig, indicators
from bertjax.data.codecs.labeled_text import LabeledTextCodec, with_default_name
from bertjax.data.rows.stored import Ragged
from bertjax.data.text.tokenizers import Tokenizer
from bertjax.models.losses import binary_cross_entropy, cross_entropy, is_best, squared_error
from bertjax.scoring import glue
from bertjax.scoring.probabilities import sigmoid, softmax

_CORRELATIONS = ("pearson", "spearman")
Logits = Float[np.ndarray, "n C"]


class Objective(abc.ABC):
    """What a classifier learns.

    A target is the label of a row in arrays. Class weights are empty or one for each class.

    Attributes:
      problem: the key of `huggingface.PROBLEM_TYPES`.
      min_classes: the fewest classes; 0 if labels are numbers.
      metrics: the validation metrics that a config may name.
      dtype: the type of targets.
    """

    problem: ClassVar[str]
    min_classes: ClassVar[int]
    metrics: ClassVar[tuple[str, ...]]
    dtype: ClassVar[Any]

    @abc.abstractmethod
    def codec(self, rows: LabelSetsConfig, tokenizer: Tokenizer, seq_len: int) -> LabeledTextCodec:
        """Returns the kind of the rows from their config."""

    def target_shape(self, num_classes: int) -> tuple[int, ...]:
        """Returns the shape of the target of a row."""
        return ()

    @abc.abstractmethod
    def target(self, label: Any, labels: Sequence[str]) -> np.ndarray | np.generic:
        """Returns the target of a label as the codec reads it, with the names of the `labels`."""

    @abc.abstractmethod
    def reference(self, target: Any, labels: Sequence[str]) -> Any:
        """Returns a target as a record shows it."""

    @abc.abstractmethod
    def targets(self, labels: Any, indices: Int32[np.ndarray, " m"], num_classes: int) -> np.ndarray:
        """Returns the targets of training rows.

        Args:
          labels: the field "labels" of the codec's training rows.
          indices: the class of each number in it.
          num_classes: C.
        """

    @abc.abstractmethod
    def losses(self, logits: Float[Array, "*n C"], targets: Array, class_weights: Sequence[float]) -> Array:
        """Returns the loss of each row."""

    def weights(self, weights: Array, targets: Array, class_weights: Sequence[float]) -> Array:
        """Returns the weight of each row in the loss, from its weight in the batch."""
        return jnp.asarray(weights)

    @abc.abstractmethod
    def is_right(self, logits: Float[Array, "*n C"], targets: Array, threshold: float) -> Array | None:
        """Returns whether each row is predicted right; None for numbers."""

    @abc.abstractmethod
    def score(self, logits: Logits, targets: np.ndarray, config: Any) -> dict[str, float]:
        """Returns the metrics of a split with the mean loss, from float64 logits and the `Config` of the task."""

    @abc.abstractmethod
    def baseline(self, targets: np.ndarray) -> dict[str, float]:
        """Returns the metrics of a constant prediction."""

    @abc.abstractmethod
    def record(self, logits: Float[np.ndarray, " C"], labels: Sequence[str], threshold: float) -> dict[str, Any]:
        """Returns the record of a prediction."""

    @abc.abstractmethod
    def record_fields(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Returns the names in records."""


class Classification(Objective):
    """One class for each row, with the cross-entropy."""

    problem = "classification"
    min_classes = 2
    metrics = tuple(name for name in glue.METRICS if name not in _CORRELATIONS)
    dtype = np.int32

    def codec(self, rows: LabelSetsConfig, tokenizer: Tokenizer, seq_len: int) -> LabeledTextCodec:
        return LabeledTextCodec(rows, False, tokenizer, seq_len)

    def target(self, label: str, labels: Sequence[str]) -> np.int32:
        return np.int32(labels.index(with_default_name(label, labels)))

    def reference(self, target: np.int32, labels: Sequence[str]) -> str:
        return labels[int(target)]

    def targets(
        self, labels: Int32[np.ndarray, " n"], indices: Int32[np.ndarray, " m"], num_classes: int
    ) -> Int32[np.ndarray, " n"]:
        return indices[labels]

    def losses(self, logits: Array, targets: Array, class_weights: Sequence[float]) -> Array:
        return cross_entropy(logits, targets)

    def weights(self, weights: Array, targets: Array, class_weights: Sequence[float]) -> Array:
        """Returns the weight in the batch times that of the class."""
        weights = jnp.asarray(weights)
        return weights * jnp.asarray(class_weights)[targets] if class_weights else weights

    def is_right(self, logits: Array, targets: Array, threshold: float) -> Array:
        return is_best(logits, targets)

    def score(self, logits: Logits, targets: Int[np.ndarray, " n"], config: Any) -> dict[str, float]:
        losses = -np.log(softmax(logits)[np.arange(len(targets)), targets])
        return {**glue.score(config.metrics, logits.argmax(axis=1), targets), "loss": float(losses.mean())}

    def baseline(self, targets: np.ndarray) -> dict[str, float]:
        """Returns the accuracy of always predicting the most frequent class, or set of classes."""
        _, counts = np.unique(targets, axis=0, return_counts=True)
        return {"majority_accuracy": float(counts.max() / len(targets))}

    def record(self, logits: Float[np.ndarray, " C"], labels: Sequence[str], threshold: float) -> dict[str, Any]:
        probabilities = softmax(logits)
        return {"label": labels[int(probabilities.argmax())], "probabilities": _by_label(labels, probabilities)}

    def record_fields(self, labels: Sequence[str]) -> tuple[str, ...]:
        return ("label", *(f"probabilities.{label}" for label in labels))


class MultiLabel(Classification):
    """Any number of classes for each row, with the mean binary cross-entropy. A target is a flag for each class."""

    problem = "multi_label"
    min_classes = 1
    metrics = glue.MULTI_LABEL
    dtype = bool

    def codec(self, rows: LabelSetsConfig, tokenizer: Tokenizer, seq_len: int) -> LabeledTextCodec:
        return LabelSetCodec(rows, False, tokenizer, seq_len)

    def target_shape(self, num_classes: int) -> tuple[int, ...]:
        return (num_classes,)

    def target(self, label: Sequence[str], labels: Sequence[str]) -> Bool[np.ndarray, " C"]:  # type: ignore[override]
        names = {with_default_name(name, labels) for name in label}
        return np.array([name in names for name in labels], bool)

    def reference(self, target: Bool[np.ndarray, " C"], labels: Sequence[str]) -> list[str]:  # type: ignore[override]
        return list(itertools.compress(labels, target))

    def targets(self, labels: Ragged, indices: Int32[np.ndarray, " m"], num_classes: int) -> Bool[np.ndarray, "n C"]:
        return indicators(labels, indices, num_classes)

    def losses(self, logits: Array, targets: Array, class_weights: Sequence[float]) -> Array:
        """Returns the losses; class weights are `pos_weight` of torch's BCEWithLogitsLoss."""
        return binary_cross_entropy(logits, targets, jnp.asarray(class_weights) if class_weights else None)

    def weights(self, weights: Array, targets: Array, class_weights: Sequence[float]) -> Array:
        return jnp.asarray(weights)

    def is_right(self, logits: Array, targets: Array, threshold: float) -> Array:
        return jnp.all((jax.nn.sigmoid(logits) >= threshold) == targets, axis=-1)

    def score(self, logits: Logits, targets: Bool[np.ndarray, "n C"], config: Any) -> dict[str, float]:
        """Returns also the F1 of each class."""
        metrics = glue.score_label_sets(sigmoid(logits), targets, config.threshold, config.data.labels)
        return {**metrics, "loss": float(np.mean(np.logaddexp(0, logits) - logits * targets))}

    def record(self, logits: Float[np.ndarray, " C"], labels: Sequence[str], threshold: float) -> dict[str, Any]:
        """Returns all classes whose probability is at least the threshold."""
        probabilities = sigmoid(logits)
        names = self.reference(probabilities >= threshold, labels)
        return {"labels": names, "probabilities": _by_label(labels, probabilities)}

    def record_fields(self, labels: Sequence[str]) -> tuple[str, ...]:
        return ("labels", *(f"probabilities.{label}" for label in labels))


class Regression(Objective):
    """One number for each row, with the squared error."""

    problem = "regression"
    min_classes = 0
    metrics = _CORRELATIONS
    dtype = np.float32

    def codec(self, rows: LabelSetsConfig, tokenizer: Tokenizer, seq_len: int) -> LabeledTextCodec:
        return LabeledTextCodec(rows, True, tokenizer, seq_len)

    def target(self, label: float, labels: Sequence[str]) -> np.float32:
        return np.float32(label)

    def reference(self, target: np.float32, labels: Sequence[str]) -> float:
        return float(target)

    def targets(
        self, labels: Float[np.ndarray, " n"], indices: Int32[np.ndarray, " m"], num_classes: int
    ) -> Float[np.ndarray, " n"]:
        return labels

    def losses(self, logits: Array, targets: Array, class_weights: Sequence[float]) -> Array:
        return squared_error(logits[..., 0], targets)

    def is_right(self, logits: Array, targets: Array, threshold: float) -> None:
        return None

    def score(self, logits: Logits, targets: Float[np.ndarray, " n"], config: Any) -> dict[str, float]:
        losses = (logits[:, 0] - targets) ** 2
        return {**glue.score(config.metrics, logits[:, 0], targets), "loss": float(losses.mean())}

    def baseline(self, targets: np.ndarray) -> dict[str, float]:
        """Returns the loss of always predicting the mean."""
        return {"mean_loss": float(targets.var())}

    def record(self, logits: Float[np.ndarray, " C"], labels: Sequence[str], threshold: float) -> dict[str, Any]:
        return {"score": round(float(logits[0]), 6)}

    def record_fields(self, labels: Sequence[str]) -> tuple[str, ...]:
        return ("score",)


OBJECTIVES: Mapping[str, Objective] = {
    "classification": Classification(),
    "multi_label": MultiLabel(),
    "regression": Regression(),
}


def _by_label(labels: Sequence[str], probabilities: Float[np.ndarray, " C"]) -> dict[str, float]:
    return {label: round(float(value), 6) for label, value in zip(labels, probabilities, strict=True)}
