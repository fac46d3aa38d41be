"""Recurrent layers: LSTM (Hochreiter and Schmidhuber 1997), with norms too (Ba et al. 2016), and GRU (Cho et al.
2014), in both directions or one.

Shapes: B batch, S or T length, I input size, U units of a direction, D = 2 directions, G gates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int, Shaped

from bertjax.models.layers import Dense


class BiRNNOutput(NamedTuple):
    """What both networks return. The first U of the last axis are of the forward direction, the others of the other."""

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
    def __call__(self, x: Float[Array, "B S I"], segment_ids: Int[Array, "B S"]) -> BiRNNOutput:
        """Reads each row in both directions.

        Args:
          x: the sequence.
          segment_ids: 0 at padding, which leaves the state as it is; so the reverse direction begins at the last token.
        """
        rows, units = x.shape[0], self.units
        input_kernel = self.param("input_kernel", _glorot(0, (1, 2)), (x.shape[-1], 2, 4, units))
        recurrent_kernel = self.param("recurrent_kernel", _glorot(1, (0, 2)), (2, units, 4, units))
        bias = self.param("bias", _forget_at_one, (2, 4, units))

        def step(state: tuple[Array, Array], gates: Array) -> tuple[Array, Array]:
            hidden, cell = state
            gates = gates + jnp.einsum("DBH,DHGU->DBGU", hidden, recurrent_kernel)
            let_in, keep, new, let_out = (gates[:, :, i] for i in range(4))
            cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(let_in) * jnp.tanh(new)
            return jax.nn.sigmoid(let_out) * jnp.tanh(cell), cell

        zeros = jnp.zeros((2, rows, units))
        return _read(step, (zeros, zeros), _input_gates(x, input_kernel, bias), segment_ids)


class LayerNormLSTMCell(nn.Module):
    """A step of an LSTM with norms (Ba et al. 2016) over all gates of the input, all of the state, and the new cell.

    Parameters: `input` [I, GU], `recurrent` [U, GU], `input_norm`, `recurrent_norm` [GU], `cell_norm` [U]; the gates in
    the order input, forget, output, cell, as in BertSum's `rnn.py`. Kernels start by Glorot and Bengio (2010).
    """

    units: int

    def setup(self) -> None:
        """Makes the parts."""
        init = nn.initializers.xavier_uniform()
        self.input, self.recurrent = (Dense(4 * self.units, init, "float32") for _ in range(2))
        self.input_norm, self.recurrent_norm, self.cell_norm = (
            nn.LayerNorm(epsilon=1e-5, use_fast_variance=False) for _ in range(3)
        )

    def __call__(self, x: Float[Array, "*n I"], state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Returns the state after one input."""
        return self.step(self.read(x), state)

    def read(self, x: Float[Array, "*n I"]) -> Float[Array, "*n GU"]:
        """The input's part of the gates, which needs no state."""
        return self.input_norm(self.input(x.astype(jnp.float32)))

    def step(self, gates: Float[Array, "B GU"], state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Returns hidden state and cell [B, U] after an input, from those before it."""
        hidden, cell = state
        gates = gates + self.recurrent_norm(self.recurrent(hidden))
        let_in, keep, let_out, new = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(let_in) * jnp.tanh(new)
        return jax.nn.sigmoid(let_out) * jnp.tanh(self.cell_norm(cell)), cell


class LayerNormBiLSTM(nn.Module):
    """One layer of LSTM cells with norms, in both directions, in float32.

    Parameters: `cells`, a LayerNormLSTMCell's with a leading axis of the two directions on each.
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "B S I"], segment_ids: Int[Array, "B S"]) -> BiRNNOutput:
        """Reads each row in both directions; arguments as those of `BiLSTM`."""
        cell, zeros = LayerNormLSTMCell(self.units, parent=None), jnp.zeros((2, x.shape[0], self.units))

        def init(key: Array) -> Any:
            return cell.init(key, x[:, 0], (zeros[0], zeros[0]))["params"]

        cells = self.param("cells", lambda key: jax.vmap(init)(jax.random.split(key)))

        def each(method: str, *arguments: Any, axes: int | None = 0) -> Any:
            def one(params: Any, *arguments: Any) -> Any:
                return cell.apply({"params": params}, *arguments, method=method)

            return jax.vmap(one, (0, *(axes for _ in arguments)))(cells, *arguments)

        gates = each("read", x.swapaxes(0, 1), axes=None)
        return _read(
            lambda state, gates: each("step", gates, state),
            (zeros, zeros),
            _both_ways(gates[0], gates[1]),
            segment_ids,
        )


