"""Recurrent layers, bidirectional or left to right.

LSTM (Hochreiter and Schmidhuber 1997), LSTM with layer norms (Ba et al. 2016) and GRU (Cho et al. 2014).

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
    """The output of the bidirectional layers. On the last axis, the U forward units precede the U reverse units."""

    hidden: Array  # [B, S, 2U] float32; 0 at padding
    final: Array  # [B, 2U] float32: the forward state after the last token, the reverse state after the first token


class BiLSTM(nn.Module):
    """One layer of LSTM cells in both directions, in float32.

    Parameters: `input_kernel` [I, D, G, U], `recurrent_kernel` [D, U, G, U] and `bias` [D, G, U], with gates in the
    order input, forget, cell, output, as in torch. Kernels are initialized by Glorot and Bengio (2010), and biases at
    0, except the forget gate's at 1 (Jozefowicz et al. 2015).
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "B S I"], segment_ids: Int[Array, "B S"]) -> BiRNNOutput:
        """Reads each row in both directions.

        Args:
          x: the sequence.
          segment_ids: 0 at padding. Padding does not change the state, so the reverse direction begins at the last
            token.
        """
        rows = x.shape[0]
        units = self.units
        input_kernel = self.param("input_kernel", _glorot(0, (1, 2)), (x.shape[-1], 2, 4, units))
        recurrent_kernel = self.param("recurrent_kernel", _glorot(1, (0, 2)), (2, units, 4, units))
        bias = self.param("bias", _forget_bias_init, (2, 4, units))

        def step(state: tuple[Array, Array], gates: Array) -> tuple[Array, Array]:
            hidden, cell = state
            gates = gates + jnp.einsum("DBH,DHGU->DBGU", hidden, recurrent_kernel)
            input_, forget, new, output = (gates[:, :, i] for i in range(4))
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(input_) * jnp.tanh(new)
            return jax.nn.sigmoid(output) * jnp.tanh(cell), cell

        zeros = jnp.zeros((2, rows, units))
        return _run_directions(step, (zeros, zeros), _input_gates(x, input_kernel, bias), segment_ids)


class LayerNormLSTMCell(nn.Module):
    """A step of an LSTM with layer norms (Ba et al. 2016) over the input's gates, the state's gates and the new cell.

    Parameters: `input` [I, GU], `recurrent` [U, GU], `input_norm`, `recurrent_norm` [GU], `cell_norm` [U], with gates
    in the order input, forget, output, cell, as in BertSum's `rnn.py`. Kernels are initialized by Glorot and Bengio
    (2010).
    """

    units: int

    def setup(self) -> None:
        """Makes the submodules."""
        init = nn.initializers.xavier_uniform()
        self.input, self.recurrent = (Dense(4 * self.units, init, "float32") for _ in range(2))
        self.input_norm, self.recurrent_norm, self.cell_norm = (
            nn.LayerNorm(epsilon=1e-5, use_fast_variance=False) for _ in range(3)
        )

    def __call__(self, x: Float[Array, "*n I"], state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Returns the state after one input."""
        return self.step(self.read(x), state)

    def read(self, x: Float[Array, "*n I"]) -> Float[Array, "*n GU"]:
        """Returns the input's contribution to the gates, which does not depend on the state."""
        return self.input_norm(self.input(x.astype(jnp.float32)))

    def step(self, gates: Float[Array, "B GU"], state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Returns hidden state and cell [B, U] after an input, given the input's gates and the state before it."""
        hidden, cell = state
        gates = gates + self.recurrent_norm(self.recurrent(hidden))
        input_, forget, output, new = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(input_) * jnp.tanh(new)
        return jax.nn.sigmoid(output) * jnp.tanh(self.cell_norm(cell)), cell


class LayerNormBiLSTM(nn.Module):
    """One layer of LSTM cells with layer norms, in both directions, in float32.

    Parameters: `cells`, those of a LayerNormLSTMCell with a leading axis for the two directions.
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "B S I"], segment_ids: Int[Array, "B S"]) -> BiRNNOutput:
        """Reads each row in both directions; see `BiLSTM`."""
        cell = LayerNormLSTMCell(self.units, parent=None)
        zeros = jnp.zeros((2, x.shape[0], self.units))

        def init(key: Array) -> Any:
            return cell.init(key, x[:, 0], (zeros[0], zeros[0]))["params"]

        cells = self.param("cells", lambda key: jax.vmap(init)(jax.random.split(key)))

        def each(method: str, *arguments: Any, axes: int | None = 0) -> Any:
            def one(params: Any, *arguments: Any) -> Any:
                return cell.apply({"params": params}, *arguments, method=method)

            return jax.vmap(one, (0, *(axes for _ in arguments)))(cells, *arguments)

        gates = each("read", x.swapaxes(0, 1), axes=None)
        return _run_directions(
            lambda state, gates: each("step", gates, state),
            (zeros, zeros),
            _stack_directions(gates[0], gates[1]),
            segment_ids,
        )


class BiGRU(nn.Module):
    """One layer of GRU cells (Cho et al. 2014) in both directions, in float32.

    Parameters: `input_kernel` [I, D, G, U], `recurrent_kernel` [D, U, G, U], `bias` and `recurrent_bias` [D, G, U]; see
    `gru`. Kernels are initialized by Glorot and Bengio (2010), biases at 0.
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "B S I"], segment_ids: Int[Array, "B S"]) -> BiRNNOutput:
        """Reads each row in both directions; see `BiLSTM`."""
        rows = x.shape[0]
        units = self.units
        input_kernel = self.param("input_kernel", _glorot(0, (1, 2)), (x.shape[-1], 2, 3, units))
        recurrent_kernel = self.param("recurrent_kernel", _glorot(1, (0, 2)), (2, units, 3, units))
        bias = self.param("bias", nn.initializers.zeros, (2, 3, units))
        recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, (2, 3, units))

        def step(state: tuple[Array], gates: Array) -> tuple[Array]:
            (hidden,) = state
            recurrent = jnp.einsum("DBH,DHGU->DBGU", hidden, recurrent_kernel) + recurrent_bias[:, None]
            return (gru(gates, recurrent, hidden),)

        return _run_directions(step, (jnp.zeros((2, rows, units)),), _input_gates(x, input_kernel, bias), segment_ids)


