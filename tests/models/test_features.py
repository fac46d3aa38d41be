import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models import features

HIDDEN = jnp.asarray([[[1.0, -2.0], [3.0, -4.0], [9.0, 9.0]], [[5.0, 6.0], [7.0, 7.0], [8.0, 8.0]]])
SEGMENTS = jnp.asarray([[1, 1, 0], [1, 0, 0]])


def test_chosen_layers_stand_side_by_side():
    layers = jnp.arange(4.0)[:, None, None, None] * jnp.ones((4, 2, 3, 5))
    chosen = features.choose_layers(layers, (-1, 0, 2))
    assert chosen.shape == (2, 3, 3, 5)
    assert chosen[1, 2, :, 4].tolist() == [3, 0, 2]


@pytest.mark.parametrize(("mixing", "expected"), [("concatenation", [1, 2, 30, 40]), ("sum", [31, 42])])
def test_mixing_without_parameters(mixing, expected):
    mix = features.LayerMix(mixing)
    output, variables = mix.init_with_output(jax.random.key(0), jnp.asarray([[[1.0, 2.0], [30.0, 40.0]]]))
    assert output.tolist() == [expected]
    assert not variables


def test_learned_mixing_begins_with_the_mean():
    x = jnp.asarray([[[1.0, 2.0], [30.0, 40.0]]])
    output, variables = features.LayerMix("weighted").init_with_output(jax.random.key(0), x)
    np.testing.assert_allclose(output, [[15.5, 21]], rtol=1e-6)
    assert jax.tree.map(jnp.shape, variables["params"]) == {"weights": (2,), "gamma": ()}
    params = {"weights": jnp.log(jnp.asarray([1.0, 3.0])), "gamma": jnp.asarray(2.0)}
    output = features.LayerMix("weighted").apply({"params": params}, x)
    np.testing.assert_allclose(output, [[2 * (0.25 * 1 + 0.75 * 30), 2 * (0.25 * 2 + 0.75 * 40)]], rtol=1e-6)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("cls", [[1, -2], [5, 6]]), ("mean", [[2, -3], [5, 6]]), ("max", [[3, -2], [5, 6]])],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pooling_leaves_padding_out(pooling, expected, dtype):
    pooled = features.pool(HIDDEN.astype(dtype), SEGMENTS, pooling)
    assert pooled.dtype == jnp.float32
    assert pooled.tolist() == expected


@pytest.mark.parametrize("pooling", features.POOLINGS)
def test_a_row_of_padding_is_finite(pooling):
    value, gradient = jax.value_and_grad(lambda x: features.pool(x, SEGMENTS * 0, pooling).sum())(HIDDEN)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_unknown_names_are_user_errors():
    with pytest.raises(UserError, match=r"model\.pooling: got 'median'; expected one of cls, mean, max"):
        features.pool(HIDDEN, SEGMENTS, "median")
    with pytest.raises(UserError, match=r"model\.mixing: got 'mean'; expected one of concatenation, sum, weighted"):
        features.LayerMix("mean").init(jax.random.key(0), HIDDEN)
