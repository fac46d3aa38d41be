"""Words that hypotheses never contain, as `bad_words_ids` of transformers.

Shapes: B batch, K hypotheses of each row, T target length, V vocabulary.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.decoding.ngram_blocking import with_start
from bertjax.errors import UserError


def exclude(
    logits: Float[Array, "B K V"],
    ids: Int[Array, "B K T"],
    index: Int[Array, ""],
    start_ids: Int[Array, " B"],
    words: Sequence[Sequence[int]],
) -> Float[Array, "B K V"]:
    """Returns the logits with -inf for each token that would complete a word.

    Args:
      logits: the logits of the next tokens.
      ids: the tokens so far, `index` of each hypothesis.
      index: the position of the next token.
      start_ids: the decoder's first input, which a word may begin with.
      words: the ids of each word; at least one.
    Raises:
      UserError: for an id that is not below V.
    """
    largest = max(itertools.chain(*words), default=0)
    if largest >= logits.shape[-1]:
        got = f"the id {largest}"
        expected = f"ids below {logits.shape[-1]}, the size of the vocabulary"
        raise UserError("config key decoding.bad_words", got=got, expected=expected, fix="correct the ids")
    for length in sorted({len(word) for word in words}):
        group = np.array([word for word in words if len(word) == length], np.int32)
        before = jnp.full((*ids.shape[:2], length - 1), -1, jnp.int32)  # no word begins before the first input
        tokens = jnp.concatenate([before, with_start(start_ids, ids)], axis=-1)
        last = jax.lax.dynamic_slice_in_dim(tokens, index + 1, length - 1, axis=-1)
        is_next = jnp.all(last[:, :, None, :] == group[:, :-1], axis=-1)
        logits = logits.at[..., group[:, -1]].add(jnp.where(is_next, -jnp.inf, 0.0))
    return logits
