"""The result of decoding, the functions of a model that it calls, and the loop over steps.

Shapes: B batch, K beams, T target length, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bertjax.models.decoder import Beams

# (number of steps) -> the cache before the first step. With zeros appended, it is the cache for more steps.
Start = Callable[[int], Any]
# (tokens [B, K] int32, cache, beams) -> (logits [B, K, V] of the next tokens, cache)
Step = Callable[[Array, Any, Beams], tuple[Array, Any]]
_SHORT = 64  # the most steps that are not worth the time to compile a second loop


class Hypotheses(NamedTuple):
    """The n best hypotheses of each row, or n samples."""

    ids: Array  # [B, n, T] int32: tokens including the end token; then padding
    lengths: Array  # [B, n] int32: number of tokens including the end token; 0 for an unused entry
    log_probabilities: Array  # [B, n] float32: sum over all tokens including the end token
    scores: Array  # [B, n] float32: what hypotheses are ranked by; -inf for an unused entry of a beam search


def run(start: Start, length: int, state: Any, advance: Callable[[Any], Any]) -> Any:
    """Advances a search until all rows are done, by at most `length` steps. Returns the last state.

    A step attends to its whole cache, filled or not. So the first half of the steps has a cache of half the length.
    Limits are generous: most searches end there.

    Args:
      start: returns the initial cache.
      length: T.
      state: a NamedTuple with `place`, the position of the next token; `is_done`; and `cache`, which is replaced.
      advance: makes a step.
    """

    def is_left(part: int, state: Any) -> Array:
        return ~jnp.all(state.is_done) & (state.place < part)

    parts = (length,) if length <= _SHORT else (length // 2, length)
    state = state._replace(cache=start(parts[0]))
    for part in parts:
        state = state._replace(cache=grow(state.cache, start, part))
        state = jax.lax.while_loop(functools.partial(is_left, part), advance, state)
    return state


def grow(cache: Any, start: Start, length: int) -> Any:
    """Appends zeros to a cache of fewer steps, up to the shapes of that of `length` steps."""

    def pad(x: Array, like: jax.ShapeDtypeStruct) -> Array:
        return jnp.pad(x, [(0, new - old) for old, new in zip(x.shape, like.shape, strict=True)])

    return jax.tree.map(pad, cache, jax.eval_shape(functools.partial(start, length)))
