"""What decoding returns, and what it drives.

Shapes: B batch, K beams, T target length, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array

from bertjax.models.decoder import Beams

# tokens [B, K] int32, cache, beams -> logits [B, K, V] of the tokens to follow, cache
Step = Callable[[Array, Any, Beams], tuple[Array, Any]]


class Hypotheses(NamedTuple):
    """The n best of each row, or n samples of it."""

    ids: Array  # [B, n, T] int32: up to the end token, with it; then padding
    lengths: Array  # [B, n] int32: tokens, with the end token; 0 for a place that no hypothesis came to
    log_probabilities: Array  # [B, n] float32: of all tokens, the end token's with them
    scores: Array  # [B, n] float32: what they are ranked by; -inf for a place that no hypothesis came to
