"""The Transformer (Vaswani et al. 2017): its layer, post-norm or pre-norm (Xiong et al. 2020).

Shapes: B batch, S length, T length of the whole sequence where S are some of its positions, M length of
the memory of cross-attention, H hidden size, N heads, D = H / N head size, Q size of a head's queries and keys,
F feed-forward size, K beams, P places of a cache.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from bertjax.config import Constrained, DropoutRate, Size, above, one_of
from bertjax.errors import UserError
from bertjax.models.attention import MultiHeadAttention
from bertjax.models.dot_product import Mask
from bertjax.models.layers import Dense, Dropout


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(Constrained, prefix="model"):
    """Sizes and options of a stack of Transformer layers.

    Parameters are always float32, and softmax, normalization statistics and logits stay so.

    Attributes:
      hidden_size: width of the embeddings and of each layer's output; a multiple of num_heads.
      num_layers: layers; of an encoder-decoder, the encoder's.
      num_heads: heads of each attention.
      intermediate_size: width inside the feed-forward network.
      dropout: on embeddings and on the output of each sub-layer.
      attention_dropout: on the attention weights.
      attention_backend: "xla", or "cudnn": flash attention on NVIDIA GPUs.
      activation_dropout: on the activation's output inside the feed-forward network.
      activation: "gelu": exact, as BERT's first release; "gelu_tanh", as Google's code since 2019; "relu"; "silu".
      norm: "post": after the residual sum; "pre": before each sub-layer, and once more at the end.
      norm_eps: what layer normalization adds to the variance.
      initializer: of matrices: "truncated_normal", as BERT; "xavier_uniform" (Glorot and Bengio 2010).
      initializer_range: standard deviation of truncated normal matrices, and of embedding tables.
      dtype: what activations are computed in, "float32" or "bfloat16".
      scan_layers: one compiled layer in a loop (fast compile), or all layers unrolled (fast run).
      remat: recompute each layer in the backward pass instead of storing its activations.

    Raises:
      UserError: a value out of range.
    """

    hidden_size: Size
    num_layers: Size
    num_heads: Size
    intermediate_size: Size
    dropout: DropoutRate
    attention_dropout: DropoutRate
    attention_backend: Annotated[str, one_of("xla", "cudnn")] = "xla"
    activation_dropout: DropoutRate = 0.0
    activation: Annotated[str, one_of("gelu", "gelu_tanh", "relu", "silu")]
    norm: Annotated[str, one_of("post", "pre")] = "post"
    norm_eps: Annotated[float, above(0)]
    initializer: Annotated[str, one_of("truncated_normal", "xavier_uniform")] = "truncated_normal"
    initializer_range: Annotated[float, above(0)] = 0.02
    dtype: Annotated[str, one_of("float32", "bfloat16")] = "float32"
    scan_layers: bool = False
    remat: bool = False

    @property
    def head_key_size(self) -> int:
        """The size of a head's queries and keys; that of its values is always hidden_size / num_heads."""
        return self.hidden_size // self.num_heads

    def __post_init__(self) -> None:
        super().__post_init__()
        divisible = self.hidden_size % self.num_heads == 0
        self.check(divisible, "hidden_size", f"a multiple of num_heads={self.num_heads}")
        if self.attention_backend == "cudnn":
            # It never stores the weights that dropout would fall on, and computes in half precision.
            backend = "with model.attention_backend=cudnn"
            head_size = self.hidden_size // self.num_heads
            self.check(not self.attention_dropout, "attention_dropout", f"0 {backend}")
            self.check(self.dtype == "bfloat16", "dtype", f"bfloat16 {backend}")
            fits = head_size % 8 == 0 and head_size <= 128
            self.check(fits, "num_heads", f"heads of 8, 16, ... 128 {backend}, not of {head_size}")


def check_value(ok: bool, key: str, value: object, expected: str) -> None:
    """Raises UserError about `config.model.<key>` unless `ok`."""
    if not ok:
        fix = f"change --config.model.{key}"
        raise UserError(f"config key model.{key}", got=value, expected=expected, fix=fix)


def kernel_init(config: TransformerConfig) -> nn.initializers.Initializer:
    """Returns how matrices start.

    "truncated_normal" is `tf.truncated_normal_initializer(initializer_range)` of google-research/bert: values beyond
    two standard deviations are drawn again, and the narrower result (0.88 of the range) is not scaled back up.
    """
    if config.initializer == "xavier_uniform":
        return nn.initializers.xavier_uniform()
    return nn.initializers.truncated_normal(config.initializer_range)


