import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import part
from bertjax.models.encoder import Encoder
from bertjax.models.transformer import ACTIVATIONS, TransformerLayer
from bertjax.models.transformer_config import TransformerConfig, dense
from tests.models.test_heads import CONFIG as BERT
from tests.random_params import random_params
from tests.trees import distance

CONFIG = dataclasses.replace(part(TransformerConfig, BERT), num_heads=2, norm_eps=1e-3)
FORMS = [(scan, remat) for scan in (False, True) for remat in ("none", "dots", "norms", "full")]


def inputs(config):
    x = np.random.default_rng(7).standard_normal((2, 6, config.hidden_size))
    mask = np.ones((2, 1, 6, 6), bool)
    mask[1, :, :, 4:] = False
    return x.astype(config.dtype), mask


@functools.cache
def init(norm):
    """Random parameters of an encoder, including scales and biases; used for scanned and unrolled layers."""
    config = dataclasses.replace(CONFIG, norm=norm)
    return random_params(functools.partial(make.__wrapped__, config), scale=0.3)


def layer_params(variables, index):
    return jax.tree.map(lambda leaf: leaf[index], variables["params"]["layers"])


def zeros(variables):
    return jax.tree.map(np.zeros_like, variables["params"])


@functools.partial(jax.jit, static_argnums=0, static_argnames=("deterministic", "return_attention", "return_layers"))
def run(config, variables, key=None, x=None, deterministic=True, return_attention=False, **returns):
    default, mask = inputs(config)
    rngs = {} if key is None else {"dropout": key}
    returns |= {"deterministic": deterministic, "return_attention": return_attention}
    return Encoder(config).apply(variables, default if x is None else x, mask, rngs=rngs, **returns)


@functools.partial(jax.jit, static_argnums=0)
def run_layer(config, params, x, mask, key=None):
    rngs = {} if key is None else {"dropout": key}
    options = {"deterministic": key is None, "return_attention": False, "rngs": rngs}
    return TransformerLayer(config, cross=False).apply({"params": params}, x, mask, **options)[0]


