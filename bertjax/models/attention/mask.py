"""Masks of attention: which query may attend to which key.

A mask is a `Mask`, which describes it, or an array [B, 1, #S, T] bool, where True allows attention. Kernels that never
store the scores read the description. The forms that XLA compiles read `as_array`.

Shapes: B batch, S queries, T keys.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Tokens(NamedTuple):
    """The segment and position of each token."""

    segments: Array  # [B, S] int: the number of the token's instance in its row, from 1; 0 at padding
    positions: Array  # [B, S] int: the token's position in its instance, from 0
    last_keys: Array | None = None  # [B, S] int: the last position that the token attends to; None for all positions

    @classmethod
    def of(
        cls,
        segments: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None = None,
        causal_rows: Int[Array, " B"] | None = None,
    ) -> "Tokens":
        """Returns tokens; `positions` default to 0 to S - 1. Those in `causal_rows` attend up to themselves."""
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
        if causal_rows is None:
            return cls(segments, positions)
        return cls(segments, positions, jnp.where(causal_rows[:, None] != 0, positions, jnp.iinfo(jnp.int32).max))


class CausalRows(NamedTuple):
    """The causal rows of a batch: the first `per_group` of each of `groups` groups of consecutive rows."""

    groups: int
    per_group: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """Allows attention between tokens of the same segment, in one direction or both, and within a window.

    Padding attends to all tokens, as in google-research/bert: its output is finite and never used.

    Attributes:
      tokens: the tokens [B, S] among which the queries are.
      keys: the tokens of the keys [B, T].
      direction: "both", "left_to_right" or "right_to_left": which keys of its own segment a token may attend to.
      is_packed: whether a row may have several segments. If not, padding comes last.
      window: the largest distance of a key from its query; 0 for any distance.
      places: the indices [B, P] of the queries among the tokens; None if the queries are all tokens, in order.
      causal_rows: the rows whose `last_keys` are those of "left_to_right", if they come first; None if there are none,
        or they are in any order.
    """

    tokens: Tokens
    keys: Tokens
    direction: str = dataclasses.field(metadata={"static": True})
    is_packed: bool = dataclasses.field(metadata={"static": True})
    window: int = dataclasses.field(default=0, metadata={"static": True})
    places: Array | None = None
    causal_rows: CausalRows | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def queries(self) -> Tokens:
        """The tokens of the queries, [B, S] or [B, P]."""
        places = self.places
        if places is None:
            return self.tokens
        return jax.tree.map(lambda ids: jnp.take_along_axis(ids, places, axis=1), self.tokens)

    @property
    def needs_positions(self) -> bool:
        """Whether segments and the order of the tokens in the row do not suffice to compute the mask."""
        return self.places is not None and (self.direction != "both" or bool(self.window))

    def within(self, window: int) -> "Mask":
        """Returns the mask without keys that are farther than `window` from their query."""
        return dataclasses.replace(self, window=window)

    def of_queries(self, places: Int[Array, "B P"]) -> "Mask":
        """Returns the mask of the queries at these indices of the row."""
        return dataclasses.replace(self, places=places)


def make_mask(
    segment_ids: Int[Array, "B S"],
    direction: str,
    position_ids: Int[Array, "B S"] | None = None,
    causal_rows: Int[Array, " B"] | None = None,
    first_rows: CausalRows | None = None,
) -> Mask:
    """Returns the mask of self-attention.

    Args:
      segment_ids: 0 at padding; instances packed into a row are numbered 1, 2, ... Tokens attend only to tokens of
        the same number. For one instance per row, this is the usual attention mask of 1 and 0.
      direction: `both`; `left_to_right`, where position i sees positions j <= i; or `right_to_left`, j >= i.
      position_ids: the position of each token in its instance; None for 0 to S - 1.
      causal_rows: not 0 for rows in which position i sees positions j <= i, whatever the direction; None for no row.
      first_rows: these rows, if they come first.
    """
    tokens = Tokens.of(segment_ids, position_ids, causal_rows)
    return Mask(tokens, tokens, direction, is_packed=position_ids is not None, causal_rows=first_rows)


def make_cross_mask(query_segments: Int[Array, "B S"], key_segments: Int[Array, "B T"], *, is_packed: bool) -> Mask:
    """Returns the mask of attention to another sequence: a query may attend to keys of its segment number."""
    return Mask(Tokens.of(query_segments), Tokens.of(key_segments), "both", is_packed)


def as_array(mask: Mask | Bool[Array, "B 1 #S T"]) -> Bool[Array, "B 1 #S T"]:
    """Returns which query (axis 2) may attend to which key (axis 3) of its row.

    A query without any True gives finite, meaningless output.
    """
    if not isinstance(mask, Mask):
        return mask
    query_segments = mask.tokens.segments[:, None, :, None]
    key_segments = mask.keys.segments[:, None, None, :]
    allowed = ((query_segments == key_segments) | (query_segments == 0)) & (key_segments != 0)
    # The number of positions from each query to each key of its segment.
    steps = mask.keys.positions[:, None, None, :] - mask.tokens.positions[:, None, :, None]
    if mask.direction != "both":
        allowed &= steps <= 0 if mask.direction == "left_to_right" else steps >= 0
    if mask.tokens.last_keys is not None:
        allowed &= mask.keys.positions[:, None, None, :] <= mask.tokens.last_keys[:, None, :, None]
    if mask.window:
        allowed &= jnp.abs(steps) <= mask.window
    # The array of all tokens is that of the other layers, so the compiler makes it once.
    return allowed if mask.places is None else jnp.take_along_axis(allowed, mask.places[:, None, :, None], axis=2)
