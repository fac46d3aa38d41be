import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models import features
from bertjax.models.bert import Bert
from tests import published

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
    with pytest.raises(UserError, match=r"sentence_pooling: got 'median'; expected one of cls, mean, max"):
        features.pool(HIDDEN, SEGMENTS, "median")
    with pytest.raises(UserError, match=r"model\.mixing: got 'mean'; expected one of concatenation, sum, weighted"):
        features.LayerMix("mean").init(jax.random.key(0), HIDDEN)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_units_are_the_means_of_their_tokens(dtype):
    starts, lengths = jnp.asarray([[0, 2], [1, 0]]), jnp.asarray([[2, 1], [1, 0]])
    found = features.pool_spans(HIDDEN.astype(dtype), starts, lengths)
    assert found.dtype == jnp.float32
    assert found.tolist() == [[[2, -3], [9, 9]], [[7, 7], [0, 0]]]


@pytest.mark.parametrize("mixing", features.MIXINGS)
def test_features_of_bert(mixing):
    ids = jnp.asarray([[2, 6, 7, 3, 0], [2, 8, 9, 10, 3]])
    inputs = ids, ids % 2, (ids != 0).astype(jnp.int32)
    variables = {"params": {"bert": published.params()}}
    bert = Bert(published.CONFIG, use_pooler=True)
    options = {"deterministic": True, "return_attention": False, "return_layers": True}
    layers = bert.apply({"params": published.params()}, *inputs, **options).layers
    if mixing == "weighted":
        variables["params"]["mix"] = {"weights": jnp.zeros(2), "gamma": jnp.asarray(2.0)}
    found = features.BertFeatures(published.CONFIG, (1, -1), mixing).apply(variables, *inputs)
    expected = jnp.concatenate([layers[1], layers[4]], axis=-1) if mixing == "concatenation" else layers[1] + layers[4]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_layers_that_are_not_there():
    for chosen in ((), (3,), (-4,), (0, -3)):
        with pytest.raises(
            UserError, match=r"model\.layers: got .*; expected one or more of 0 .* to 2, or -3 to -1, each"
        ):
            features.check_layers(chosen, 2, "model.layers")
    features.check_layers((0, 1, -1), 2, "model.layers")
