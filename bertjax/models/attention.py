"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2) and its masks.

Shapes: B batch, S queries, T keys, H hidden size, N heads, D = H / N head size,
Q size of a head's queries and keys.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.errors import UserError
from bertjax.models.dropout import drop

# Finite, so that a row with no key to attend to gets uniform weights and finite gradients instead of NaN.
MASKED_SCORE = -1e30
# How many scores a CPU computes at a time where they are many more: 4 MB, which stay in its caches.
_SCORES_AT_A_TIME = 2**20
_MANY_MORE = 4  # times; below that, computing them again costs what is gained


class Dense(nn.Module):
    """Affine map of the last axis: `kernel` [I, O] and `bias` [O], stored in float32, applied in `dtype`.

    Kernels start as `kernel_init` says, biases at zero.
    """

    features: int
    kernel_init: nn.initializers.Initializer
    dtype: str

    @nn.compact
    def __call__(self, x: Float[Array, "*rows I"]) -> Float[Array, "*rows O"]:
        """Maps the last axis from I to O = `features`."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        # Flat rows make the gradient one plain matrix product: up to 2x faster on CPU for H -> 4H.
        rows = x.reshape(-1, x.shape[-1]).astype(self.dtype)
        y = rows @ kernel.astype(self.dtype) + bias.astype(self.dtype)
        return y.reshape(*x.shape[:-1], self.features)


class MultiHeadAttention(nn.Module):
    """Attends from `x` to `source`: `x` itself for self-attention, the encoder's output for cross-attention.

    Parameters: `value` and `output`, each with `kernel` [H, H] and `bias` [H]; `query` and `key`, with `kernel`
    [H, N Q] and `bias` [N Q].
    Scores, mask and softmax are computed in float32; dropout falls on the weights, as in BERT, by a key of each row
    and head, so that with "threefry2x32" it does not depend on what is computed together.

    On a CPU alone, long rows are worked on some rows or heads at a time, and the backward pass computes their weights
    again, which takes less time there than to write them to memory and to read them.

    The backend "cudnn" is the flash attention of cuDNN, on NVIDIA GPUs, under the same mask. It never has the weights
    at hand: what needs them, dropout or `return_attention`, is an error.
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
        mask: Bool[Array, "B 1 #S T"],
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Float[Array, "B S H"], Float[Array, "B N S T"] | None]:
        """Returns what `x` attends to in `source`, and the attention weights; see `attend`."""
        key, value = self.project(source)
        return self.attend(x, key, value, mask, deterministic=deterministic, return_attention=return_attention)

    def project(self, source: Float[Array, "B T H"]) -> tuple[Float[Array, "B T N Q"], Float[Array, "B T N D"]]:
        """Returns the keys and the values of `source`, which `attend` takes."""
        return self._split(self.key(source)), self._split(self.value(source))

    def attend(
        self,
        x: Float[Array, "B S H"],
        key: Float[Array, "B T N Q"],
        value: Float[Array, "B T N D"],
        mask: Bool[Array, "B 1 #S T"],
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Float[Array, "B S H"], Float[Array, "B N S T"] | None]:
        """Returns what `x` attends to, and the attention weights.

        Args:
          x: the queries.
          key: by `project`, as are the values.
          value: what is attended to.
          mask: True where a query may attend to a key. Applied before the softmax, so that masked keys take
            no weight. A row without any True gives finite, meaningless output.
          deterministic: no dropout.
          return_attention: whether to return the weights (float32, before dropout) or None in their place.

        Raises:
          UserError: the backend cannot do what it is asked for, or not on this device.
        """
        query = self._split(self.query(x))
        if self.backend == "cudnn" and not self.is_initializing():
            self._check_cudnn(return_attention)
            mask = jnp.broadcast_to(mask, (*mask.shape[:2], x.shape[1], key.shape[1]))
            context = jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")
            return self.output(context.reshape(x.shape)), None
        keys = None
        if self.dropout and not deterministic:
            pairs = jnp.arange(len(x) * self.num_heads).reshape(len(x), self.num_heads)
            keys = jnp.vectorize(functools.partial(jax.random.fold_in, self.make_rng("dropout")))(pairs)
        query, key, value = (y.swapaxes(1, 2) for y in (query, key, value))
        if return_attention or not _on_one_cpu():
            context, weights = _attend(query, key, value, mask, keys, self.dropout)
        else:
            context, weights = _attend_in_parts(query, key, value, mask, keys, self.dropout), None
        context = context.swapaxes(1, 2).reshape(x.shape)
        return self.output(context), weights if return_attention else None

    def _split(self, y: Float[Array, "B S width"]) -> Float[Array, "B S N size"]:
        return y.reshape(*y.shape[:-1], self.num_heads, -1)

    def _check_cudnn(self, return_attention: bool) -> None:
        wrong = {
            f"dropout {self.dropout} on the attention weights": self.dropout > 0,
            "attention weights to be returned": return_attention,
            f"no NVIDIA GPU but {jax.default_backend()}": jax.default_backend() not in ("gpu", "cuda"),
        }
        for got, is_wrong in wrong.items():
            if is_wrong:
                raise UserError(
                    "config key model.attention_backend=cudnn",
                    got=got,
                    expected="an NVIDIA GPU, no dropout on attention weights, and nobody who asks for them",
                    fix="set --config.model.attention_backend=xla; so a trained run opens by --config.init_from=RUN",
                )


