"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2) and its masks.

Shapes: B batch, S queries, T keys, H hidden size, N heads, D = H / N head size,
Q size of a head's queries and keys.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertjax.models import dot_product
from bertjax.models.backends import dot_product_attention
from bertjax.models.dot_product import Mask, Tokens
from bertjax.models.layers import Dense


class MultiHeadAttention(nn.Module):
    """Attends from `x` to `source`: `x` itself for self-attention, the encoder's output for cross-attention.

    Parameters: `value` and `output`, each with `kernel` [H, H] and `bias` [H]; `query` and `key`, with `kernel`
    [H, N Q] and `bias` [N Q].
    Dropout applies to the attention weights, as in BERT. Each row and head has its own key, so with "threefry2x32" the
    draws do not depend on batching. `backend` is "auto" or one of `backends.BACKENDS`.
    """

    hidden_size: int
    num_heads: int
    key_size: int  # Q, which is D in most models
    dropout: float
    backend: str
    kernel_init: nn.initializers.Initializer
    dtype: str

    def setup(self) -> None:
        """Makes the projections."""
        sizes = (self.num_heads * self.key_size,) * 2 + (self.hidden_size,) * 2
        self.query, self.key, self.value, self.output = (Dense(size, self.kernel_init, self.dtype) for size in sizes)

    def __call__(
        self,
        x: Float[Array, "B S H"],
        source: Float[Array, "B T H"],
        mask: Mask,
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Float[Array, "B S H"], Float[Array, "B N S T"] | None]:
        """Returns the attention output of `x` over `source`, and the attention weights; see `attend`."""
        key, value = self.project(source)
        return self.attend(x, key, value, mask, deterministic=deterministic, return_attention=return_attention)

    def project(self, source: Float[Array, "B T H"]) -> tuple[Float[Array, "B T N Q"], Float[Array, "B T N D"]]:
        """Returns the keys and values of `source`, for `attend`."""
        return self._split(self.key(source)), self._split(self.value(source))

    def attend(
        self,
        x: Float[Array, "B S H"],
        key: Float[Array, "B T N Q"],
        value: Float[Array, "B T N D"],
        mask: Mask,
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Float[Array, "B S H"], Float[Array, "B N S T"] | None]:
        """Returns the attention output of `x`, and the attention weights.

        Args:
          x: the input of the queries.
          key: the keys, from `project`.
          value: the values, from `project`.
          mask: which query may attend to which key. Applied before the softmax, so masked keys get no weight.
          deterministic: whether dropout is off.
          return_attention: whether to return the weights (float32, before dropout) instead of None.
        Raises:
          UserError: if the backend cannot compute this attention; see `dot_product_attention`.
        """
        query = self._split(self.query(x))
        dropout = None if deterministic or not self.dropout else self._dropout(len(x))
        context, weights = dot_product_attention(self.backend, query, key, value, mask, dropout, return_attention)
        return self.output(context.reshape(x.shape)), weights

    def _dropout(self, batch: int) -> dot_product.Dropout:
        pairs = jnp.arange(batch * self.num_heads).reshape(batch, self.num_heads)
        keys = jnp.vectorize(functools.partial(jax.random.fold_in, self.make_rng("dropout")))(pairs)
        return dot_product.Dropout(keys, self.dropout)

    def _split(self, y: Float[Array, "B S width"]) -> Float[Array, "B S N size"]:
        return y.reshape(*y.shape[:-1], self.num_heads, -1)


def make_mask(segment_ids: Int[Array, "B S"], direction: str, position_ids: Int[Array, "B S"] | None = None) -> Mask:
    """Returns which query (axis 2) may attend to which key (axis 3) of the same row.

    Args:
      segment_ids: 0 at padding; instances packed into a row are numbered 1, 2, ... Tokens attend only to tokens of
        the same number. For one instance per row, this is the usual attention mask of 1 and 0.
      direction: `both`; `left_to_right`, where position i sees positions j <= i; or `right_to_left`, j >= i.
      position_ids: the position of each token in its instance; None for 0 to S - 1.
    """
    length = segment_ids.shape[-1]
    query, key = jnp.arange(length)[:, None], jnp.arange(length)[None, :]
    allowed = {
        "both": jnp.ones((length, length), bool),
        "left_to_right": key <= query,
        "right_to_left": key >= query,
    }[direction]
    tokens = Tokens.of(segment_ids, position_ids)
    allowed &= _same_segment(segment_ids, segment_ids)
    return Mask(allowed, tokens, tokens, direction, is_packed=position_ids is not None)


def make_cross_mask(query_segments: Int[Array, "B S"], key_segments: Int[Array, "B T"], *, is_packed: bool) -> Mask:
    """Returns which query (axis 2) may attend to which key (axis 3) of another sequence: same segment number."""
    allowed = _same_segment(query_segments, key_segments)
    return Mask(allowed, Tokens.of(query_segments), Tokens.of(key_segments), "both", is_packed)


def make_memory_mask(segments: Int[Array, "B T"]) -> Mask:
    """Returns the mask of beams over the memory of one instance: all keys except padding."""
    one = jnp.ones_like(segments[:, :1])
    return Mask((segments != 0)[:, None, None, :], Tokens.of(one), Tokens.of(segments))


def _same_segment(query_segments: Int[Array, "B S"], key_segments: Int[Array, "B T"]) -> Bool[Array, "B 1 S T"]:
    of_query, of_key = query_segments[:, None, :, None], key_segments[:, None, None, :]
    # Padding attends to all tokens, as in google-research/bert: its output is finite and never used.
    return ((of_query == of_key) | (of_query == 0)) & (of_key != 0)
