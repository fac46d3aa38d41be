"""The BiLSTM compared with a loop in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models.recurrent import BiLSTM
from tests.random_params import random_params

UNITS, SIZE, LENGTHS, LENGTH = 3, 5, (4, 6, 1), 6
REAL = np.arange(LENGTH) < np.array(LENGTHS)[:, None]


def inputs(seed=0):
    return np.random.default_rng(seed).standard_normal((len(LENGTHS), LENGTH, SIZE)).astype(np.float32)


@functools.cache
def make():
    return random_params(BiLSTM(UNITS).init, inputs(), REAL.astype(np.int32), scale=0.6)["params"]


@jax.jit
def run(params, x, real):
    return BiLSTM(UNITS).apply({"params": params}, x, jnp.asarray(real, jnp.int32))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_direction(params, direction, row):
    """The states after each input of one row, in float64 and in reading order."""
    kernel, recurrent, bias = (
        np.asarray(params[name], np.float64) for name in ("input_kernel", "recurrent_kernel", "bias")
    )
    hidden, cell, states = np.zeros(UNITS), np.zeros(UNITS), []
    for x in row if direction == 0 else row[::-1]:
        let_in, keep, new, let_out = (
            x @ kernel[:, direction, gate] + hidden @ recurrent[direction, :, gate] + bias[direction, gate]
            for gate in range(4)
        )
        cell = sigmoid(keep) * cell + sigmoid(let_in) * np.tanh(new)
        hidden = sigmoid(let_out) * np.tanh(cell)
        states.append(hidden)
    return states


def test_bilstm_matches_numpy():
    output = run(make(), inputs(), REAL)
    expected, final = np.zeros((len(LENGTHS), LENGTH, 2 * UNITS)), []
    for row, (x, length) in enumerate(zip(inputs().astype(np.float64), LENGTHS, strict=True)):
        forward, reverse = (numpy_direction(make(), direction, x[:length]) for direction in (0, 1))
        expected[row, :length, :UNITS], expected[row, :length, UNITS:] = forward, reverse[::-1]
        final.append(np.concatenate([forward[-1], reverse[-1]]))
    np.testing.assert_allclose(output.hidden, expected, atol=1e-6)
    np.testing.assert_allclose(output.final, final, atol=1e-6)


def test_padding_does_not_change_outputs_and_gets_no_gradient():
    x = inputs()
    other = np.where(REAL[..., None], x, 1e3).astype(np.float32)
    jax.tree.map(np.testing.assert_array_equal, run(make(), other, REAL), run(make(), x, REAL))
    gradient = jax.jit(jax.grad(lambda x: sum(jnp.sum(y**2) for y in run(make(), x, REAL))))(other)
    assert (np.abs(gradient).max(-1) > 0).tolist() == REAL.tolist()


def test_a_row_of_padding_is_zero():
    output = run(make(), inputs(), np.zeros_like(REAL))
    assert not any(np.asarray(leaf).any() for leaf in output)


def test_initial_parameters():
    init = jax.jit(BiLSTM(256).init)
    params = init(jax.random.key(0), np.zeros((1, 1, 64), np.float32), np.ones((1, 1), np.int32))["params"]
    params = jax.tree.map(np.asarray, params)
    assert {name: leaf.shape for name, leaf in params.items()} == {
        "input_kernel": (64, 2, 4, 256),
        "recurrent_kernel": (2, 256, 4, 256),
        "bias": (2, 4, 256),
    }
    for name, limit in (("input_kernel", (6 / (64 + 256)) ** 0.5), ("recurrent_kernel", (6 / 512) ** 0.5)):
        assert 0.99 * limit < np.abs(params[name]).max() <= limit * (1 + 1e-6)
    assert np.unique(params["bias"][:, 1]).tolist() == [1]
    assert np.unique(np.delete(params["bias"], 1, axis=1)).tolist() == [0]


def test_bfloat16_input_is_computed_in_float32():
    output = jax.eval_shape(run, make(), inputs().astype(jnp.bfloat16), REAL)
    assert {leaf.dtype.name for leaf in output} == {"float32"}
