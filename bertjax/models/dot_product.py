"""Scaled dot-product attention (Vaswani et al. 2017, equation 1), compiled by XLA.

`backends` has the other implementations and chooses among them.

Shapes: B batch, S queries, T keys, N heads, Q size of a head's queries and keys, D size of its values.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.models import disentangled
from bertjax.models.layers import drop

# Finite, so that a row with no key to attend to gets uniform weights and finite gradients instead of NaN.
MASKED_SCORE = -1e30
# The name of the results that rematerialization stores, because they take longest to recompute.
RESIDUALS = "attention"
# The number of scores that `chunked` computes at a time: 4 MB, which fit into a CPU's caches.
_SCORES_AT_A_TIME = 2**20
_MIN_CHUNKS = 4  # chunks pay off above this multiple of _SCORES_AT_A_TIME; below, recomputation costs what they save

Context = Float[Array, "B S N D"]
Weights = Float[Array, "B N S T"]


class Tokens(NamedTuple):
    """The segment and position of each token."""

    segments: Array  # [B, S] int: the number of the token's instance in its row, from 1; 0 at padding
    positions: Array  # [B, S] int: the token's position in its instance, from 0

    @classmethod
    def of(cls, segments: Int[Array, "B S"], positions: Int[Array, "B S"] | None = None) -> "Tokens":
        """Returns tokens; `positions` default to 0 to S - 1."""
        every = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
        return cls(segments, every if positions is None else positions)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """Which query may attend to which key, with the segments and positions of both.

    Backends of XLA read only `allowed`. Kernels that never store the scores read the other attributes instead. If the
    attributes do not describe `allowed`, `direction` is "". Rotary positions are those of the tokens.

    Attributes:
      allowed: [B, 1, #S, T] bool. A query without any True gives finite, meaningless output.
      queries: the tokens of the queries [B, S], or None.
      keys: the tokens of the keys [B, T], or None.
      direction: "both", "left_to_right" or "right_to_left": which keys of its own segment a token may attend to.
      is_packed: whether a row may have several segments. If not, padding comes last.
      window: the largest distance of a key from its query; 0 for any distance.
      is_in_order: whether the queries are all tokens of a row, in their order.
    """

    allowed: Any  # an array, or what JAX puts in its place
    queries: Tokens | None = None
    keys: Tokens | None = None
    direction: str = dataclasses.field(default="", metadata={"static": True})
    is_packed: bool = dataclasses.field(default=False, metadata={"static": True})
    window: int = dataclasses.field(default=0, metadata={"static": True})
    is_in_order: bool = dataclasses.field(default=True, metadata={"static": True})

    @property
    def is_described(self) -> bool:
        """Whether a kernel can compute `allowed` from the segments and, in the order of the row, the positions."""
        return (self.direction == "both" and not self.window) or (bool(self.direction) and self.is_in_order)

    def within(self, window: int) -> "Mask":
        """Returns the mask without keys that are farther than `window` from their query."""
        if not window:
            return self
        assert self.queries is not None and self.keys is not None
        near = jnp.abs(_steps(self.queries, self.keys)) <= window
        return dataclasses.replace(self, allowed=self.allowed & near, window=window)

    def of_queries(self, places: Int[Array, "B P"]) -> "Mask":
        """Returns the mask of the queries at these indices of the row."""
        return dataclasses.replace(
            self,
            allowed=jnp.take_along_axis(self.allowed, places[:, None, :, None], axis=2),
            queries=jax.tree.map(lambda ids: jnp.take_along_axis(ids, places, axis=1), self.queries),
            is_in_order=False,
        )


def allowed(queries: Tokens, keys: Tokens, direction: str) -> Bool[Array, "B 1 S T"]:
    """Returns which query may attend to which key, if only its segment and `direction` matter; see `make_mask`."""
    own, others = queries.segments[:, None, :, None], keys.segments[:, None, None, :]
    # Padding attends to all tokens, as in google-research/bert: its output is finite and never used.
    same_segment = ((own == others) | (own == 0)) & (others != 0)
    if direction == "both":
        return same_segment
    ahead = _steps(queries, keys)
    return same_segment & (ahead <= 0 if direction == "left_to_right" else ahead >= 0)


def _steps(queries: Tokens, keys: Tokens) -> Int[Array, "B 1 S T"]:
    """The number of positions from each query to each key of its segment."""
    return keys.positions[:, None, None, :] - queries.positions[:, None, :, None]


def padded(x: Array, multiple: int) -> Array:
    """Returns an array with zeros at the end of axis 1, up to a multiple of this length."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % multiple), *((0, 0),) * (x.ndim - 2)))


class Dropout(NamedTuple):
    """Dropout on the attention weights."""

    keys: Key[Array, "B N"]  # one for each row and head, so that draws do not depend on batching
    rate: float


class AttentionInputs(NamedTuple):
    """The arguments of every backend, which decide who can compute the attention."""

    query: Float[Array, "B S N Q"]
    key: Float[Array, "B T N Q"]
    value: Float[Array, "B T N D"]
    mask: Mask  # which query may attend to which key
    dropout: Dropout | None = None  # on the weights
    bias: Float[Array, "#B N S T"] | None = None  # added to the scaled scores; one row if it is the same for all rows
    return_weights: bool = False  # whether the weights are needed; backends that never hold all weights return None
    relative: disentangled.Positions | None = None  # [N, R, Q], whose scores are added like those of a bias

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.query.shape[1], self.key.shape[1]


def xla(inputs: AttentionInputs) -> tuple[Context, Weights]:
    """Attention written as in the equation, compiled by XLA for any device.

    Scores, bias, mask and softmax are float32.

    Returns:
      The weighted mean of the values for each query, and the weights before dropout.
    """
    query, key, value = (x.swapaxes(1, 2) for x in inputs[:3])
    keys, rate = inputs.dropout or (None, 0.0)
    context, weights = _of_heads(query, key, value, inputs.mask.allowed, inputs.bias, inputs.relative, keys, rate)
    return context.swapaxes(1, 2), weights


def chunked(inputs: AttentionInputs) -> tuple[Context, None]:
    """`xla` on chunks of rows or heads, for one CPU. The backward pass recomputes the weights.

    On a CPU, recomputing the weights is faster than writing them to memory and reading them back.
    """
    query, key, value = (x.swapaxes(1, 2) for x in inputs[:3])
    allowed, bias, (keys, rate) = inputs.mask.allowed, inputs.bias, inputs.dropout or (None, 0.0)
    batch, num_heads = query.shape[:2]
    size = _pairs_at_a_time(batch, num_heads, query.shape[2] * key.shape[2])
    if size == batch * num_heads:
        return xla(inputs)[0], None
    rows, heads = -(-size // num_heads), min(size, num_heads)  # of a chunk
    masks = allowed.reshape(-1, rows, *allowed.shape[2:])
    # A bias of each row is split like the queries. A bias of all rows is not repeated, which would take more memory.
    shared, bias = (None, bias) if bias is None or len(bias) == batch else (bias, None)

    @jax.checkpoint
    def of_chunk(
        number: Array, query: Array, key: Array, value: Array, bias: Array | None, keys: Array | None
    ) -> Array:
        def of_all_rows(x: Array) -> Array:
            x = x.reshape(-1, heads, *x.shape[-2:])
            return jnp.tile(x[number % len(x)], (rows, 1, 1))

        own = jnp.repeat(masks[number * size // (rows * num_heads)], heads, axis=0)
        bias = bias if shared is None else of_all_rows(shared)
        relative = jax.tree.map(of_all_rows, inputs.relative)
        return _of_heads(query, key, value, own, bias, relative, keys, rate)[0]

    chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[2:]), (query, key, value, bias, keys))
    numbers = jnp.arange(batch * num_heads // size)
    contexts = jax.lax.map(lambda chunk: of_chunk(*chunk), (numbers, *chunks))
    return contexts.reshape(*query.shape[:3], -1).swapaxes(1, 2), None


def _of_heads(
    query: Float[Array, "*pairs S Q"],
    key: Float[Array, "*pairs T Q"],
    value: Float[Array, "*pairs T D"],
    mask: Bool[Array, "*#pairs #S T"],
    bias: Float[Array, "*#pairs S T"] | None,
    relative: disentangled.Positions | None,
    keys: Key[Array, "*pairs"] | None,
    rate: float,
) -> tuple[Float[Array, "*pairs S D"], Float[Array, "*pairs S T"]]:
    """Attention for each (row, head) pair, and the weights before dropout."""
    if relative is not None:
        bias = disentangled.scores(query, key, relative)
    query = query * query.shape[-1] ** -0.5  # fewer elements than the scores
    scores = jnp.einsum("...SQ,...TQ->...ST", query, key, preferred_element_type=jnp.float32)
    scores = scores if bias is None else scores + bias
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED_SCORE))
    kept = weights.astype(value.dtype)
    if keys is not None:
        kept = jnp.vectorize(functools.partial(drop, rate=rate), signature="(s,t),()->(s,t)")(kept, keys)
    return kept @ value, weights


def _pairs_at_a_time(batch: int, num_heads: int, scores: int) -> int:
    """The number of (row, head) pairs in a chunk, given `scores` per pair: heads of one row, or whole rows.

    >>> _pairs_at_a_time(8, 12, 512 * 512), _pairs_at_a_time(64, 12, 128 * 128), _pairs_at_a_time(8, 12, 128 * 128)
    (4, 48, 96)
    """
    if batch * num_heads * scores <= _MIN_CHUNKS * _SCORES_AT_A_TIME:
        return batch * num_heads
    most = max(1, _SCORES_AT_A_TIME // scores)
    if most < num_heads:
        return _largest_divisor(num_heads, most)
    return num_heads * _largest_divisor(batch, most // num_heads)


def _largest_divisor(number: int, most: int) -> int:
    return next(each for each in range(min(number, most), 0, -1) if number % each == 0)
