"""BertSumAbs: its decoder token by token against the whole, and what a document must not depend on."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bertjax.errors import UserError, build
from bertjax.models.bertsum_abs import BertSumAbs, BertSumAbsConfig, copy_embeddings
from bertjax.models.losses import cross_entropy
from tests.models.stepping import check_steps
from tests.models.test_fine_tuning import CONFIG

VALUES = {"decoder_layers": 2, "decoder_heads": 3, "decoder_intermediate": 14, "decoder_dropout": 0.1}
HEAD = BertSumAbsConfig(**VALUES)
MODEL = BertSumAbs(CONFIG, HEAD)
SOURCE_SEGMENTS = jnp.asarray(np.arange(8) < np.array([[8], [5]]), jnp.int32)
TARGET_SEGMENTS = jnp.asarray(np.arange(5) < np.array([[5], [3]]), jnp.int32)


def batch(padding=0):
    random = np.random.default_rng(0)
    source, target = (random.integers(1, 31, shape).astype(np.int32) for shape in ((2, 8), (2, 5)))
    return {
        "source_ids": jnp.where(SOURCE_SEGMENTS == 1, source, padding),
        "source_segments": SOURCE_SEGMENTS,
        "target_ids": jnp.where(TARGET_SEGMENTS == 1, target, padding),
        "target_segments": TARGET_SEGMENTS,
        "token_type_ids": jnp.where(SOURCE_SEGMENTS == 1, jnp.arange(8) // 3 % 2, padding and 1),
    }


@functools.cache
def params():
    """Parameters with nothing left at 0 or 1."""
    init = jax.jit(functools.partial(MODEL.init, deterministic=True, return_attention=False))
    leaves, tree = jax.tree.flatten(init(jax.random.key(0), **batch())["params"])
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten([x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)])


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, inputs, key=None):
    rngs = {} if key is None else {"dropout": key}
    return model.apply(
        {"params": params}, **inputs, deterministic=key is None, return_attention=False, rngs=rngs
    ).logits


@pytest.mark.parametrize("num_beams", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_token_by_token(num_beams):
    inputs = batch()
    check_steps(MODEL, params(), inputs["source_ids"], SOURCE_SEGMENTS, CONFIG.vocab_size, num_beams)


def test_padding_changes_nothing():
    ours, other = run(MODEL, params(), batch()), run(MODEL, params(), batch(padding=7))
    real = np.asarray(TARGET_SEGMENTS, bool)
    np.testing.assert_array_equal(ours[real], other[real])
    alone = {name: array[1:, : 5 if array.shape[1] == 8 else 3] for name, array in batch().items()}
    np.testing.assert_allclose(run(MODEL, params(), alone)[0], ours[1, :3], atol=2e-5)


def test_a_token_sees_what_is_before_it():
    changed = batch()
    changed["target_ids"] = changed["target_ids"].at[0, 3].set(30)
    ours, other = run(MODEL, params(), batch()), run(MODEL, params(), changed)
    np.testing.assert_array_equal(ours[0, :3], other[0, :3])
    assert np.abs(ours[0, 3:] - other[0, 3:]).max() > 1e-3


def test_token_types_of_the_source_matter():
    inputs = batch()
    del inputs["token_type_ids"]
    zeros = {**inputs, "token_type_ids": jnp.zeros_like(inputs["source_ids"])}
    np.testing.assert_allclose(run(MODEL, params(), inputs), run(MODEL, params(), zeros), atol=1e-5)
    assert np.abs(run(MODEL, params(), inputs) - run(MODEL, params(), batch())).max() > 1e-3


def test_every_parameter_gets_a_gradient():
    def loss(params):
        return jnp.sum(cross_entropy(run(MODEL, params, batch()), batch()["target_ids"]) * TARGET_SEGMENTS)

    gradient = traverse_util.flatten_dict(jax.jit(jax.grad(loss))(params()), sep="/")
    assert {path.split("/")[0] for path in gradient} == {"bert", "target_embeddings", "decoder", "bias"}
    for path, leaf in gradient.items():
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0 or path.endswith("key/bias"), path


def test_dropout_is_random_and_can_be_had_again():
    first, again, other = (run(MODEL, params(), batch(), jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_initial_parameters():
    init = jax.jit(functools.partial(MODEL.init, deterministic=True, return_attention=False))
    found = init(jax.random.key(0), **batch())["params"]
    assert found["target_embeddings"].shape == (31, 12)
    limit = (6 / (31 + 12)) ** 0.5
    assert 0.9 * limit < np.abs(found["target_embeddings"]).max() <= limit
    assert not np.asarray(found["bias"]).any()
    assert 1.5 * 0.3 < np.abs(found["decoder"]["layers"]["intermediate"]["kernel"]).max() < 2.001 * 0.3


def test_starting_from_bert_s_embeddings():
    found, words = copy_embeddings(params()), params()["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_array_equal(found["target_embeddings"], words)
    assert found["target_embeddings"] is not words
    assert found["decoder"] is params()["decoder"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "decoder_layers",
            0,
            r"model\.decoder_layers: got 0; expected at least 1. Fix: change --config.model.dec",
        ),
        ("decoder_heads", 0, r"model\.decoder_heads: got 0; expected at least 1"),
        ("decoder_intermediate", 0, r"model\.decoder_intermediate: got 0; expected at least 1"),
        ("decoder_dropout", -0.1, r"model\.decoder_dropout: got -0.1; expected at least 0 and below 1"),
    ],
)
def test_bad_options(key, value, message):
    with pytest.raises(UserError, match=message):
        build(BertSumAbsConfig, {**VALUES, key: value}, "model")


def test_a_decoder_that_does_not_fit():
    model = BertSumAbs(CONFIG, dataclasses.replace(HEAD, decoder_heads=5))
    with pytest.raises(UserError, match=r"model\.decoder_heads: got 5; expected a divisor of model.hidden_size=12"):
        model.init(jax.random.key(0), **batch(), deterministic=True, return_attention=False)
    model = BertSumAbs(dataclasses.replace(CONFIG, hidden_size=15), HEAD)
    with pytest.raises(UserError, match=r"model\.hidden_size: got 15; expected an even number"):
        model.init(jax.random.key(0), **batch(), deterministic=True, return_attention=False)
