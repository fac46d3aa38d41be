"""The Transformer layer (Vaswani et al. 2017), post-norm or pre-norm (Xiong et al. 2020).

Shapes: B batch, S length, T length of the whole sequence if S are only some of its positions, M memory length of
cross-attention, H hidden size, N heads, G heads of keys and values, Q size of a head's queries and keys, D size of its
values, F feed-forward size, K beams, P positions of a cache.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from bertjax import meshes
from bertjax.models.attention.layer import MultiHeadAttention
from bertjax.models.attention.mask import Mask
from bertjax.models.layers import Dropout, Update
from bertjax.models.norms import add
from bertjax.models.transformer_config import LayerKind, TransformerConfig, dense, make_norm, residual_dense


@jax.named_scope("activation")
def activate(config: TransformerConfig, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Applies the activation: ReLU, GELU (exact or with tanh) or SiLU (Hendrycks and Gimpel 2016)."""
    return ACTIVATIONS[config.activation](x)


def _storing_input(
    function: Callable[[Array], Array], slope: Callable[[Array], Array]
) -> Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]:
    """Returns an activation with this slope that computes in float32, and stores only its input for the backward pass.

    Differentiating the function would store up to three float32 arrays.
    """

    @jax.custom_vjp
    def activation(x: Array) -> Array:
        return function(x.astype(jnp.float32)).astype(x.dtype)

    def backward(x: Array, gradient: Array) -> tuple[Array]:
        if meshes.platform() == "tpu":  # whose compiler would store a float32 array to save the conversion
            x = jax.lax.optimization_barrier(x)
        return ((gradient.astype(jnp.float32) * slope(x.astype(jnp.float32))).astype(x.dtype),)

    activation.defvjp(lambda x: (activation(x), x), backward)
    return activation


def _normal_cdf(y: Array) -> Array:
    # `jax.nn.gelu` uses erfc, which costs an additional exponential and differs only by rounding.
    return 0.5 * (1 + jax.lax.erf(y * 0.5**0.5))


def _gelu_slope(y: Array) -> Array:
    return _normal_cdf(y) + y * jnp.exp(-0.5 * y * y) * (2 * jnp.pi) ** -0.5


def _tanh_cdf(y: Array) -> Array:
    """The approximation of `_normal_cdf` (Hendrycks and Gimpel 2016)."""
    return 0.5 * (1 + jnp.tanh((2 / jnp.pi) ** 0.5 * (y + 0.044715 * y**3)))


def _gelu_tanh_slope(y: Array) -> Array:
    cdf = _tanh_cdf(y)
    return cdf + y * cdf * (1 - cdf) * (8 / jnp.pi) ** 0.5 * (1 + 3 * 0.044715 * y * y)


def _silu_slope(y: Array) -> Array:
    gate = jax.nn.sigmoid(y)
    return gate + y * gate * (1 - gate)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _storing_input(lambda y: y * _normal_cdf(y), _gelu_slope),
    "gelu_tanh": _storing_input(lambda y: y * _tanh_cdf(y), _gelu_tanh_slope),
    "relu": jax.nn.relu,
    "silu": _storing_input(lambda y: y * jax.nn.sigmoid(y), _silu_slope),
    "tanh": jnp.tanh,
}


class LayerAttention(NamedTuple):
    """The attention weights of a layer; None if not requested."""

    to_sequence: Array | None  # [B, N, S, S] float32
    to_memory: Array | None  # [B, N, S, M] float32; None without cross-attention