class GRU(nn.Module):
    """One layer of GRU cells from left to right, in float32, for one or more steps.

    Parameters: `input_kernel` [I, G, U], `recurrent_kernel` [U, G, U], `bias` and `recurrent_bias` [G, U], initialized
    as in `BiGRU`.
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T I"], state: Float[Array, "B U"]) -> Float[Array, "B T U"]:
        """Returns the state after each input; `state` is the initial state."""
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
    """Returns the new state of a GRU, with gates in the order reset, update, new, as in torch.

    As in torch and cuDNN, the reset gate multiplies the state's contribution to the new gate, not the state itself.

    Args:
      gates: the input's contribution to the gates.
      recurrent: the state's contribution to the gates.
      hidden: the state.
    """
    reset, update = (jax.nn.sigmoid(gates[..., i, :] + recurrent[..., i, :]) for i in range(2))
    new = jnp.tanh(gates[..., 2, :] + reset * recurrent[..., 2, :])
    return (1 - update) * new + update * hidden


def _input_gates(
    x: Float[Array, "B S I"], kernel: Float[Array, "I D G U"], bias: Float[Array, "D G U"]
) -> Float[Array, "S D B G U"]:
    """The input's contribution to the gates of all steps and directions, in reading order, as one product."""
    gates = jnp.einsum("BSI,IDGU->SDBGU", x.astype(jnp.float32), kernel) + bias[:, None]
    return _stack_directions(gates[:, 0], gates[:, 1])


def _run_directions(
    step: Callable[[Any, Array], Any],
    state: tuple[Array, ...],
    gates: Float[Array, "S D B *gates"],
    segment_ids: Int[Array, "B S"],
) -> BiRNNOutput:
    """Runs all steps from the initial states [D, B, U]. The first state is the output; padding changes no state."""
    real = (segment_ids != 0).T[..., None]

    def masked(state: tuple[Array, ...], inputs: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        gates, real = inputs
        new = step(state, gates)
        return tuple(jnp.where(real, a, b) for a, b in zip(new, state, strict=True)), jnp.where(real, new[0], 0)

    (final, *_), outputs = jax.lax.scan(masked, state, (gates, _stack_directions(real, real)))
    # Direction 1 of step t is at position S - 1 - t.
    outputs = _stack_directions(outputs[:, 0], outputs[:, 1])
    return BiRNNOutput(_merge_directions(outputs.transpose(2, 0, 1, 3)), _merge_directions(final.transpose(1, 0, 2)))


def _stack_directions(forward: Shaped[Array, "S *n"], reverse: Shaped[Array, "S *n"]) -> Shaped[Array, "S 2 *n"]:
    return jnp.stack([forward, reverse[::-1]], axis=1)


def _merge_directions(x: Float[Array, "*n D U"]) -> Float[Array, "*n DU"]:
    return x.reshape(*x.shape[:-2], -1)


def _glorot(in_axis: int, batch_axis: tuple[int, ...]) -> nn.initializers.Initializer:
    """Initializes each gate of each direction as a separate matrix."""
    return nn.initializers.glorot_uniform(in_axis=in_axis, out_axis=-1, batch_axis=batch_axis)


def _forget_bias_init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Float[Array, "D G U"]:
    return jnp.zeros(shape, dtype).at[:, 1].set(1)
