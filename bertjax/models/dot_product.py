"""Scaled dot-product attention (Vaswani et al. 2017, equation 1), one function for each backend.

Shapes: B batch, S queries, T keys, N heads, D head size, Q size of a head's queries and keys.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.errors import UserError
from bertjax.models.layers import drop

# Finite, so that a row with no key to attend to gets uniform weights and finite gradients instead of NaN.
MASKED_SCORE = -1e30
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


class Mask(NamedTuple):
    """Which query may attend to which key, with the segments and positions of both.

    The backends of this module read only `allowed`. `queries` and `keys` are for backends that mask by segments and for
    scores that depend on distances. They are None if the mask was not made from tokens.
    """

    allowed: Array  # [B, 1, #S, T] bool. A query without any True gives finite, meaningless output
    queries: Tokens | None = None  # [B, S]
    keys: Tokens | None = None  # [B, T]

    def of_queries(self, places: Int[Array, "B P"]) -> "Mask":
        """Returns the mask of the queries at these indices of the row."""
        allowed = jnp.take_along_axis(self.allowed, places[:, None, :, None], axis=2)
        return Mask(
            allowed, jax.tree.map(lambda ids: jnp.take_along_axis(ids, places, axis=1), self.queries), self.keys
        )


class Dropout(NamedTuple):
    """Dropout on the attention weights."""

    keys: Key[Array, "B N"]  # one for each row and head, so that draws do not depend on batching
    rate: float


def xla(
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B T N Q"],
    value: Float[Array, "B T N D"],
    mask: Mask,
    dropout: Dropout | None,
) -> tuple[Context, Weights | None]:
    """Attention written as in the equation, compiled by XLA for any device.

    All backends have this signature. Scores, mask and softmax are float32.

    Args:
      query: queries.
      key: keys.
      value: values.
      mask: which query may attend to which key.
      dropout: dropout on the weights, or None.
    Returns:
      The weighted mean of the values for each query, and the weights before dropout. Backends that never hold all
      weights at once return None instead.
    """
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    keys, rate = dropout or (None, 0.0)
    context, weights = _of_heads(query, key, value, mask.allowed, keys, rate)
    return context.swapaxes(1, 2), weights


def chunked(
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B T N Q"],
    value: Float[Array, "B T N D"],
    mask: Mask,
    dropout: Dropout | None,
) -> tuple[Context, None]:
    """`xla` on chunks of rows or heads, for one CPU. The backward pass recomputes the weights.

    On a CPU, recomputing the weights is faster than writing them to memory and reading them back.
    """
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    keys, rate = dropout or (None, 0.0)
    batch, num_heads = query.shape[:2]
    size = _pairs_at_a_time(batch, num_heads, query.shape[2] * key.shape[2])
    if size == batch * num_heads:
        return _of_heads(query, key, value, mask.allowed, keys, rate)[0].swapaxes(1, 2), None
    rows, heads = -(-size // num_heads), min(size, num_heads)  # of a chunk
    masks = mask.allowed.reshape(-1, rows, *mask.allowed.shape[2:])

    @jax.checkpoint
    def of_chunk(number: Array, query: Array, key: Array, value: Array, keys: Array | None) -> Array:
        own = jnp.repeat(masks[number * size // (rows * num_heads)], heads, axis=0)
        return _of_heads(query, key, value, own, keys, rate)[0]

    chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[2:]), (query, key, value, keys))
    numbers = jnp.arange(batch * num_heads // size)
    contexts = jax.lax.map(lambda chunk: of_chunk(*chunk), (numbers, *chunks))
    return contexts.reshape(*query.shape[:3], -1).swapaxes(1, 2), None


def cudnn(
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B T N Q"],
    value: Float[Array, "B T N D"],
    mask: Mask,
    dropout: Dropout | None,
) -> tuple[Context, None]:
    """cuDNN's flash attention, which never stores the weights."""
    assert dropout is None
    allowed = jnp.broadcast_to(mask.allowed, (*mask.allowed.shape[:2], query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(query, key, value, mask=allowed, implementation="cudnn"), None


class Backend(NamedTuple):
    """A function like `xla`, and what it supports."""

    attend: Callable[..., tuple[Context, Weights | None]]
    dropout: bool = True
    weights: bool = True
    platform: str = ""  # "" for any

    def check(self, name: str, dropout: bool, return_weights: bool) -> None:
        """Raises UserError if the backend lacks what is requested, or does not run on the device."""
        platform = _platform()
        missing = {
            "dropout on the attention weights": dropout and not self.dropout,
            "attention weights to be returned": return_weights and not self.weights,
            f"a device of kind {platform}": self.platform not in ("", platform),
        }
        for got in (got for got, is_missing in missing.items() if is_missing):
            raise UserError(
                f"config key model.attention_backend={name}",
                got=got,
                expected="an NVIDIA GPU, model.attention_dropout=0, and return_attention=False",
                fix="set --config.model.attention_backend=xla; this key may also change after training",
            )


_CHUNKED = Backend(chunked, weights=False, platform="cpu")
BACKENDS = {"xla": Backend(xla), "cudnn": Backend(cudnn, dropout=False, weights=False, platform="cuda")}


def dot_product_attention(
    backend: str,
    query: Float[Array, "B S N Q"],
    key: Float[Array, "B T N Q"],
    value: Float[Array, "B T N D"],
    mask: Mask,
    dropout: Dropout | None,
    return_weights: bool,
) -> tuple[Context, Weights | None]:
    """Calls a backend. On one CPU, `chunked` replaces "xla" unless the weights are requested.

    Args:
      backend: a name in `BACKENDS`.
      query, key, value, mask, dropout: see `xla`.
      return_weights: whether to return the weights.
    Raises:
      UserError: see `Backend.check`.
    """
    chosen = BACKENDS[backend]
    chosen.check(backend, dropout is not None, return_weights)
    if chosen.attend is xla and not return_weights and _is_one_cpu():
        chosen = _CHUNKED
    context, weights = chosen.attend(query, key, value, mask, dropout)
    return context, weights if return_weights else None


def _of_heads(
    query: Float[Array, "*pairs S Q"],
    key: Float[Array, "*pairs T Q"],
    value: Float[Array, "*pairs T D"],
    mask: Bool[Array, "*#pairs #S T"],
    keys: Key[Array, "*pairs"] | None,
    rate: float,
) -> tuple[Float[Array, "*pairs S D"], Float[Array, "*pairs S T"]]:
    """Attention for each (row, head) pair, and the weights before dropout."""
    query = query * query.shape[-1] ** -0.5  # fewer elements than the scores
    scores = jnp.einsum("...SQ,...TQ->...ST", query, key, preferred_element_type=jnp.float32)
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


def _platform() -> str:
    """The platform that the program is compiled for: the mesh's, or the default if there is no mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    kind = str(mesh.abstract_device.device_kind)
    return "cpu" if kind == "cpu" else "tpu" if kind.startswith("TPU") else "cuda"


def _is_one_cpu() -> bool:
    """Whether the program is for one CPU. With several devices, chunks would have to move between them."""
    mesh = jax.sharding.get_abstract_mesh()
    return _platform() == "cpu" and (mesh.empty or mesh.size == 1)
