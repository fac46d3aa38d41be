"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2) and its masks.

Shapes: B batch, S queries, T keys, H hidden size, N heads, D = H / N head size,
Q size of a head's queries and keys.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertjax.errors import UserError
from bertjax.models.dropout import Dropout

# Finite, so that a row with no key to attend to gets uniform weights and finite gradients instead of NaN.
MASKED_SCORE = -1e30


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
    Scores, mask and softmax are computed in float32; dropout falls on the weights, as in BERT.

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
        self.drop = Dropout(self.dropout)

    def __call__(
        self,
        x: Float[Array, "B S H"],
        source: Float[Array, "B T H"],
        mask: Bool[Array, "B #N #S T"],
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
        mask: Bool[Array, "B #N #S T"],
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
        query = query * query.shape[-1] ** -0.5  # fewer elements than the scores
        scores = jnp.einsum("BSNQ,BTNQ->BNST", query, key, preferred_element_type=jnp.float32)
        scores = jnp.where(mask, scores, MASKED_SCORE)
        weights = jax.nn.softmax(scores)
        kept = self.drop(weights.astype(self.dtype), deterministic=deterministic)
        context = jnp.einsum("BTND,BNST->BSND", value, kept)  # in this order, fewer transpositions on CPU
        return self.output(context.reshape(x.shape)), weights if return_attention else None

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
