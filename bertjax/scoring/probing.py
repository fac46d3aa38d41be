"""Linear probing: logistic regression on the vectors of a frozen encoder (Alain and Bengio 2017)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64

_TOLERANCE = 1e-6  # of each element of the gradient of the mean loss


class Probe(NamedTuple):
    """A linear classifier.

    Attributes:
      weights: [D, C]; for two classes, the first column is 0.
      biases: [C].
    """

    weights: Float64[np.ndarray, "D C"]
    biases: Float64[np.ndarray, " C"]

    def __call__(self, vectors: Float[np.ndarray, "N D"]) -> Int64[np.ndarray, " N"]:
        """Returns the most probable class of each vector."""
        return (np.asarray(vectors, np.float64) @ self.weights + self.biases).argmax(axis=1)


def fit(
    vectors: Float[np.ndarray, "N D"],
    labels: Int64[np.ndarray, " N"],
    num_classes: int,
    strength: float = 1.0,
    max_iterations: int = 1000,
) -> Probe:
    """Returns the logistic regression that minimizes the cross-entropy and an L2 penalty on the weights, by L-BFGS.

    The objective is that of scikit-learn's `LogisticRegression`: C times the sum of cross-entropies, plus half the sum
    of squared weights. Two classes have one column of weights.

    Args:
      vectors: the vectors.
      labels: the class of each vector, from 0 on.
      num_classes: the number of classes, at least 2.
      strength: scikit-learn's C. Larger values mean a weaker penalty.
      max_iterations: the maximum number of iterations.
    """
    # Imported here, because only evaluations of labeled tables need it, and the import takes time.
    from scipy import optimize

    x = np.asarray(vectors, np.float64)
    columns = num_classes if num_classes > 2 else 1
    size = x.shape[1]
    scale = strength * len(x)
    targets = np.eye(num_classes)[labels]

    def loss(flat: Float64[np.ndarray, " P"]) -> tuple[float, Float64[np.ndarray, " P"]]:
        weights = flat[: size * columns].reshape(size, columns)
        biases = flat[size * columns :]
        logits = np.zeros((len(x), num_classes))
        logits[:, -columns:] = x @ weights + biases
        logits -= logits.max(axis=1, keepdims=True)
        normalizers = np.log(np.exp(logits).sum(axis=1, keepdims=True))
        errors = (np.exp(logits - normalizers) - targets)[:, -columns:] / len(x)
        mean = np.mean(normalizers[:, 0] - logits[np.arange(len(x)), labels])
        gradient = np.concatenate([(x.T @ errors + weights / scale).ravel(), errors.sum(axis=0)])
        return float(mean + np.square(weights).sum() / (2 * scale)), gradient

    options = {"maxiter": max_iterations, "maxfun": 10 * max_iterations, "gtol": _TOLERANCE, "ftol": 0.0}
    optimum = optimize.minimize(loss, np.zeros(columns * (size + 1)), jac=True, method="L-BFGS-B", options=options).x
    weights = np.zeros((size, num_classes))
    biases = np.zeros(num_classes)
    weights[:, -columns:] = optimum[: size * columns].reshape(size, columns)
    biases[-columns:] = optimum[size * columns :]
    return Probe(weights, biases)
