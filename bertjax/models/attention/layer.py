"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2), by the backend of its config.

Shapes: B batch, S queries, T keys, H hidden size, N heads, G heads of keys and values, Q size of a head's queries and
keys, D size of its values.
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from bertjax.models.attention import inputs
from bertjax.models.attention.backends import dot_product_attention
from bertjax.models.attention.disentangled import Distances, Positions
from bertjax.models.attention.inputs import AttentionInputs
from bertjax.models.attention.mask import Mask
from bertjax.models.attention.rotary import rotate
from bertjax.models.layers import Dropout, Update, row_numbers
from bertjax.models.threefry import fold_in
from bertjax.models.transformer_config import LayerKind, TransformerConfig, dense, make_norm, residual_dense


class MultiHeadAttention(nn.Module):
    """Attends from `x` to `source`: `x` itself for self-attention, the encoder's output for cross-attention.

    Parameters: `query`, with `kernel` [H, N Q] and `bias` [N Q]; `key`, with `kernel` [H, G Q] and `bias` [G Q];
    `value`, with `kernel` [H, G D] and `bias` [G D]; `output`, with `kernel` [N D, H] and `bias` [H]; with `qk_norm`,
    `query_norm` and `key_norm` [Q].

    Dropout applies to the attention weights, as in BERT. Each row and head has its own key, so with "threefry2x32" the
    draws do not depend on batching.
    """

    config: TransformerConfig
    kind: LayerKind = LayerKind()

    def setup(self) -> None:
        """Makes the projections and norms."""
        config = self.config
        self.query = dense(config, config.num_heads * config.head_key_size)
        self.key = dense(config, config.key_value_heads * config.head_key_size)
        self.value = dense(config, config.key_value_heads * config.head_value_size)
        self.output = residual_dense(config)
        if config.qk_norm:
            self.query_norm = make_norm(config)
            self.key_norm = make_norm(config)
        self.drop = Dropout(config.dropout, by_row=False)

    def __call__(
        self,
        x: Float[Array, "B S H"],
        source: Float[Array, "B T H"],
        mask: Mask | Bool[Array, "B 1 #S T"],
        bias: Float[Array, "#B N S T"] | Float[Array, "R H"] | None = None,
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Update, Float[Array, "B N S T"] | None]:
        """Returns the attention output of `x` over `source`, and the attention weights; see `attend`."""
        key, value = self.project(source)
        return self.attend(x, key, value, mask, bias, deterministic=deterministic, return_attention=return_attention)

    def project(self, source: Float[Array, "B T H"]) -> tuple[Float[Array, "B T G Q"], Float[Array, "B T G D"]]:
        """Returns the keys and values of `source`, for `attend`."""
        config = self.config
        key = self.key.update(source)
        # The keys' bias adds the same number to all scores of a query, which the softmax cancels, unless keys are
        # changed further or have other scores.
        needs_bias = config.qk_norm or self.kind.rotary_base or self.kind.distances is not None
        keys = self._split(key.total() if needs_bias else key.products, config.key_value_heads)
        value = self._split(self.value(source), config.key_value_heads)
        return self.key_norm(keys) if config.qk_norm else keys, value

    def heads(
        self, x: Float[Array, "B S H"]
    ) -> tuple[Float[Array, "B S N Q"], Float[Array, "B S N Q"], Float[Array, "B S N D"]]:
        """Returns queries, keys and values of `x` for each head, before rotation; keys have their bias."""
        config = self.config
        query = self._split(self.query(x), config.num_heads)
        key = self._split(self.key(x), config.key_value_heads)
        value = self._split(self.value(x), config.key_value_heads)
        if config.qk_norm:
            query = self.query_norm(query)
            key = self.key_norm(key)
        return query, self._shared(key), self._shared(value)

    def attend(
        self,
        x: Float[Array, "B S H"],
        key: Float[Array, "B T G Q"],
        value: Float[Array, "B T G D"],
        mask: Mask | Bool[Array, "B 1 #S T"],
        bias: Float[Array, "#B N S T"] | Float[Array, "R H"] | None = None,
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Update, Float[Array, "B N S T"] | None]:
        """Returns the attention output of `x` [B, S, H], with the bias apart, and the attention weights.

        Args:
          x: the input of the queries.
          key: the keys, from `project`.
          value: the values, from `project`.
          mask: which query may attend to which key. Applied before the softmax, so masked keys get no weight.
          bias: added to the scaled scores, such as a function of the positions of `mask.queries` and `mask.keys`; with
            `kind.distances`, the table of relative positions instead, whose scores are added.
          deterministic: whether dropout is off.
          return_attention: whether to return the weights (float32, before dropout) instead of None.
        Raises:
          UserError: if the backend cannot compute this attention; see `dot_product_attention`.
        """
        config = self.config
        kind = self.kind
        query = self._split(self.query(x), config.num_heads)
        query = self.query_norm(query) if config.qk_norm else query
        query = query if config.query_scale == 1 else query * config.query_scale
        if kind.rotary_base:
            assert isinstance(mask, Mask)
            query = rotate(query, mask.queries.positions, kind.rotary_base)
            key = rotate(key, mask.keys.positions, kind.rotary_base)
        relative = None
        if kind.distances is not None and bias is not None:
            assert isinstance(mask, Mask) and mask.places is None
            table = self.drop(bias, deterministic=deterministic)
            bias = None
            relative = self._positions(table, kind.distances)
            query = query * kind.distances.scale
        key = self._shared(key)
        value = self._shared(value)
        dropout = None if deterministic or not config.attention_dropout else self._dropout(len(x))
        if kind.window:
            assert isinstance(mask, Mask)
            mask = mask.within(kind.window)
        context, weights = dot_product_attention(
            config.attention_backend,
            AttentionInputs(query, key, value, mask, dropout, bias, return_attention, relative),
        )
        return self.output.update(context.reshape(*x.shape[:-1], -1)), weights

    def _positions(self, table: Float[Array, "R H"], distances: Distances) -> Positions:
        """The table's keys and queries, by the maps of the tokens."""
        heads = self.config.num_heads
        terms = distances.terms
        key = None if terms == "position_to_content" else self._split(self.key(table), heads).swapaxes(0, 1)
        query = None if terms == "content_to_position" else self._split(self.query(table), heads).swapaxes(0, 1)
        return Positions(key, None if query is None else query * distances.scale, distances)

    def _dropout(self, batch: int) -> inputs.Dropout:
        heads = self.config.num_heads
        pairs = row_numbers(batch)[:, None] * heads + jnp.arange(heads)
        keys = fold_in(self.make_rng("dropout"), pairs.astype(jnp.uint32))
        return inputs.Dropout(keys, self.config.attention_dropout)

    def _split(self, y: Float[Array, "*rows width"], heads: int) -> Float[Array, "*rows {heads} size"]:
        return y.reshape(*y.shape[:-1], heads, -1)

    def _shared(self, x: Float[Array, "B T G size"]) -> Float[Array, "B T N size"]:
        """Keys or values with a copy for each query head, which every backend reads."""
        copies = self.config.num_heads // self.config.key_value_heads
        return x if copies == 1 else jnp.repeat(x, copies, axis=2)
