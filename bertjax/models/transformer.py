"""The Transformer encoder: post-norm as BERT (Devlin et al. 2019) or pre-norm (Xiong et al. 2020).

Shapes: B batch, S length, H hidden size, N heads, F feed-forward size, L layers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from bertjax.errors import UserError, choice
from bertjax.models.attention import Dense, MultiHeadAttention
from bertjax.models.dropout import Dropout
from bertjax.models.partitioning import keep_rows_split


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes and options of a stack of Transformer layers.

    Parameters are always float32; `dtype` is what activations are computed in. Softmax, normalization
    statistics and logits stay in float32.

    Raises:
      UserError: a value out of range.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    dropout: float  # on embeddings and on the output of each sub-layer
    attention_dropout: float  # on the attention weights
    attention_backend: str  # "xla", or "cudnn": flash attention on NVIDIA GPUs
    gelu: str  # "erf": exact, as BERT's first release; "tanh": approximation, as Google's code since 2019
    norm: str  # "post": after the residual sum; "pre": before each sub-layer, and once more at the end
    norm_eps: float
    initializer_range: float
    dtype: str  # "float32" or "bfloat16"
    scan_layers: bool  # one compiled layer in a loop (fast compile), or all layers unrolled (fast run)
    remat: bool  # recompute each layer in the backward pass instead of storing its activations

    def __post_init__(self) -> None:
        for key in ("hidden_size", "num_layers", "num_heads", "intermediate_size"):
            check_value(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        for key in ("dropout", "attention_dropout"):
            check_value(0 <= getattr(self, key) < 1, key, getattr(self, key), "at least 0 and below 1")
        for key in ("norm_eps", "initializer_range"):
            check_value(getattr(self, key) > 0, key, getattr(self, key), "above 0")
        divisible = self.hidden_size % self.num_heads == 0
        check_value(divisible, "hidden_size", self.hidden_size, f"a multiple of num_heads={self.num_heads}")
        choice(self.gelu, ("erf", "tanh"), "model.gelu")
        choice(self.norm, ("post", "pre"), "model.norm")
        choice(self.dtype, ("float32", "bfloat16"), "model.dtype")
        choice(self.attention_backend, ("xla", "cudnn"), "model.attention_backend")
        if self.attention_backend == "cudnn":
            # It never stores the weights that dropout would fall on, and computes in half precision.
            backend = "with model.attention_backend=cudnn"
            head_size = self.hidden_size // self.num_heads
            check_value(not self.attention_dropout, "attention_dropout", self.attention_dropout, f"0 {backend}")
            check_value(self.dtype == "bfloat16", "dtype", self.dtype, f"bfloat16 {backend}")
            fits = head_size % 8 == 0 and head_size <= 128
            check_value(fits, "num_heads", self.num_heads, f"heads of 8, 16, ... 128 {backend}, not of {head_size}")


def check_value(ok: bool, key: str, value: object, expected: str) -> None:
    """Raises UserError about `config.model.<key>` unless `ok`."""
    if not ok:
        fix = f"change --config.model.{key}"
        raise UserError(f"config key model.{key}", got=value, expected=expected, fix=fix)


def dense(config: TransformerConfig, features: int, name: str | None = None) -> Dense:
    """Returns a Dense layer initialized and computed as the config says."""
    return Dense(features, config.initializer_range, config.dtype, name=name)


def layer_norm(config: TransformerConfig, name: str | None = None) -> nn.LayerNorm:
    """Returns a LayerNorm with float32 statistics and `scale`, `bias` [H].

    The two-pass variance: the one-pass form loses digits when the mean is far from zero.
    """
    return nn.LayerNorm(epsilon=config.norm_eps, dtype=config.dtype, use_fast_variance=False, name=name)


def gelu(config: TransformerConfig, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Applies the Gaussian error linear unit, exact or by tanh (Hendrycks and Gimpel 2016)."""
    if config.gelu == "tanh":
        return jax.nn.gelu(x, approximate=True)
    # `jax.nn.gelu` goes by erfc, which costs an exponential more and differs by rounding only.
    y = x.astype(jnp.float32)
    return (0.5 * y * (1 + jax.lax.erf(y * 0.5**0.5))).astype(x.dtype)