class BiGRU(nn.Module):
    """One layer of GRU cells (Cho et al. 2014) in both directions, in float32.

    Parameters: `input_kernel` [I, D, G, U], `recurrent_kernel` [D, U, G, U], `bias` and `recurrent_bias` [D, G, U]; see
    `gru`. Kernels start by Glorot and Bengio (2010), biases at 0.
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "B S I"], segment_ids: Int[Array, "B S"]) -> BiRNNOutput:
        """Reads each row in both directions; arguments as those of `BiLSTM`."""
        rows, units = x.shape[0], self.units
        input_kernel = self.param("input_kernel", _glorot(0, (1, 2)), (x.shape[-1], 2, 3, units))
        recurrent_kernel = self.param("recurrent_kernel", _glorot(1, (0, 2)), (2, units, 3, units))
        bias = self.param("bias", nn.initializers.zeros, (2, 3, units))
        recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, (2, 3, units))

        def step(state: tuple[Array], gates: Array) -> tuple[Array]:
            (hidden,) = state
            recurrent = jnp.einsum("DBH,DHGU->DBGU", hidden, recurrent_kernel) + recurrent_bias[:, None]
            return (gru(gates, recurrent, hidden),)

        return _read(step, (jnp.zeros((2, rows, units)),), _input_gates(x, input_kernel, bias), segment_ids)


class GRU(nn.Module):
    """One layer of GRU cells from left to right, in float32, one step or many.

    Parameters: `input_kernel` [I, G, U], `recurrent_kernel` [U, G, U], `bias` and `recurrent_bias` [G, U]; they start
    as those of `BiGRU`.
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T I"], state: Float[Array, "B U"]) -> Float[Array, "B T U"]:
        """Returns the states after each input; `state` is that before the first."""
        units = self.units
        input_kernel = self.param("input_kernel", _glorot(0, (1,)), (x.shape[-1], 3, units))
        recurrent_kernel = self.param("recurrent_kernel", _glorot(0, (1,)), (units, 3, units))
        bias = self.param("bias", nn.initializers.zeros, (3, units))
        recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, (3, units))
        gates = jnp.einsum("BTI,IGU->TBGU", x.astype(jnp.float32), input_kernel) + bias

        def step(hidden: Array, gates: Array) -> tuple[Array, Array]:
            recurrent = jnp.einsum("BH,HGU->BGU", hidden, recurrent_kernel) + recurrent_bias
            hidden = gru(gates, recurrent, hidden)
            return hidden, hidden

        _, states = jax.lax.scan(step, state, gates)
        return states.swapaxes(0, 1)


def gru(
    gates: Float[Array, "*n G U"], recurrent: Float[Array, "*n G U"], hidden: Float[Array, "*n U"]
) -> Float[Array, "*n U"]:
    """The new state of a GRU, from the input's and the old state's part of its gates: reset, update and new, as torch.

    As in torch and cuDNN, the reset gate falls on the state's part of the new one, not on the state before its product.
    """
    reset, keep = (jax.nn.sigmoid(gates[..., i, :] + recurrent[..., i, :]) for i in range(2))
    new = jnp.tanh(gates[..., 2, :] + reset * recurrent[..., 2, :])
    return (1 - keep) * new + keep * hidden


def _input_gates(
    x: Float[Array, "B S I"], kernel: Float[Array, "I D G U"], bias: Float[Array, "D G U"]
) -> Float[Array, "S D B G U"]:
    """The input's part of all gates, in reading order: one product; only the state's part waits for the step before."""
    gates = jnp.einsum("BSI,IDGU->SDBGU", x.astype(jnp.float32), kernel) + bias[:, None]
    return _both_ways(gates[:, 0], gates[:, 1])


def _read(
    step: Callable[[Any, Array], Any],
    state: tuple[Array, ...],
    gates: Float[Array, "S D B *gates"],
    segment_ids: Int[Array, "B S"],
) -> BiRNNOutput:
    """Sends states [D, B, U], of which the first is what comes out, through all steps, padding changing nothing."""
    real = (segment_ids != 0).T[..., None]

    def masked(state: tuple[Array, ...], inputs: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        gates, real = inputs
        new = step(state, gates)
        return tuple(jnp.where(real, a, b) for a, b in zip(new, state, strict=True)), jnp.where(real, new[0], 0)

    (final, *_), outputs = jax.lax.scan(masked, state, (gates, _both_ways(real, real)))
    # Direction 1 of step t is at position S - 1 - t.
    outputs = _both_ways(outputs[:, 0], outputs[:, 1])
    return BiRNNOutput(_join(outputs.transpose(2, 0, 1, 3)), _join(final.transpose(1, 0, 2)))


def _both_ways(forward: Shaped[Array, "S *n"], reverse: Shaped[Array, "S *n"]) -> Shaped[Array, "S 2 *n"]:
    return jnp.stack([forward, reverse[::-1]], axis=1)


def _join(x: Float[Array, "*n D U"]) -> Float[Array, "*n DU"]:
    return x.reshape(*x.shape[:-2], -1)


def _glorot(in_axis: int, batch_axis: tuple[int, ...]) -> nn.initializers.Initializer:
    """Each gate of each direction is a matrix of its own."""
    return nn.initializers.glorot_uniform(in_axis=in_axis, out_axis=-1, batch_axis=batch_axis)


def _forget_at_one(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Float[Array, "D G U"]:
    return jnp.zeros(shape, dtype).at[:, 1].set(1)
