"""No n-gram twice: of tokens, as transformers and fairseq have it, or of words, as PreSumm has it.

What both need is kept up to date token by token. For a history x of `count` tokens, `runs[f]` is how many tokens
before place f equal, in their order, those at the history's end; so what comes at place f has come after them before.

    x = a b c a b, count 5:  runs = 0 0 2 0 0   (before c stands "a b", and so it does at the end)

Shapes: B batch, K beams, T target length, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def extend_runs(runs: Int[Array, "B K T"], history: Int[Array, "B K T"], count: Int[Array, ""]) -> Int[Array, "B K T"]:
    """Returns the runs of `history`, of `count` tokens, from those it had without the last of them."""
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
    """Returns logits of -inf for the tokens that would make an n-gram of the history come twice."""
    is_repeat = (runs >= n - 1) & (jnp.arange(history.shape[-1]) < count)
    banned = jnp.where(is_repeat, history, logits.shape[-1])
    ban = jax.vmap(jax.vmap(lambda row, ids: row.at[ids].set(-jnp.inf, mode="drop")))
    return ban(logits, banned)


def repeats_words(
    runs: Int[Array, "B K T"],
    history: Int[Array, "B K T"],
    count: Int[Array, ""],
    n: int,
    continues: Bool[Array, " V"],
) -> Bool[Array, "B K"]:
    """Returns whether the last n words have come before, in a row.

    A word is a token and those after it that continue it, so a word not yet complete counts as it stands.

    Args:
      continues: for each id, whether it continues the word before it ("##ing").
    """
    places = jnp.arange(history.shape[-1])
    is_start = (~continues[history] | (places == 0)) & (places < count)
    # How many words begin here or later; the n-th last one begins at the last place where that is n.
    words = jnp.cumsum(is_start[..., ::-1], axis=-1)[..., ::-1]
    start = jnp.sum(words >= n, axis=-1, keepdims=True) - 1
    # The earlier words end where another begins.
    return jnp.any((runs >= count - start) & is_start & (start >= 0), axis=-1)
