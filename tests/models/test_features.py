import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models import heads

HIDDEN = np.float32([[[1.0, -2.0], [3.0, -4.0], [9.0, 9.0]], [[5.0, 6.0], [7.0, 7.0], [8.0, 8.0]]])
SEGMENTS = np.array([[1, 1, 0], [1, 0, 0]])


def test_choose_layers():
    layers = np.arange(4.0)[:, None, None, None] * np.ones((4, 2, 3, 5))
    chosen = np.asarray(heads.choose_layers(layers, (-1, 0, 2)))
    assert chosen.shape == (2, 3, 3, 5)
    assert chosen[1, 2, :, 4].tolist() == [3, 0, 2]


@pytest.mark.parametrize(("mixing", "expected"), [("concatenation", [1, 2, 30, 40]), ("sum", [31, 42])])
def test_mixing_without_parameters(mixing, expected):
    output, variables = mix(mixing)
    assert output.tolist() == [expected]
    assert not variables


MIXED = np.float32([[[1, 2], [30, 40]]])


def mix(mixing):
    """The mix of two layers, and its parameters."""
    init = jax.jit(heads.LayerMix(mixing).init_with_output)
    return jax.tree.map(np.asarray, init(jax.random.key(0), MIXED))


def test_learned_mixing_is_initially_the_mean():
    output, variables = mix("weighted")
    np.testing.assert_allclose(output, [[15.5, 21]], rtol=1e-6)
    assert jax.tree.map(jnp.shape, variables["params"]) == {"weights": (2,), "gamma": ()}
    params = {"weights": np.log(np.float32([1, 3])), "gamma": np.float32(2)}
    output = jax.jit(heads.LayerMix("weighted").apply)({"params": params}, MIXED)
    np.testing.assert_allclose(output, [[2 * (0.25 * 1 + 0.75 * 30), 2 * (0.25 * 2 + 0.75 * 40)]], rtol=1e-6)


pool = jax.jit(heads.pool, static_argnums=2)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("cls", [[1, -2], [5, 6]]),
        ("mean", [[2, -3], [5, 6]]),
        ("max", [[3, -2], [5, 6]]),
        ("mean_sqrt_len_tokens", [[4 / 2**0.5, -6 / 2**0.5], [5, 6]]),
        ("weightedmean", [[7 / 3, -10 / 3], [5, 6]]),
        ("lasttoken+cls", [[3, -4, 1, -2], [5, 6, 5, 6]]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pooling_excludes_padding(pooling, expected, dtype):
    pooled = pool(HIDDEN.astype(dtype), SEGMENTS, pooling)
    assert pooled.dtype == jnp.float32
    np.testing.assert_allclose(pooled, expected, rtol=1e-6)


@pytest.mark.parametrize("pooling", heads.POOLINGS)
def test_a_row_of_padding_is_finite(pooling):
    value, gradient = jax.jit(jax.value_and_grad(lambda x: pool(x, SEGMENTS * 0, pooling).sum()))(HIDDEN)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_unknown_names_are_user_errors():
    with pytest.raises(UserError, match=r"sentence_pooling: got 'median'; expected one of cls, max, mean"):
        heads.pool(HIDDEN, SEGMENTS, "median")
    with pytest.raises(UserError, match=r"model\.mixing: got 'mean'; expected one of concatenation, sum, weighted"):
        heads.LayerMix("mean").init(jax.random.key(0), HIDDEN)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pool_spans_is_the_mean_over_each_span(dtype):
    starts, lengths = np.array([[0, 2], [1, 0]]), np.array([[2, 1], [1, 0]])
    found = jax.jit(heads.pool_spans)(HIDDEN.astype(dtype), starts, lengths)
    assert found.dtype == jnp.float32
    assert found.tolist() == [[[2, -3], [9, 9]], [[7, 7], [0, 0]]]


def test_layers_out_of_range():
    for chosen in ((), (3,), (-4,), (0, -3)):
        with pytest.raises(
            UserError, match=r"model\.layers: got .*; expected one or more of 0 .* to 2, or -3 to -1, each"
        ):
            heads.check_layers(chosen, 2, "model.layers")
    heads.check_layers((0, 1, -1), 2, "model.layers")