def _attend(
    query: Float[Array, "*pairs S Q"],
    key: Float[Array, "*pairs T Q"],
    value: Float[Array, "*pairs T D"],
    mask: Bool[Array, "*#pairs #S T"],
    keys: Key[Array, "*pairs"] | None,
    rate: float,
) -> tuple[Float[Array, "*pairs S D"], Float[Array, "*pairs S T"]]:
    """For pairs of a row and a head: the mean of the values that each query attends to, and their weights.

    Args:
      query: queries.
      key: keys.
      value: values.
      mask: see `MultiHeadAttention.attend`.
      keys: for dropout on the weights, or None for no dropout.
      rate: of dropout.
    """
    query = query * query.shape[-1] ** -0.5  # fewer elements than the scores
    scores = jnp.einsum("...SQ,...TQ->...ST", query, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED_SCORE))
    kept = weights.astype(value.dtype)
    if keys is not None:
        kept = jnp.vectorize(functools.partial(drop, rate=rate), signature="(s,t),()->(s,t)")(kept, keys)
    return kept @ value, weights


def _attend_in_parts(
    query: Float[Array, "B N S Q"],
    key: Float[Array, "B N T Q"],
    value: Float[Array, "B N T D"],
    mask: Bool[Array, "B 1 #S T"],
    keys: Key[Array, "B N"] | None,
    rate: float,
) -> Float[Array, "B N S D"]:
    """The mean that `_attend` returns, of some pairs at a time; the weights of others are never at hand."""
    batch, num_heads = query.shape[:2]
    size = _pairs_at_a_time(batch, num_heads, query.shape[2] * key.shape[2])
    if size == batch * num_heads:
        return _attend(query, key, value, mask, keys, rate)[0]
    rows, heads = -(-size // num_heads), min(size, num_heads)  # of a part
    masks = mask.reshape(-1, rows, *mask.shape[2:])

    @jax.checkpoint
    def of_part(number: Array, query: Array, key: Array, value: Array, keys: Array | None) -> Array:
        own = jnp.repeat(masks[number * size // (rows * num_heads)], heads, axis=0)
        return _attend(query, key, value, own, keys, rate)[0]

    parts = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[2:]), (query, key, value, keys))
    numbers = jnp.arange(batch * num_heads // size)
    contexts = jax.lax.map(lambda part: of_part(*part), (numbers, *parts))
    return contexts.reshape(*query.shape[:3], -1)


def _pairs_at_a_time(batch: int, num_heads: int, scores: int) -> int:
    """How many pairs of a row and a head, with so many scores each, make a part: heads of one row, or whole rows.

    >>> _pairs_at_a_time(8, 12, 512 * 512), _pairs_at_a_time(64, 12, 128 * 128), _pairs_at_a_time(8, 12, 128 * 128)
    (4, 48, 96)
    """
    if batch * num_heads * scores <= _MANY_MORE * _SCORES_AT_A_TIME:
        return batch * num_heads
    most = max(1, _SCORES_AT_A_TIME // scores)
    if most < num_heads:
        return _largest_divisor(num_heads, most)
    return num_heads * _largest_divisor(batch, most // num_heads)


def _largest_divisor(number: int, most: int) -> int:
    return next(each for each in range(min(number, most), 0, -1) if number % each == 0)


def _on_one_cpu() -> bool:
    """Whether what is being traced is for one CPU: over several, parts of rows and heads would have to be moved."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return jax.default_backend() == "cpu"
    return mesh.size == 1 and mesh.abstract_device.device_kind == "cpu"


def make_mask(segment_ids: Int[Array, "B S"], direction: str) -> Bool[Array, "B 1 S S"]:
    """Returns which query (axis 2) may attend to which key (axis 3) of the same row.

    Args:
      segment_ids: 0 at padding; tokens attend to those of the same number. Several instances packed into a row
        are numbered 1, 2, ...; where a row holds one, this is the attention mask of 1 and 0 as others have it.
      direction: `both`; `left_to_right`, where position i sees positions j <= i; or `right_to_left`, j >= i.
    """
    length = segment_ids.shape[-1]
    query, key = jnp.arange(length)[:, None], jnp.arange(length)[None, :]
    allowed = {
        "both": jnp.ones((length, length), bool),
        "left_to_right": key <= query,
        "right_to_left": key >= query,
    }[direction]
    return allowed & make_cross_mask(segment_ids, segment_ids)


def make_cross_mask(query_segments: Int[Array, "B S"], key_segments: Int[Array, "B T"]) -> Bool[Array, "B 1 S T"]:
    """Returns which query (axis 2) may attend to which key (axis 3) of another row: those of its number."""
    of_query, of_key = query_segments[:, None, :, None], key_segments[:, None, None, :]
    # Padding attends to all tokens, as in google-research/bert: what it gets is finite, and nobody looks at it.
    return ((of_query == of_key) | (of_query == 0)) & (of_key != 0)
