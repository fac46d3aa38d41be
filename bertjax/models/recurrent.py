"""A bidirectional LSTM (Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005).

Shapes: B batch, S length, I input size, U units of a direction, D = 2 directions, G = 4 gates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int, Shaped


class BiLSTMOutput(NamedTuple):
    """What `BiLSTM` returns. The first U of the last axis are of the forward direction, the others of the other."""

    hidden: Array  # [B, S, 2U] float32; 0 at padding
    final: Array  # [B, 2U] float32: after the last token for the forward direction, after the first for the other


class BiLSTM(nn.Module):
    """One layer of LSTM cells in both directions, in float32.

    Parameters: `input_kernel` [I, D, G, U], `recurrent_kernel` [D, U, G, U] and `bias` [D, G, U], the gates in the
    order input, forget, cell, output, as in torch. Kernels start by Glorot and Bengio (2010), biases at 0 but for
    the forget gate's, which is 1 (Jozefowicz et al. 2015).
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "B S I"], segment_ids: Int[Array, "B S"]) -> BiLSTMOutput:
        """Reads each row in both directions.

        Args:
          x: the sequence.
          segment_ids: 0 at padding, which leaves the state as it is; so the reverse direction begins at the last token.
        """
        rows, units = x.shape[0], self.units
        input_kernel = self.param("input_kernel", _glorot(0, (1, 2)), (x.shape[-1], 2, 4, units))
        recurrent_kernel = self.param("recurrent_kernel", _glorot(1, (0, 2)), (2, units, 4, units))
        bias = self.param("bias", _forget_at_one, (2, 4, units))
        # The input's part of all gates is one product; only the state's waits for the step before.
        gates = jnp.einsum("BSI,IDGU->SDBGU", x.astype(jnp.float32), input_kernel) + bias[:, None]
        real = (segment_ids != 0).T[..., None]

        def step(state: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            (hidden, cell), (gates, real) = state, inputs
            gates = gates + jnp.einsum("DBH,DHGU->DBGU", hidden, recurrent_kernel)
            let_in, keep, new, let_out = (gates[:, :, i] for i in range(4))
            new_cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(let_in) * jnp.tanh(new)
            new_hidden = jax.nn.sigmoid(let_out) * jnp.tanh(new_cell)
            state = jnp.where(real, new_hidden, hidden), jnp.where(real, new_cell, cell)
            return state, jnp.where(real, new_hidden, 0)

        # Direction 1 of step t is at position S - 1 - t.
        inputs = _both_ways(gates[:, 0], gates[:, 1]), _both_ways(real, real)
        zeros = jnp.zeros((2, rows, units))
        (final, _), outputs = jax.lax.scan(step, (zeros, zeros), inputs)
        outputs = _both_ways(outputs[:, 0], outputs[:, 1])
        return BiLSTMOutput(_join(outputs.transpose(2, 0, 1, 3)), _join(final.transpose(1, 0, 2)))


def _both_ways(forward: Shaped[Array, "S *n"], reverse: Shaped[Array, "S *n"]) -> Shaped[Array, "S 2 *n"]:
    return jnp.stack([forward, reverse[::-1]], axis=1)


def _join(x: Float[Array, "*n D U"]) -> Float[Array, "*n DU"]:
    return x.reshape(*x.shape[:-2], -1)


def _glorot(in_axis: int, batch_axis: tuple[int, int]) -> nn.initializers.Initializer:
    """Each gate of each direction is a matrix of its own."""
    return nn.initializers.glorot_uniform(in_axis=in_axis, out_axis=-1, batch_axis=batch_axis)


def _forget_at_one(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Float[Array, "D G U"]:
    return jnp.zeros(shape, dtype).at[:, 1].set(1)
