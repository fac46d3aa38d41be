"""Probabilities from logits, in NumPy. SciPy has both functions, but its import would take 0.2 s of every start."""

import numpy as np
from jaxtyping import Float


def softmax(logits: Float[np.ndarray, "*n C"]) -> Float[np.ndarray, "*n C"]:
    """Returns the probabilities of exclusive classes."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def sigmoid(logits: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Returns the probabilities of independent classes."""
    return np.exp(-np.logaddexp(0, -logits))
