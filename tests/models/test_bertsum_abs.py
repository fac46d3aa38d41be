"""BertSumAbs: decoding token by token compared with the whole target, token types, parameters and options."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bertjax.errors import UserError
from bertjax.models.bertsum_abs import BertSumAbs, BertSumAbsConfig, copy_embeddings
from bertjax.models.encoder_decoder import Seq2SeqInputs
from bertjax.models.losses import cross_entropy
from tests.models.stepping import check_steps
from tests.models.test_heads import CONFIG
from tests.random_params import random_params

HEAD = BertSumAbsConfig(decoder_layers=2, decoder_heads=3, decoder_intermediate=14, decoder_dropout=0.1)
MODEL = BertSumAbs(CONFIG, HEAD)
SOURCE_SEGMENTS = (np.arange(8) < np.array([[8], [5]])).astype(np.int32)
TARGET_SEGMENTS = (np.arange(5) < np.array([[5], [3]])).astype(np.int32)


def batch():
    random = np.random.default_rng(0)
    source, target = (random.integers(1, 31, shape).astype(np.int32) for shape in ((2, 8), (2, 5)))
    return {
        "input_ids": source * SOURCE_SEGMENTS,
        "segment_ids": SOURCE_SEGMENTS,
        "target_ids": target * TARGET_SEGMENTS,
        "target_segment_ids": TARGET_SEGMENTS,
        "token_type_ids": SOURCE_SEGMENTS * (np.arange(8) // 3 % 2),
    }


@functools.cache
def params():
    init = functools.partial(MODEL.init, deterministic=True, return_attention=False)
    return random_params(init, Seq2SeqInputs(**batch()), scale=0.3)["params"]


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, inputs, key=None):
    rngs = {} if key is None else {"dropout": key}
    options = {"deterministic": key is None, "return_attention": False}
    return model.apply({"params": params}, Seq2SeqInputs(**inputs), **options, rngs=rngs).logits


@jax.jit
def run_with_gradient(params, inputs):
    """The logits, and the gradient of the cross-entropy with the targets as labels."""

    def loss(params):
        logits = apply(MODEL, params, inputs)
        return jnp.sum(cross_entropy(logits, inputs["target_ids"]) * inputs["target_segment_ids"]), logits

    gradient, logits = jax.grad(loss, has_aux=True)(params)
    return logits, gradient


def run(inputs):
    """The logits, from the program that also computes the gradient, so that only one is compiled."""
    return np.asarray(run_with_gradient(params(), inputs)[0])


def test_steps_equal_the_whole():
    check_steps(MODEL, params(), batch()["input_ids"], SOURCE_SEGMENTS, CONFIG.vocab_size, num_beams=3)


def test_token_types_of_the_source_matter():
    inputs = batch()
    zeros = run({**inputs, "token_type_ids": np.zeros_like(inputs.pop("token_type_ids"))})
    np.testing.assert_allclose(apply(MODEL, params(), inputs), zeros, atol=1e-5)
    assert np.abs(zeros - run(batch())).max() > 1e-3


def test_every_parameter_gets_a_gradient():
    _, gradient = run_with_gradient(params(), batch())
    gradient = traverse_util.flatten_dict(gradient, sep="/")
    assert {path.split("/")[0] for path in gradient} == {"bert", "target_embeddings", "decoder", "bias"}
    for path, leaf in gradient.items():
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0 or path.endswith("key/bias"), path


def test_dropout_is_determined_by_its_key():
    keys = (jax.random.key(seed, impl="rbg") for seed in (0, 0, 1))  # compiles faster than threefry
    first, again, other = (np.asarray(apply(MODEL, params(), batch(), key)) for key in keys)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_initial_parameters():
    init = functools.partial(MODEL.init, deterministic=True, return_attention=False)
    names = ("target_embeddings", "bias", "decoder")  # BERT's initialization would double the compile time
    found = jax.jit(lambda key: {name: init(key, Seq2SeqInputs(**batch()))["params"][name] for name in names})(
        jax.random.key(0)
    )
    assert found["target_embeddings"].shape == (31, 12)
    limit = (6 / (31 + 12)) ** 0.5
    assert 0.9 * limit < np.abs(found["target_embeddings"]).max() <= limit
    assert not np.asarray(found["bias"]).any()
    assert 1.5 * 0.3 < np.abs(found["decoder"]["layers"]["intermediate"]["kernel"]).max() < 2.001 * 0.3


def test_copy_embeddings():
    found, words = copy_embeddings(params()), params()["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_array_equal(found["target_embeddings"], words)
    assert found["target_embeddings"] is not words
    assert found["decoder"] is params()["decoder"]


def abstract(model):
    init = functools.partial(model.init, deterministic=True, return_attention=False)
    return jax.eval_shape(init, jax.random.key(0), Seq2SeqInputs(**batch()))


def test_a_decoder_that_does_not_fit():
    model = BertSumAbs(CONFIG, dataclasses.replace(HEAD, decoder_heads=5))
    with pytest.raises(UserError, match=r"model\.decoder_heads: got 5; expected a divisor of model.hidden_size=12"):
        abstract(model)
    model = BertSumAbs(dataclasses.replace(CONFIG, hidden_size=15), HEAD)
    with pytest.raises(UserError, match=r"model\.hidden_size: got 15; expected an even number"):
        abstract(model)