def dense(config: TransformerConfig, features: int, name: str | None = None) -> Dense:
    """Returns a Dense layer initialized and computed as the config says."""
    return Dense(features, kernel_init(config), config.dtype, name=name)


def layer_norm(config: TransformerConfig, name: str | None = None) -> nn.LayerNorm:
    """Returns a LayerNorm with float32 statistics and `scale`, `bias` [H].

    The two-pass variance: the one-pass form loses digits when the mean is far from zero.
    """
    return nn.LayerNorm(epsilon=config.norm_eps, dtype=config.dtype, use_fast_variance=False, name=name)


def activate(config: TransformerConfig, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Applies the activation: ReLU, or a GELU (exact or by tanh) or SiLU (Hendrycks and Gimpel 2016)."""
    if config.activation != "gelu":
        return {"gelu_tanh": jax.nn.gelu, "relu": jax.nn.relu, "silu": jax.nn.silu}[config.activation](x)
    # `jax.nn.gelu` goes by erfc, which costs an exponential more and differs by rounding only.
    y = x.astype(jnp.float32)
    return (0.5 * y * (1 + jax.lax.erf(y * 0.5**0.5))).astype(x.dtype)


class LayerAttention(NamedTuple):
    """What a layer's queries attend to; None if not asked for."""

    own: Array | None  # [B, N, S, S] float32
    cross: Array | None  # [B, N, S, M] float32; None without cross-attention


class LayerCache(NamedTuple):
    """What a layer keeps of the tokens before: keys and values, of places of its own and of the memory.

    Heads come before places, and keys lie across: so the products with a few queries go over memory as it lies.
    """

    key: Array  # [B, N, Q, P]
    value: Array  # [B, N, P, D]
    memory_key: Array  # [B, N, Q, M]
    memory_value: Array  # [B, N, M, D]


class TransformerLayer(nn.Module):
    """Self-attention, attention to a memory if `cross`, a feed-forward network; each with dropout, residual and norm.

    Parameters: `attention`, `attention_norm`, `intermediate` [H, F], `output` [F, H], `output_norm`; if `cross` also
    `cross_attention` and `cross_attention_norm`. With `bare_input`, a layer of a pre-norm stack attends to its input as
    it comes, and does nothing with `attention_norm`.
    """

    config: TransformerConfig
    cross: bool
    bare_input: bool = False

    def setup(self) -> None:
        """Makes the parts."""
        config = self.config
        self.attention, self.attention_norm = _attention(config), layer_norm(config)
        if self.cross:
            self.cross_attention, self.cross_attention_norm = _attention(config), layer_norm(config)
        self.intermediate, self.output = dense(config, config.intermediate_size), dense(config, config.hidden_size)
        self.output_norm = layer_norm(config)
        self.activation_drop, self.drop = Dropout(config.activation_dropout), Dropout(config.dropout)

    def __call__(
        self,
        x: Float[Array, "B S H"],
        mask: Mask,
        memory: Float[Array, "B M H"] | None = None,
        memory_mask: Mask | None = None,
        source: Float[Array, "B T H"] | None = None,
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Float[Array, "B S H"], LayerAttention]:
        """Returns the layer's output and its attention weights.

        Args:
          x: the sequence, or some of its positions.
          mask: which token may attend to which.
          memory: what cross-attention looks at; None if there is none.
          memory_mask: which token may attend to which of the memory's.
          source: the whole sequence if x is some of its positions; None if x is all of it.
          deterministic: no dropout.
          return_attention: whether to return the weights, or None in their place.
        """
        asked = {"deterministic": deterministic, "return_attention": return_attention}

        def attend(y: Array) -> tuple[Array, Array | None]:
            if source is None:
                return self.attention(y, y, mask, **asked)
            whole = self.attention_norm(source) if self.config.norm == "pre" else source
            return self.attention(y, whole, mask, **asked)

        def attend_to_memory(y: Array) -> tuple[Array, Array | None]:
            assert memory is not None and memory_mask is not None
            return self.cross_attention(y, memory, memory_mask, **asked)

        y, own, cross = self._sublayers(x, attend, attend_to_memory, deterministic)
        return y, LayerAttention(own, cross)

    def start(self, memory: Float[Array, "B M H"], places: int) -> LayerCache:
        """Returns the cache of so many places, all empty, and of the memory's keys and values."""
        key, value = _laid_out(*self.cross_attention.project(memory))
        empty_key = jnp.zeros((*key.shape[:-1], places), key.dtype)
        empty_value = jnp.zeros((*value.shape[:-2], places, value.shape[-1]), value.dtype)
        return LayerCache(empty_key, empty_value, key, value)

    def step(
        self,
        x: Float[Array, "B K H"],
        cache: LayerCache,
        place: Int[Array, ""],
        mask: Mask,
        memory_mask: Mask,
    ) -> tuple[Float[Array, "B K H"], LayerCache]:
        """Goes on by one token for each beam, without dropout.

        Args:
          x: the tokens.
          cache: of the tokens before.
          place: the first of the K places of the cache that these tokens take.
          mask: which beam may attend to which of P places; its own token's is one.
          memory_mask: where beams may attend to the memory.
        Returns:
          The layer's output, and the cache with these tokens.
        """
        asked = {"deterministic": True, "return_attention": False}

        def attend(y: Array) -> tuple[Array, LayerCache]:
            key, value = _laid_out(*self.attention.project(y))
            key = jax.lax.dynamic_update_slice_in_dim(cache.key, key, place, axis=3)
            value = jax.lax.dynamic_update_slice_in_dim(cache.value, value, place, axis=2)
            kept = cache._replace(key=key, value=value)
            key, value = _in_order(key, value)
            y, _ = self.attention.attend(y, key, value, mask, **asked)
            return y, kept

        def attend_to_memory(y: Array) -> tuple[Array, Array | None]:
            key, value = _in_order(cache.memory_key, cache.memory_value)
            return self.cross_attention.attend(y, key, value, memory_mask, **asked)

        y, kept, _ = self._sublayers(x, attend, attend_to_memory, deterministic=True)
        return y, kept

    def _sublayers(
        self,
        x: Float[Array, "B S H"],
        attend: Callable[[Array], tuple[Array, Any]],
        attend_to_memory: Callable[[Array], tuple[Array, Any]],
        deterministic: bool,
    ) -> tuple[Float[Array, "B S H"], Any, Any]:
        """The layer's output, and what came along with the outputs of the two kinds of attention."""

        def feed_forward(y: Array) -> tuple[Array, None]:
            y = self.activation_drop(activate(self.config, self.intermediate(y)), deterministic=deterministic)
            return self.output(y), None

        def residual(
            x: Array, sublayer: Callable[[Array], tuple[Array, Any]], norm: Callable[[Array], Array]
        ) -> tuple[Array, Any]:
            y, along = sublayer(norm(x) if self.config.norm == "pre" else x)
            x = x + self.drop(y, deterministic=deterministic)
            return (x if self.config.norm == "pre" else norm(x)), along

        x, own = residual(x, attend, (lambda x: x) if self.bare_input else self.attention_norm)
        x, cross = residual(x, attend_to_memory, self.cross_attention_norm) if self.cross else (x, None)
        x, _ = residual(x, feed_forward, self.output_norm)
        return x, own, cross


def _attention(config: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.hidden_size,
        config.num_heads,
        config.head_key_size,
        config.attention_dropout,
        config.attention_backend,
        kernel_init(config),
        config.dtype,
    )


def _laid_out(
    key: Float[Array, "B P N Q"], value: Float[Array, "B P N D"]
) -> tuple[Float[Array, "B N Q P"], Float[Array, "B N P D"]]:
    """Keys and values as `LayerCache` has them."""
    return key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)


def _in_order(
    key: Float[Array, "B N Q P"], value: Float[Array, "B N P D"]
) -> tuple[Float[Array, "B P N Q"], Float[Array, "B P N D"]]:
    """The same as `MultiHeadAttention.attend` takes them."""
    return key.transpose(0, 3, 1, 2), value.swapaxes(1, 2)


# (path pattern, mesh axis of each of the last dimensions); what matches nothing is not split.
TENSOR_RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"attention/(query|key|value)/kernel$", (None, "tensor")),
    (r"attention/(query|key|value)/bias$", ("tensor",)),
    (r"attention/output/kernel$", ("tensor", None)),
    (r"intermediate/kernel$", (None, "tensor")),
    (r"intermediate/bias$", ("tensor",)),
    (r"layers/output/kernel$", ("tensor", None)),
)


def keep_rows_split(x: Float[Array, "B *shape"]) -> Float[Array, "B *shape"]:
    """Keeps the rows of activations split over the data and fsdp axes of the mesh in force, if there is one.

    Left to itself the compiler follows the parameters: it copies all rows to each device of the fsdp axis and
    splits the hidden dimension, which takes several times the memory.
    """
    if "fsdp" not in jax.sharding.get_abstract_mesh().axis_names:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(("data", "fsdp")))
