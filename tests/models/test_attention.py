import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.attention.layer import MultiHeadAttention
from bertjax.models.attention.mask import Tokens, as_array, make_cross_mask, make_mask
from bertjax.models.encoder_decoder import EncoderDecoderConfig
from bertjax.models.transformer_config import LayerKind
from tests.random_params import random_params

SIZES = {"num_layers": 1, "num_decoder_layers": 1, "intermediate_size": 1, "max_positions": 1}
TABLES = {"source_vocab_size": 1, "target_vocab_size": 1, "share_embeddings": False, "tie_output": False}
PLAIN = LayerKind()
LAYERS = {**SIZES, **TABLES, "dropout": 0.0, "activation": "relu", "norm_eps": 1e-6, "initializer_range": 0.5}


class WithValuesOf5(EncoderDecoderConfig):
    head_value_size = 5


def attention(
    dropout=0.0, dtype="float32", num_heads=3, backend="xla", kind=PLAIN, config=EncoderDecoderConfig, **sizes
):
    sizes = {"hidden_size": 12, "num_heads": num_heads, "dtype": dtype, **sizes}
    return MultiHeadAttention(config(**LAYERS, **sizes, attention_dropout=dropout, attention_backend=backend), kind)


def inputs(batch=2, queries=5, keys=7, hidden=12):
    rng = np.random.RandomState(0)
    x, source = (rng.randn(batch, length, hidden).astype(np.float32) for length in (queries, keys))
    mask = rng.rand(batch, 1, queries, keys) < 0.6
    mask[..., 0] = True
    return x, source, mask


@functools.cache
def init(module):
    x, source, mask = inputs()
    options = {"deterministic": True, "return_attention": True}
    return random_params(lambda key: module.init(key, x, source, mask, **options), scale=0.4)


@functools.partial(jax.jit, static_argnums=0)
def apply(module, variables, x, source, mask, key=None, bias=None):
    rngs = {} if key is None else {"dropout": key}
    options = {"deterministic": key is None, "return_attention": True, "rngs": rngs}
    output, weights = module.apply(variables, x, source, mask, bias, **options)
    return output.total(), weights


def run(module, *inputs, **options):
    """Returns output and weights."""
    return tuple(map(np.asarray, apply(module, init(module), *inputs, **options)))