class LayerCache(NamedTuple):
    """The cached keys and values of a layer: of the previous tokens, and of the memory.

    The axis of heads comes before the positions, and keys are transposed, so that products with a few queries read the
    cache contiguously.
    """

    key: Array  # [B, G, Q, P]
    value: Array  # [B, G, P, D]
    memory_key: Array  # [B, G, Q, M]
    memory_value: Array  # [B, G, M, D]


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention if `cross`, and a feed-forward network; each with dropout, residual and norm.

    Parameters: `attention`, `attention_norm`, `intermediate` [H, F], `output` [F, H], `output_norm`; if gated, also
    `gate` [H, F]; if `cross`, also `cross_attention` and `cross_attention_norm`. If `kind.bare_input`, `attention_norm`
    is unused.
    """

    config: TransformerConfig
    cross: bool
    kind: LayerKind = LayerKind()

    def setup(self) -> None:
        """Makes the submodules."""
        config = self.config
        self.attention = MultiHeadAttention(config, self.kind)
        self.attention_norm = make_norm(config)
        if self.cross:
            self.cross_attention = MultiHeadAttention(config)
            self.cross_attention_norm = make_norm(config)
        if config.gated:
            self.gate = dense(config, config.intermediate_size, part="intermediate")
        self.intermediate = dense(config, config.intermediate_size, part="intermediate")
        self.output = residual_dense(config)
        self.output_norm = make_norm(config)
        self.activation_drop = Dropout(config.activation_dropout)
        self.drop = Dropout(config.dropout)

    def __call__(
        self,
        x: Float[Array, "B S H"],
        mask: Mask | Bool[Array, "B 1 #S T"],
        memory: Float[Array, "B M H"] | None = None,
        memory_mask: Mask | Bool[Array, "B 1 #S M"] | None = None,
        source: Float[Array, "B T H"] | None = None,
        relative: Array | None = None,
        *,
        deterministic: bool,
        return_attention: bool,
    ) -> tuple[Float[Array, "B S H"], LayerAttention]:
        """Returns the layer's output and its attention weights.

        Args:
          x: the sequence, or some of its positions.
          mask: which token may attend to which.
          memory: the keys and values of cross-attention; None without cross-attention.
          memory_mask: which token may attend to which position of the memory.
          source: the whole sequence if `x` is only some of its positions; else None.
          relative: the bias of the scores of self-attention [#B, N, S, T], or the table of relative positions [R, H];
            see `MultiHeadAttention.attend`. None for none.
          deterministic: whether dropout is off.
          return_attention: whether to return the weights instead of None.
        """
        options: dict[str, Any] = {"deterministic": deterministic, "return_attention": return_attention}

        def attend(y: Array) -> tuple[Update, Array | None]:
            if source is None:
                return self.attention(y, y, mask, relative, **options)
            has_norm = self.config.norm == "pre" and not self.kind.bare_input
            sequence = self.attention_norm(source) if has_norm else source
            return self.attention(y, sequence, mask, relative, **options)

        def attend_to_memory(y: Array) -> tuple[Update, Array | None]:
            assert memory is not None and memory_mask is not None
            return self.cross_attention(y, memory, memory_mask, **options)

        y, to_sequence, to_memory = self._sublayers(x, attend, attend_to_memory, deterministic)
        return y, LayerAttention(to_sequence, to_memory)

    def heads(self, x: Float[Array, "B S H"]) -> tuple[Array, Array, Array]:
        """Returns queries, keys and values of self-attention for the layer's input; see `MultiHeadAttention.heads`."""
        has_norm = self.config.norm == "pre" and not self.kind.bare_input
        return self.attention.heads(self.attention_norm(x) if has_norm else x)

    def start(self, memory: Float[Array, "B M H"], places: int) -> LayerCache:
        """Returns a cache with `places` empty positions and the memory's keys and values."""
        key, value = _to_cache_layout(*self.cross_attention.project(memory))
        empty_key = jnp.zeros((*key.shape[:-1], places), key.dtype)
        empty_value = jnp.zeros((*value.shape[:-2], places, value.shape[-1]), value.dtype)
        return LayerCache(empty_key, empty_value, key, value)

    def step(
        self,
        x: Float[Array, "B K H"],
        cache: LayerCache,
        place: Int[Array, ""],
        mask: Bool[Array, "B 1 K P"],
        memory_mask: Bool[Array, "B 1 1 M"],
        relative: Float[Array, "1 N K P"] | None = None,
    ) -> tuple[Float[Array, "B K H"], LayerCache]:
        """Processes one token per beam, without dropout.

        Args:
          x: the tokens.
          cache: the cache of the previous tokens.
          place: the first of the K cache positions for these tokens.
          mask: which beam may attend to which of the P positions, including that of its own token.
          memory_mask: which positions of the memory the beams may attend to.
          relative: the bias of the scores of self-attention; None for none.
        Returns:
          The layer's output, and the cache extended by these tokens.
        """
        options: dict[str, Any] = {"deterministic": True, "return_attention": False}

        def attend(y: Array) -> tuple[Update, LayerCache]:
            key, value = _to_cache_layout(*self.attention.project(y))
            key = jax.lax.dynamic_update_slice_in_dim(cache.key, key, place, axis=3)
            value = jax.lax.dynamic_update_slice_in_dim(cache.value, value, place, axis=2)
            extended = cache._replace(key=key, value=value)
            key, value = _from_cache_layout(key, value)
            return self.attention.attend(y, key, value, mask, relative, **options)[0], extended

        def attend_to_memory(y: Array) -> tuple[Update, Array | None]:
            key, value = _from_cache_layout(cache.memory_key, cache.memory_value)
            return self.cross_attention.attend(y, key, value, memory_mask, **options)

        y, extended, _ = self._sublayers(x, attend, attend_to_memory, deterministic=True)
        return y, extended

    def _sublayers(
        self,
        x: Float[Array, "B S H"],
        attend: Callable[[Array], tuple[Update, Any]],
        attend_to_memory: Callable[[Array], tuple[Update, Any]],
        deterministic: bool,
    ) -> tuple[Float[Array, "B S H"], Any, Any]:
        """The layer's output, and the second results of `attend` and `attend_to_memory`."""

        def feed_forward(y: Array) -> tuple[Update, None]:
            config = self.config
            inner = self.intermediate(y)
            inner = activate(config, self.gate(y)) * inner if config.gated else activate(config, inner)
            return self.output.update(self.activation_drop(inner, deterministic=deterministic)), None

        is_pre = self.config.norm == "pre"
        y = x
        extras = []
        sublayers = [attend, attend_to_memory, feed_forward] if self.cross else [attend, feed_forward]
        norms = [self.attention_norm, *([self.cross_attention_norm] if self.cross else []), self.output_norm]
        if is_pre:
            first = norms.pop(0)
            y = x if self.kind.bare_input else first(x)
        for sublayer in sublayers:
            update, extra = sublayer(y)
            extras.append(extra)
            draws = self.drop.draws(deterministic=deterministic)
            if not norms:  # the next layer begins with a norm
                x = add(x, update, draws)
                continue
            # The norm, or with pre-norm the sum, is the residual stream; the norm is also the next sub-layer's input.
            norm = norms.pop(0)
            num_norms = 1 if is_pre or not norms else 2
            results = norm.of_sum(x, update, draws, num_sums=int(is_pre), num_norms=num_norms)
            x = results[0]
            y = results[-1]
        return x, extras[0], extras[1]


def _to_cache_layout(
    key: Float[Array, "B P G Q"], value: Float[Array, "B P G D"]
) -> tuple[Float[Array, "B G Q P"], Float[Array, "B G P D"]]:
    """Keys and values in the layout of `LayerCache`."""
    return key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)


