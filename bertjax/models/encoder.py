"""The Transformer encoder.

Shapes: B batch, S length, P output positions, H hidden size, N heads, L layers.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertjax.models.attention.mask import Mask
from bertjax.models.convolution import Convolution
from bertjax.models.stack import Results, Stack, dropout_key, stacked_init
from bertjax.models.transformer import TransformerLayer
from bertjax.models.transformer_config import TransformerConfig, make_norm


class EncoderOutput(NamedTuple):
    """The output of `Encoder`."""

    hidden: Array  # [B, S, H]; [B, P, H] with `output_positions`
    attention: Array | None  # [L, B, N, S, S] float32; None if not requested
    layers: Array | None  # [L + 1, B, S, H]: the input and each layer's output; None if not requested


class Encoder(nn.Module):
    """A stack of Transformer layers.

    Parameters: `layers`, those of a TransformerLayer with a leading axis L, or one place for each group of layers that
    share them; `final_norm` if pre-norm. `convolution` is applied to the first layer's output.
    `scan_layers` and `remat` change neither the layout nor the result, even with dropout, so a checkpoint can be used
    with any of these options.
    """

    config: TransformerConfig
    convolution: Convolution | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B S H"],
        mask: Mask | Bool[Array, "B 1 #S S"],
        relative: Array | None = None,
        *,
        deterministic: bool,
        return_attention: bool,
        return_layers: bool = False,
        output_positions: Int[Array, "B P"] | None = None,
    ) -> EncoderOutput:
        """Returns the last layer's output; all attention weights and all layers' outputs if requested.

        The last of the layers' outputs equals `hidden`, after the final norm if there is one.

        Args:
          x: the embeddings.
          mask: which token may attend to which.
          relative: the bias of the scores [1, N, S, S], or the table of positions [R, H], of all layers; None for none.
          deterministic: whether dropout is off.
          return_attention: whether to return the attention weights.
          return_layers: whether to return all layers' outputs.
          output_positions: the positions of each row whose output is needed; None for all. If they are at most half of
            a row, the last layer computes queries, attention and feed-forward only at these, which saves most of its
            work, except with disentangled attention, a convolution, or the attention backends "cudnn", "rows" and
            "splash". Cannot be combined with `return_attention` or `return_layers`.
        """
        config = self.config
        layer = TransformerLayer(config, cross=False, parent=None)
        params = self.param("layers", stacked_init(layer, config.stored_layers))
        kinds = [config.kind(number) for number in range(config.num_layers)]
        options: dict[str, Any] = {"deterministic": deterministic, "return_attention": return_attention}
        stack = Stack(layer, kinds, params, return_layers, options)
        if output_positions is not None and self._can_select(output_positions.shape[1], x.shape[1]):
            assert isinstance(mask, Mask) and not return_attention and not return_layers
            y, weights, outputs = self._at_positions(stack, x, mask, relative, output_positions)
        else:
            y, weights, outputs = self._at_all_positions(stack, x, mask, relative)
            y = y if output_positions is None else take_positions(y, output_positions)
        y = make_norm(config, "final_norm")(y) if config.norm == "pre" else y
        layers = None if outputs is None else jnp.concatenate([x[None], outputs[:-1], y[None]])
        return EncoderOutput(y, weights.to_sequence, layers)

    def _can_select(self, num_positions: int, length: int) -> bool:
        """Whether the last layer computes only some positions of a row."""
        # These kernels may not be able to compute a few queries.
        is_kernel = self.config.attention_backend not in ("auto", "xla", "triton")
        is_disentangled = self.config.kind(self.config.num_layers - 1).distances is not None
        return 2 * num_positions <= length and self.convolution is None and not is_disentangled and not is_kernel

    def _at_positions(
        self, stack: Stack, x: Float[Array, "B S H"], mask: Mask, relative: Array | None, places: Int[Array, "B P"]
    ) -> Results:
        """The results of all layers, the last of which computes only the output at these places of each row."""
        y, _, _ = stack(x, (mask, None, None, None, relative), self._key(stack), slice(-1))
        if relative is not None:
            relative = jnp.take(relative[0], places, axis=1).swapaxes(0, 1)
        arguments = (mask.of_queries(places), None, None, y, relative)
        return stack(take_positions(y, places), arguments, self._key(stack), slice(-1, None))

    def _at_all_positions(
        self, stack: Stack, x: Float[Array, "B S H"], mask: Mask | Array, relative: Array | None
    ) -> Results:
        """The results of all layers, with the convolution after the first layer if there is one."""
        arguments = (mask, None, None, None, relative)
        if self.convolution is None:
            return stack(x, arguments, self._key(stack))
        assert isinstance(mask, Mask)
        y, weights, _ = stack(x, arguments, self._key(stack), slice(1))
        y = self.convolution(x, y, mask.queries.segments, deterministic=stack.options["deterministic"])
        first = weights, y[None] if stack.return_layers else None
        y, *others = stack(y, arguments, self._key(stack), slice(1, None))
        weights, outputs = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first, tuple(others))
        return y, weights, outputs

    def _key(self, stack: Stack) -> Array | None:
        return dropout_key(self, deterministic=stack.options["deterministic"])


def take_positions(hidden: Float[Array, "B S H"], positions: Int[Array, "B P"]) -> Float[Array, "B P H"]:
    """Returns the vectors at the given positions of each row."""
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)
