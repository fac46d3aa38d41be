"""Blocking of repeated n-grams of tokens, as in transformers and fairseq, or of words, as in PreSumm.

Both use `runs`, which is updated token by token. For a history x of `count` tokens, `runs[f]` is the length of the
longest match between the tokens directly before position f and the tokens at the end of the history. Appending x[f]
again would therefore repeat an n-gram with n = runs[f] + 1.

    x = a b c a b, count 5:  runs = 0 0 2 0 0   ("a b" precedes c, and the history ends with "a b")

Shapes: B batch, K beams, T target length, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def with_start(start_ids: Int[Array, " B"], history: Int[Array, "B K T"]) -> Int[Array, "B K T+1"]:
    """Returns the history after the decoder's first input, which transformers counts as part of n-grams."""
    starts = jnp.broadcast_to(start_ids[:, None, None].astype(history.dtype), (*history.shape[:2], 1))
    return jnp.concatenate([starts, history], axis=-1)


def extend_runs(runs: Int[Array, "B K T"], history: Int[Array, "B K T"], count: Int[Array, ""]) -> Int[Array, "B K T"]:
    """Returns the runs of a `history` of `count` tokens, from its runs before the last token was appended."""
    places = jnp.arange(history.shape[-1])
    last = jax.lax.dynamic_slice_in_dim(history, count - 1, 1, axis=-1)
    is_same = (history == last) & (places < count - 1)
    return jnp.pad(jnp.where(is_same, runs + 1, 0), ((0, 0), (0, 0), (1, 0)))[..., :-1]


def block_tokens(
    logits: Float[Array, "B K V"],
    runs: Int[Array, "B K T"],
    history: Int[Array, "B K T"],
    count: Int[Array, ""],
    n: int,
) -> Float[Array, "B K V"]:
    """Returns the logits with -inf for tokens that would repeat an n-gram of the history."""
    is_repeat = (runs >= n - 1) & (jnp.arange(history.shape[-1]) < count)
    banned = jnp.where(is_repeat, history, logits.shape[-1])
    ban = jax.vmap(jax.vmap(lambda row, ids: row.at[ids].set(-jnp.inf, mode="drop")))
    return ban(logits, banned)


def repeats_words(
    runs: Int[Array, "B K T"], history: Int[Array, "B K T"], count: Int[Array, ""], n: int, continues: Bool[Array, " V"]
) -> Bool[Array, "B K"]:
    """Returns whether the last n words occurred before as an n-gram.

    A word is a token and the tokens after it that continue it. The last word may be incomplete; then its tokens
    so far are compared.

    Args:
      runs: the runs of the history.
      history: the tokens.
      count: the number of tokens in the history.
      n: the size of the n-grams.
      continues: for each id, whether it continues the previous word ("##ing").
    """
    places = jnp.arange(history.shape[-1])
    is_start = (~continues[history] | (places == 0)) & (places < count)
    # The number of words that begin at or after each position. The n-th last word begins at the last position where
    # this number is n.
    words = jnp.cumsum(is_start[..., ::-1], axis=-1)[..., ::-1]
    start = jnp.sum(words >= n, axis=-1, keepdims=True) - 1
    # The earlier occurrence must end at a word boundary, that is, where another word begins.
    return jnp.any((runs >= count - start) & is_start & (start >= 0), axis=-1)
