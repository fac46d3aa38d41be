"""The objectives of classification: what the label of a row is, its loss, and how predictions are scored and written.

A new loss is a subclass of `Objective` with `losses`, and an entry of `OBJECTIVES`. A target is a label in arrays.
Methods that depend on more keys get the `Config` of the task.

Shapes: C outputs, n rows. The fields of a batch are [B] or, in packed rows, [B, E].
"""

import abc
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.data.codecs.label_sets import LabelSetCodec, LabelSetsConfig, indicators
from bertjax.data.codecs.labeled_text import LabeledTextCodec, with_default_name
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.models.losses import binary_cross_entropy, cross_entropy, is_best, squared_error
from bertjax.scoring import glue
from bertjax.scoring.probabilities import sigmoid, softmax

_CORRELATIONS = ("pearson", "spearman")
_OF_NUMBERS = (*_CORRELATIONS, "f1_from_3")
Logits = Float[np.ndarray, "n C"]


class Objective(abc.ABC):
    """One class for each row. A target is the index of the class.

    Attributes:
      problem: the key of `huggingface.PROBLEM_TYPES`.
      min_classes: the fewest classes; 0 if labels are numbers.
      metrics: the validation metrics that a config may name.
      default_metrics: those of a config that names none; the last one selects the best checkpoint.
      dtype: the type of targets.
    """

    problem: str = "classification"
    min_classes: int = 2
    metrics: tuple[str, ...] = tuple(name for name in glue.METRICS if name not in _OF_NUMBERS)
    default_metrics: tuple[str, ...] = ("accuracy",)
    dtype: Any = np.int32

    def codec(self, rows: LabelSetsConfig, tokenizer: EncoderTokenizer, seq_len: int) -> LabeledTextCodec:
        """Returns the kind of the rows."""
        return LabeledTextCodec(rows, tokenizer, seq_len, is_numeric=False)

    def num_outputs(self, labels: Sequence[str]) -> int:
        """Returns C, the outputs of the classifier: one for each class, or one for a number."""
        return len(labels) or 1

    def target_shape(self, num_classes: int) -> tuple[int, ...]:
        """Returns the shape of a target."""
        return ()

    def target(self, label: Any, labels: Sequence[str]) -> Any:
        """Returns the target of a label as the codec reads it, with the names of all classes."""
        return np.int32(labels.index(with_default_name(label, labels)))

    def reference(self, target: Any, labels: Sequence[str]) -> Any:
        """Returns a target as records show it."""
        return labels[int(target)]

    def targets(self, numbers: Any, indices: np.ndarray, num_classes: int) -> np.ndarray:
        """Returns the targets of training rows from the field "labels" and the class of each number in it."""
        return indices[numbers]

    @abc.abstractmethod
    def losses(self, logits: Array, targets: Array, config: Any) -> Array:
        """Returns the loss of each row from its logits [..., C]."""

    def weights(self, weights: Array, targets: Array, config: Any) -> Array:
        """Returns the weight of each row in the loss: its weight in the batch times that of its class."""
        weighted: Array = config.weighted(weights, targets)
        return weighted

    def is_right(self, logits: Array, targets: Array, config: Any) -> Array | None:
        """Returns whether each row is predicted right; None for numbers."""
        return is_best(logits, targets)

    def score(self, logits: Logits, targets: np.ndarray, config: Any) -> dict[str, float]:
        """Returns the metrics of a split and the mean loss from float64 logits."""
        loss = self.mean_loss(logits, targets, config)
        return {**glue.score(config.metrics, logits.argmax(axis=1), targets), "loss": loss}

    def mean_loss(self, logits: Logits, targets: np.ndarray, config: Any) -> float:
        """Returns the mean loss of a split, without class weights. Default: from `losses`, in float32."""
        return float(self.losses(jnp.asarray(logits, jnp.float32), jnp.asarray(targets), config).mean())

    def baseline(self, targets: np.ndarray) -> dict[str, float]:
        """Returns the accuracy of always predicting the most frequent class, or set of classes."""
        _, counts = np.unique(targets, axis=0, return_counts=True)
        return {"majority_accuracy": float(counts.max() / len(targets))}

    def record(self, logits: Float[np.ndarray, " C"], labels: Sequence[str], config: Any) -> dict[str, Any]:
        """Returns the record of a prediction."""
        probabilities = softmax(logits)
        return {"label": labels[int(probabilities.argmax())], "probabilities": _by_label(labels, probabilities)}

    def record_fields(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Returns the names in records."""
        return ("label", *(f"probabilities.{label}" for label in labels))


class Classification(Objective):
    """One class for each row, with the cross-entropy."""

    def losses(self, logits: Array, targets: Array, config: Any) -> Array:
        return cross_entropy(logits, targets)

    def mean_loss(self, logits: Logits, targets: np.ndarray, config: Any) -> float:
        return float(-np.log(softmax(logits)[np.arange(len(targets)), targets]).mean())


class MultiLabel(Objective):
    """Any number of classes for each row, with the mean binary cross-entropy. A target is a flag for each class."""

    problem = "multi_label"
    min_classes = 1
    metrics = glue.MULTI_LABEL
    default_metrics = ("micro_f1", "macro_f1")
    dtype = bool

    def codec(self, rows: LabelSetsConfig, tokenizer: EncoderTokenizer, seq_len: int) -> LabeledTextCodec:
        return LabelSetCodec(rows, tokenizer, seq_len, is_numeric=False)

    def target_shape(self, num_classes: int) -> tuple[int, ...]:
        return (num_classes,)

    def target(self, label: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        names = {with_default_name(name, labels) for name in label}
        return np.array([name in names for name in labels], bool)

    def reference(self, target: np.ndarray, labels: Sequence[str]) -> list[str]:
        return list(itertools.compress(labels, target))

    def targets(self, numbers: Any, indices: np.ndarray, num_classes: int) -> np.ndarray:
        return indicators(numbers, indices, num_classes)

    def losses(self, logits: Array, targets: Array, config: Any) -> Array:
        """Returns the losses; class weights are `pos_weight` of torch's BCEWithLogitsLoss."""
        class_weights = jnp.asarray(config.class_weights) if config.class_weights else None
        return binary_cross_entropy(logits, targets, class_weights)

    def weights(self, weights: Array, targets: Array, config: Any) -> Array:
        return jnp.asarray(weights)

    def is_right(self, logits: Array, targets: Array, config: Any) -> Array:
        return jnp.all((jax.nn.sigmoid(logits) >= config.threshold) == targets, axis=-1)

    def score(self, logits: Logits, targets: np.ndarray, config: Any) -> dict[str, float]:
        """Returns also the F1 of each class."""
        metrics = glue.score_label_sets(sigmoid(logits), targets, config.threshold, config.data.labels)
        return {**metrics, "loss": self.mean_loss(logits, targets, config)}

    def mean_loss(self, logits: Logits, targets: np.ndarray, config: Any) -> float:
        return float(np.mean(np.logaddexp(0, logits) - logits * targets))

    def record(self, logits: Float[np.ndarray, " C"], labels: Sequence[str], config: Any) -> dict[str, Any]:
        """Returns all classes whose probability is at least the threshold."""
        probabilities = sigmoid(logits)
        chosen = self.reference(probabilities >= config.threshold, labels)
        return {"labels": chosen, "probabilities": _by_label(labels, probabilities)}

    def record_fields(self, labels: Sequence[str]) -> tuple[str, ...]:
        return ("labels", *(f"probabilities.{label}" for label in labels))


class Regression(Objective):
    """One number for each row, with the squared error."""

    problem = "regression"
    min_classes = 0
    metrics = _OF_NUMBERS
    default_metrics = _CORRELATIONS
    dtype = np.float32

    def codec(self, rows: LabelSetsConfig, tokenizer: EncoderTokenizer, seq_len: int) -> LabeledTextCodec:
        return LabeledTextCodec(rows, tokenizer, seq_len, is_numeric=True)

    def target(self, label: float, labels: Sequence[str]) -> np.float32:
        return np.float32(label)

    def reference(self, target: np.float32, labels: Sequence[str]) -> float:
        return float(str(target))  # 4.8, not 4.800000190734863

    def targets(self, numbers: Any, indices: np.ndarray, num_classes: int) -> np.ndarray:
        return numbers

    def losses(self, logits: Array, targets: Array, config: Any) -> Array:
        return squared_error(logits[..., 0], targets)

    def is_right(self, logits: Array, targets: Array, config: Any) -> None:
        return None

    def score(self, logits: Logits, targets: np.ndarray, config: Any) -> dict[str, float]:
        loss = self.mean_loss(logits, targets, config)
        return {**glue.score(config.metrics, logits[:, 0], targets), "loss": loss}

    def mean_loss(self, logits: Logits, targets: np.ndarray, config: Any) -> float:
        return float(np.mean((logits[:, 0] - targets) ** 2))

    def baseline(self, targets: np.ndarray) -> dict[str, float]:
        """Returns the loss of always predicting the mean."""
        return {"mean_loss": float(targets.var())}

    def record(self, logits: Float[np.ndarray, " C"], labels: Sequence[str], config: Any) -> dict[str, Any]:
        return {"score": round(float(logits[0]), 6)}

    def record_fields(self, labels: Sequence[str]) -> tuple[str, ...]:
        return ("score",)


# By the value of config key `objective`. Several may have one `problem`.
OBJECTIVES: dict[str, Objective] = {
    "classification": Classification(),
    "multi_label": MultiLabel(),
    "regression": Regression(),
}


def _by_label(labels: Sequence[str], probabilities: Float[np.ndarray, " C"]) -> dict[str, float]:
    return {label: round(float(value), 6) for label, value in zip(labels, probabilities, strict=True)}