def _from_cache_layout(
    key: Float[Array, "B G Q P"], value: Float[Array, "B G P D"]
) -> tuple[Float[Array, "B P G Q"], Float[Array, "B P G D"]]:
    """Keys and values in the layout of `MultiHeadAttention.attend`."""
    return key.transpose(0, 3, 1, 2), value.swapaxes(1, 2)


# (path pattern, mesh axis of each of the last dimensions). Parameters that match no pattern are not split.
TENSOR_RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"attention/(query|key|value)/kernel$", (None, "tensor")),
    (r"attention/(query|key|value)/bias$", ("tensor",)),
    (r"attention/output/kernel$", ("tensor", None)),
    (r"(gate|intermediate)/kernel$", (None, "tensor")),
    (r"(gate|intermediate)/bias$", ("tensor",)),
    (r"layers/output/kernel$", ("tensor", None)),
)


def keep_rows_split(x: Float[Array, "B *shape"]) -> Float[Array, "B *shape"]:
    """Keeps the rows of activations split over the data and fsdp axes of the current mesh, if there is one.

    Without this constraint, the compiler follows the sharding of the parameters: it copies all rows to each device of
    the fsdp axis and splits the hidden dimension, which needs several times the memory.
    """
    if "fsdp" not in jax.sharding.get_abstract_mesh().axis_names:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(("data", "fsdp")))