class TransformerLayer(nn.Module):
    """Self-attention and a feed-forward network, each with dropout, a residual sum and a norm.

    Parameters: `attention`, `attention_norm`, `intermediate` [H, F], `output` [F, H], `output_norm`.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B S H"],
        mask: Bool[Array, "B #N S S"],
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Float[Array, "B S H"], Float[Array, "B N S S"] | None]:
        """Returns the layer's output and its attention weights, or None if not asked for them."""
        config = self.config
        attention = MultiHeadAttention(
            config.num_heads,
            config.attention_dropout,
            config.attention_backend,
            config.initializer_range,
            config.dtype,
            name="attention",
        )
        attention_norm = layer_norm(config, "attention_norm")
        output_norm = layer_norm(config, "output_norm")

        def attend(y: Array) -> tuple[Array, Array | None]:
            y, weights = attention(y, y, mask, deterministic=deterministic, return_attention=return_attention)
            return Dropout(config.dropout)(y, deterministic=deterministic), weights

        def feed_forward(y: Array) -> Array:
            y = gelu(config, dense(config, config.intermediate_size, "intermediate")(y))
            y = dense(config, config.hidden_size, "output")(y)
            return Dropout(config.dropout)(y, deterministic=deterministic)

        if config.norm == "pre":
            y, weights = attend(attention_norm(x))
            x = x + y
            return x + feed_forward(output_norm(x)), weights
        y, weights = attend(x)
        x = attention_norm(x + y)
        return output_norm(x + feed_forward(x)), weights


class EncoderOutput(NamedTuple):
    """What `Encoder` returns."""

    hidden: Array  # [B, S, H]
    attention: Array | None  # [L, B, N, S, S] float32, or None if not asked for
    layers: Array | None  # [L + 1, B, S, H], or None if not asked for: the input, and what each layer makes of it


class Encoder(nn.Module):
    """A stack of Transformer layers.

    Parameters: `layers`, a TransformerLayer's with a leading axis L on each; `final_norm` if pre-norm.
    The layout, and the outcome with dropout too, are the same scanned or unrolled, rematerialized or not,
    so that any checkpoint opens with any of these options.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B S H"],
        mask: Bool[Array, "B #N S S"],
        *,
        deterministic: bool,
        return_attention: bool,
        return_layers: bool = False,
    ) -> EncoderOutput:
        """Returns the last layer's output; all attention weights and all layers' outputs if asked for.

        Of the layers' outputs the last is what `hidden` is, after the final norm if there is one.
        """
        config = self.config
        layer = TransformerLayer(config, parent=None)
        stacked = self.param("layers", _stacked_init(layer))
        # Without a key, dropout inside the layer reports that it is missing.
        use_key = self.has_rng("dropout") and not deterministic
        keys = jax.random.split(self.make_rng("dropout"), config.num_layers) if use_key else None

        def body(x: Array, params_and_key: tuple[Any, Array | None]) -> tuple[Array, Any]:
            params, key = params_and_key
            y, weights = layer.apply(
                {"params": params},
                keep_rows_split(x),
                mask,
                deterministic=deterministic,
                return_attention=return_attention,
                rngs={} if key is None else {"dropout": key},
            )
            return y, (weights, y if return_layers else None)

        if config.remat:
            # Unrolled, the compiler would merge the recomputation with the forward pass; in a loop it cannot.
            body = jax.checkpoint(body, prevent_cse=not config.scan_layers)
        y, (weights, outputs) = jax.lax.scan(body, x, (stacked, keys), unroll=not config.scan_layers)
        y = layer_norm(config, "final_norm")(y) if config.norm == "pre" else y
        layers = jnp.concatenate([x[None], outputs[:-1], y[None]]) if return_layers else None
        return EncoderOutput(y, weights, layers)


def _stacked_init(layer: TransformerLayer) -> Callable[[Array], Any]:
    """Returns the initializer of all layers: the parameters of each, from a key of its own, on axis 0."""
    config = layer.config
    x, mask = jnp.zeros((1, 1, config.hidden_size), config.dtype), jnp.ones((1, 1, 1, 1), bool)

    def init(key: Array) -> Any:
        return layer.init(key, x, mask, deterministic=True, return_attention=False)["params"]

    return lambda key: jax.vmap(init)(jax.random.split(key, config.num_layers))