def shared(y, num_heads, copies):
    """Keys or values in which query head n has a copy of head n // copies."""
    heads = np.split(y, num_heads // copies, axis=-1)
    return np.concatenate([heads[n // copies] for n in range(num_heads)], axis=-1)


def numpy_attention(params, x, source, mask, num_heads, groups, bias):
    """Attention in NumPy, one query and head at a time, over the allowed keys only."""

    def project(name, y):
        return y @ np.asarray(params[name]["kernel"]) + np.asarray(params[name]["bias"])

    query, key, value = project("query", x), project("key", source), project("value", source)
    key, value = (shared(y, num_heads, num_heads // groups) for y in (key, value))
    context = np.zeros((*x.shape[:2], value.shape[-1]))
    weights = np.zeros((x.shape[0], num_heads, x.shape[1], source.shape[1]))
    size, key_size = value.shape[-1] // num_heads, query.shape[-1] // num_heads
    for b, n, s in np.ndindex(*weights.shape[:3]):
        head, of_key = slice(n * size, (n + 1) * size), slice(n * key_size, (n + 1) * key_size)
        allowed = np.flatnonzero(np.broadcast_to(mask, weights.shape)[b, n, s])
        scores = [query[b, s, of_key] @ key[b, t, of_key] / np.sqrt(key_size) + bias[0, n, s, t] for t in allowed]
        score = np.exp(scores)
        weights[b, n, s, allowed] = score / score.sum()
        context[b, s, head] = weights[b, n, s] @ value[b, :, head]
    return project("output", context), weights


@pytest.mark.parametrize(
    ("num_heads", "groups", "key_size", "config"),
    [(1, 1, 0, EncoderDecoderConfig), (3, 1, 2, EncoderDecoderConfig), (4, 2, 7, WithValuesOf5)],
)
def test_cross_attention_matches_a_loop_over_allowed_keys(num_heads, groups, key_size, config):
    """With a bias of the scores, keys and values that query heads share, and those of other sizes."""
    sizes = {"num_heads": num_heads, "num_key_value_heads": groups, "key_size": key_size}
    module, bias = attention(config=config, **sizes), np.random.randn(1, num_heads, 5, 7)
    params = init(module)["params"]
    assert params["query"]["kernel"].shape == (12, num_heads * key_size or 12)
    output, weights = run(module, *inputs(), bias=bias)
    expected = numpy_attention(params, *inputs(), num_heads, groups, bias)
    np.testing.assert_allclose(output, expected[0], atol=1e-5)
    np.testing.assert_allclose(weights, expected[1], atol=1e-6)


def test_returned_weights_have_no_dropout():
    module = attention(dropout=0.5)
    still, weights = run(attention(), *inputs())
    np.testing.assert_array_equal(run(module, *inputs())[0], still)
    # The mean equals the value without dropout within 4.5 standard errors, for each of 120 numbers.
    draw = jax.jit(jax.vmap(lambda key: apply(module, init(module), *inputs(), key)))
    draws, each_weights = map(np.asarray, draw(jax.random.split(jax.random.key(2), 2000)))
    np.testing.assert_allclose(each_weights, np.broadcast_to(weights, each_weights.shape), atol=1e-6)
    assert not np.allclose(still, draws[0], atol=1e-3)
    assert not np.allclose(draws[0], draws[1], atol=1e-3)
    standard_error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - still) < 4.5 * standard_error).all()
    assert (standard_error < 0.15).all()


def test_bfloat16_keeps_parameters_and_weights_in_float32():
    x, source, mask = inputs()
    half = attention(dtype="bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(init(half))} == {"float32"}
    expected, _ = run(attention(), x, source, mask)
    output, weights = run(half, x.astype(jnp.bfloat16), source.astype(jnp.bfloat16), mask)
    assert (output.dtype, weights.dtype) == (jnp.bfloat16, jnp.float32)
    error = np.linalg.norm(output.astype(np.float32) - expected) / np.linalg.norm(expected)
    assert 1e-6 < error < 0.02


@jax.jit
def masks(segment_ids):
    return {name: as_array(make_mask(segment_ids, name)) for name in ("both", "left_to_right", "right_to_left")}


def test_make_mask():
    segment_ids = np.array([[1, 1, 1], [1, 1, 0], [1, 2, 2]])
    expected = {
        "both": [
            [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
            [[1, 1, 0], [1, 1, 0], [1, 1, 0]],
            [[1, 0, 0], [0, 1, 1], [0, 1, 1]],
        ],
        "left_to_right": [
            [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
            [[1, 0, 0], [1, 1, 0], [1, 1, 0]],
            [[1, 0, 0], [0, 1, 0], [0, 1, 1]],
        ],
        "right_to_left": [
            [[1, 1, 1], [0, 1, 1], [0, 0, 1]],
            [[1, 1, 0], [0, 1, 0], [0, 0, 0]],
            [[1, 0, 0], [0, 1, 1], [0, 0, 1]],
        ],
    }
    found = masks(segment_ids)
    for direction, rows in expected.items():
        mask = found[direction]
        assert mask.dtype == bool
        np.testing.assert_array_equal(mask, np.array(rows, bool)[:, None])


def test_make_cross_mask():
    """Tokens attend to tokens of the same segment; padding attends to all tokens."""
    cross_mask = jax.jit(functools.partial(make_cross_mask, is_packed=True))
    mask = as_array(cross_mask(np.array([[1, 2, 0], [1, 1, 1]]), np.array([[1, 1, 2, 0], [1, 0, 0, 0]])))
    assert mask.dtype == bool
    expected = [[[1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 0]], [[1, 0, 0, 0]] * 3]
    np.testing.assert_array_equal(mask, np.array(expected, bool)[:, None])


def test_a_mask_has_segments_and_positions_of_its_tokens():
    segments, positions = np.array([[1, 1, 2, 2, 0]]), np.array([[0, 1, 0, 1, 0]])
    mask = make_mask(segments, "both", positions)
    jax.tree.map(np.testing.assert_array_equal, mask.keys, Tokens(segments, positions))
    some = mask.of_queries(np.array([[3, 0]]))
    jax.tree.map(np.testing.assert_array_equal, some.queries, Tokens(np.array([[2, 1]]), np.array([[1, 0]])))
    np.testing.assert_array_equal(as_array(some)[0, 0], [[0, 0, 1, 1, 0], [1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(make_mask(segments, "both").queries.positions, [[0, 1, 2, 3, 4]])


def test_dropout_of_the_weights_differs_between_rows_and_heads():
    module = attention(dropout=0.5)
    x, source, mask = inputs()
    one_row = np.repeat(x[:1], 2, axis=0), np.repeat(source[:1], 2, axis=0), np.ones_like(mask)
    first, second = run(module, *one_row, key=jax.random.key(0))[0]
    assert np.abs(first - second).max() > 1e-2
    # With the same projections in each head, heads differ only in their dropout.
    params = {name: dict(part) for name, part in init(module)["params"].items()}
    for name in ("query", "key", "value"):
        params[name] = {k: np.concatenate([leaf[..., :4]] * 3, axis=-1) for k, leaf in params[name].items()}
    params["output"] = {"kernel": np.eye(12, dtype=np.float32), "bias": np.zeros(12, np.float32)}
    output = np.asarray(apply(module, {"params": params}, *one_row, jax.random.key(0))[0])
    heads = output.reshape(*output.shape[:2], 3, 4)
    assert np.abs(heads[:, :, 0] - heads[:, :, 1]).max() > 1e-2
    assert np.abs(heads[:, :, 1] - heads[:, :, 2]).max() > 1e-2
