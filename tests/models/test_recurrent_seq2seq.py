import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.encoder_decoder import Seq2SeqInputs
from bertjax.models.recurrent_seq2seq import RecurrentConfig, RecurrentSeq2Seq
from tests.models.stepping import check_steps
from tests.random_params import random_params

SIZES = {"source_vocab_size": 11, "target_vocab_size": 13, "embedding_size": 5, "hidden_size": 6}
CONFIG = RecurrentConfig(**SIZES, attention="additive", dropout=0.0, initializer_range=0.5)
KINDS = ("none", "additive", "dot", "general")
# The id of padding occurs nowhere else.
SOURCE = np.array([[1, 2, 3, 4, 5, 1], [6, 7, 8, 9, 10, 10]])
SOURCE_SEGMENTS = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
TARGET = np.array([[1, 2, 3, 8, 9], [4, 5, 6, 12, 12]])
TARGET_SEGMENTS = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def config_of(attention):
    return dataclasses.replace(CONFIG, attention=attention)


@functools.cache
def make(config):
    ids = np.ones((1, 2), np.int32)
    options = {"deterministic": True, "return_attention": False}
    return random_params(
        lambda key: RecurrentSeq2Seq(config).init(key, Seq2SeqInputs(ids, ids, ids, ids), **options)["params"],
        scale=0.4,
    )


@functools.partial(jax.jit, static_argnums=0)
def apply(config, params, source, target, key):
    return RecurrentSeq2Seq(config).apply(
        {"params": params},
        Seq2SeqInputs(source, SOURCE_SEGMENTS, target, TARGET_SEGMENTS),
        deterministic=key is None,
        return_attention=True,
        rngs={} if key is None else {"dropout": key},
    )


def run(config, params, target=TARGET, key=None):
    return apply(config, params, SOURCE, target, key)


def numpy_model(config, params, source, target):
    """Logits and attention weights of one row without padding, in float64, token by token."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def dense(p, x):
        return x @ p["kernel"] + p["bias"]

    def cell(kernel, recurrent, bias, recurrent_bias, x, state):
        parts = [x @ kernel[:, i] + bias[i] for i in range(3)]
        of_state = [state @ recurrent[:, i] + recurrent_bias[i] for i in range(3)]
        reset, keep = (1 / (1 + np.exp(-parts[i] - of_state[i])) for i in range(2))
        return (1 - keep) * np.tanh(parts[2] + reset * of_state[2]) + keep * state

    names = ("input_kernel", "recurrent_kernel", "bias", "recurrent_bias")
    words, directions = params["source_embeddings"][source], []
    for direction in (0, 1):
        weights = [params["encoder"][names[0]][:, direction], *(params["encoder"][n][direction] for n in names[1:])]
        state, states = np.zeros(config.hidden_size // 2), []
        for x in words if direction == 0 else words[::-1]:
            state = cell(*weights, x, state)
            states.append(state)
        directions.append(states)
    forward, reverse = directions
    final = np.concatenate([forward[-1], reverse[-1]])
    hidden = np.concatenate([forward, reverse[::-1]], axis=-1)
    state, logits, attention = np.tanh(dense(params["bridge"], final)), [], []
    for x in params["target_embeddings"][target]:
        state = cell(*(params["decoder"][n] for n in names), x, state)
        if config.attention == "none":
            context = final
        else:
            scores = [numpy_score(config, params, dense, state, h) for h in hidden]
            weights = np.exp(scores) / np.exp(scores).sum()
            attention.append(weights)
            context = weights @ hidden
        joined = np.tanh(dense(params["combine"], np.concatenate([state, context])))
        logits.append(dense(params["output"], joined))
    return np.array(logits), np.array(attention)


def numpy_score(config, params, dense, state, h):
    if config.attention == "dot":
        return state @ h
    if config.attention == "general":
        return state @ (h @ params["keys"]["kernel"])
    return params["scores"] @ np.tanh(dense(params["query"], state) + dense(params["keys"], h))


@pytest.mark.parametrize("attention", KINDS)
def test_model_matches_numpy(attention):
    config = config_of(attention)
    output = run(config, make(config))
    assert (output.encoder_attention, output.decoder_attention) == (None, None)
    assert output.logits.dtype == jnp.float32
    for row, (source, target) in enumerate(((6, 5), (4, 3))):
        ids = SOURCE[row, :source], TARGET[row, :target]
        logits, weights = numpy_model(config, make(config), *ids)
        np.testing.assert_allclose(output.logits[row, :target], logits, atol=1e-5)
        if attention == "none":
            assert output.cross_attention is None
        else:
            assert output.cross_attention.shape == (1, 2, 1, 5, 6)
            np.testing.assert_allclose(output.cross_attention[0, row, 0, :target, :source], weights, atol=1e-5)


@pytest.mark.parametrize(("attention", "num_beams"), [*((kind, 3) for kind in KINDS), ("additive", 1)])
def test_steps_equal_the_whole(attention, num_beams):
    config = config_of(attention)
    check_steps(RecurrentSeq2Seq(config), make(config), SOURCE, SOURCE_SEGMENTS, config.target_vocab_size, num_beams)


def test_dropout_is_determined_by_its_key():
    config = dataclasses.replace(CONFIG, dropout=0.5)
    still, first, again, other = (
        run(config, make(CONFIG), key=key).logits
        for key in (None, *(jax.random.key(seed, impl="rbg") for seed in (1, 1, 2)))
    )
    np.testing.assert_array_equal(still, run(CONFIG, make(CONFIG)).logits)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, still, atol=1e-2) and not np.allclose(first, other, atol=1e-2)


def test_packed_rows_are_user_errors():
    call = {"deterministic": True, "return_attention": False}
    inputs = Seq2SeqInputs(SOURCE, SOURCE_SEGMENTS, TARGET, TARGET_SEGMENTS, position_ids=np.zeros((2, 6), np.int32))
    with pytest.raises(
        UserError, match=r"recurrent model: got packed rows; expected one pair per row\. Fix: set --config"
    ):
        RecurrentSeq2Seq(CONFIG).apply({"params": make(CONFIG)}, inputs, **call)