def numpy_layer(config, params, x, mask):
    """The layer in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def dense(p, y):
        return y @ p["kernel"] + p["bias"]

    def norm(p, y):
        centered = y - y.mean(-1, keepdims=True)
        variance = (centered**2).mean(-1, keepdims=True)
        return centered / np.sqrt(variance + config.norm_eps) * p["scale"] + p["bias"]

    def activate(y):
        if config.activation == "relu":
            return np.maximum(y, 0)
        if config.activation == "silu":
            return y / (1 + np.exp(-y))
        if config.activation == "gelu":
            return y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
        return 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))

    def attend(y):
        def heads(p):
            return np.moveaxis(dense(p, y).reshape(*y.shape[:2], config.num_heads, -1), 2, 1)

        query, key, value = (heads(params["attention"][name]) for name in ("query", "key", "value"))
        score = query @ np.swapaxes(key, 2, 3) / math.sqrt(query.shape[-1])
        weight = np.where(mask, np.exp(score), 0)
        weight /= weight.sum(-1, keepdims=True)
        return dense(params["attention"]["output"], np.moveaxis(weight @ value, 1, 2).reshape(y.shape))

    def feed_forward(y):
        return dense(params["output"], activate(dense(params["intermediate"], y)))

    if config.norm == "pre":
        x = x + attend(norm(params["attention_norm"], x))
        return x + feed_forward(norm(params["output_norm"], x))
    x = norm(params["attention_norm"], x + attend(x))
    return norm(params["output_norm"], x + feed_forward(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_activations_equal_those_of_jax(dtype):
    """Within one rounding, where differentiating in bfloat16 rounds each step."""
    x, tolerance = jnp.linspace(-6, 6, 1001), 2e-6 if dtype == "float32" else 2**-8
    formulas = {
        "gelu": functools.partial(jax.nn.gelu, approximate=False),
        "gelu_tanh": jax.nn.gelu,
        "silu": jax.nn.silu,
    }
    for name, formula in formulas.items():
        rounded = x.astype(dtype)
        found = jax.vmap(jax.grad(ACTIVATIONS[name]))(rounded)
        expected = jax.vmap(jax.grad(formula))(jnp.float32(rounded))
        assert found.dtype == dtype
        np.testing.assert_allclose(np.float32(found), expected, atol=tolerance)


@pytest.mark.parametrize(
    ("norm", "activation"), [("post", "gelu"), ("post", "relu"), ("pre", "gelu_tanh"), ("pre", "silu")]
)
def test_the_encoder_equals_float64_numpy(norm, activation):
    config = dataclasses.replace(CONFIG, norm=norm, activation=activation)
    variables = init(norm)
    x, mask = inputs(config)
    expected = x.astype(np.float64)
    for i in range(config.num_layers):
        expected = numpy_layer(config, layer_params(variables, i), expected, mask)
    if norm == "pre":
        final = variables["params"]["final_norm"]
        centered = expected - expected.mean(-1, keepdims=True)
        scale = np.sqrt((centered**2).mean(-1, keepdims=True) + config.norm_eps)
        expected = centered / scale * final["scale"] + final["bias"]
    np.testing.assert_allclose(run(config, variables).hidden, expected, atol=5e-5)


def test_scanned_unrolled_and_rematerialized_agree():
    base, variables = dataclasses.replace(CONFIG, norm="pre", dropout=0.3), init("pre")
    results = []
    for scan, remat in FORMS:
        config = dataclasses.replace(base, scan_layers=scan, remat=remat)

        def loss(variables, config=config):
            key = jax.random.key(3, impl="rbg")  # compiles faster than threefry
            output, weights, _ = run(config, variables, key, deterministic=False, return_attention=True)
            return jnp.sum(output**3), (output, weights)

        (_, outputs), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)
        assert outputs[1].shape == (2, 2, 2, 6, 6)
        results.append((outputs, grads))
    for outputs, grads in results[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), outputs, results[0][0])
        assert distance(grads, results[0][1]) < 1e-5


@pytest.mark.parametrize(("norm", "scan", "remat"), [("post", True, "full"), ("pre", False, "none")])
def test_outputs_of_all_layers(norm, scan, remat):
    """Applying a layer to one output gives the next. Returning all outputs does not change the result."""
    base, variables = dataclasses.replace(CONFIG, norm=norm), init(norm)
    x, mask = inputs(base)
    plain = run(base, variables)
    assert plain.layers is None
    output = run(dataclasses.replace(base, scan_layers=scan, remat=remat), variables, return_layers=True)
    layers = np.asarray(output.layers)
    assert layers.shape == (3, *x.shape)
    np.testing.assert_allclose(layers[0], x, atol=1e-6)
    np.testing.assert_allclose(layers[-1], output.hidden, atol=1e-6)
    np.testing.assert_allclose(output.hidden, plain.hidden, atol=1e-5)
    expected = numpy_layer(base, layer_params(variables, 0), layers[0].astype(np.float64), mask)
    np.testing.assert_allclose(layers[1], expected, atol=2e-5)


@functools.partial(jax.jit, static_argnums=0)
def make(config, key):
    x, mask = inputs(config)
    return Encoder(config).init(key, x, mask, deterministic=True, return_attention=False)


def test_parameters_are_stacked_equally_with_all_options():
    other = dataclasses.replace(CONFIG, scan_layers=False, remat="full")
    params, reference = (make(config, jax.random.key(5)) for config in (other, CONFIG))
    jax.tree.map(np.testing.assert_array_equal, params, reference)
    kernel = params["params"]["layers"]["attention"]["query"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1])


DROPPING = dataclasses.replace(CONFIG, norm="pre", dropout=0.5)


def test_each_layer_draws_its_own_dropout():
    """With x = 0 and only output biases of 1, the sum of two layers' dropout is 0, 1 or 2 units.

    With equal draws in both layers, it would be 0 or 2.
    """
    params = zeros(init("pre"))
    params["final_norm"]["scale"][:] = 1
    params["layers"]["output"]["bias"][:] = 1
    x = np.zeros((2, 6, 12), np.float32)
    output = run(DROPPING, {"params": params}, jax.random.key(0), x, deterministic=False).hidden
    assert len(np.unique(np.round(output[0, 0], 4))) == 3


def test_kernels_are_initialized_truncated_at_two_standard_deviations():
    layer = dense(dataclasses.replace(CONFIG, initializer_range=0.02), 400)
    params = jax.jit(layer.init)(jax.random.key(0), np.zeros((1, 300), np.float32))["params"]
    kernel = np.asarray(params["kernel"])
    assert 0.0399 < np.abs(kernel).max() <= 0.04
    # The standard deviation of a normal variable truncated at 2 is 0.87962566.
    np.testing.assert_allclose(kernel.std(), 0.02 * 0.87962566, rtol=0.01)
    assert (np.asarray(params["bias"]) == 0).all()


def test_activation_dropout_drops_activations_of_the_feed_forward_network():
    """With x = 0, activations of one, and one output that sums them, the sum counts the kept activations."""
    config = dataclasses.replace(CONFIG, norm="pre", activation="relu", activation_dropout=0.5)
    params = jax.tree.map(np.zeros_like, layer_params(init("pre"), 0))
    params["intermediate"]["bias"][:] = 1
    params["output"]["kernel"][:, 0] = 1
    x, mask = np.zeros((1, 50, 12), np.float32), np.ones((1, 1, 50, 50), bool)
    output = np.asarray(run_layer(config, params, x, mask, jax.random.key(0)))
    kept = output[0, :, 0] / 2
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-5)
    assert (len(np.unique(kept)) > 3, 8 < kept.mean() < 12, output[0, :, 1:].any()) == (True, True, False)
