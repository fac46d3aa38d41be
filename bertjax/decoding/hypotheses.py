"""The result of decoding, and the type of the step functions that it calls.

Shapes: B batch, K beams, T target length, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array

from bertjax.models.decoder import Beams

# (tokens [B, K] int32, cache, beams) -> (logits [B, K, V] of the next tokens, cache)
Step = Callable[[Array, Any, Beams], tuple[Array, Any]]


class Hypotheses(NamedTuple):
    """The n best hypotheses of each row, or n samples."""

    ids: Array  # [B, n, T] int32: tokens including the end token; then padding
    lengths: Array  # [B, n] int32: number of tokens including the end token; 0 for an unused entry
    log_probabilities: Array  # [B, n] float32: sum over all tokens including the end token
    scores: Array  # [B, n] float32: what hypotheses are ranked by; -inf for an unused entry of a beam search
