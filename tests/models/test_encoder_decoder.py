import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, Seq2SeqInputs
from tests.models.stepping import check_steps
from tests.random_params import random_params
from tests.trees import distance

CONFIG = EncoderDecoderConfig(
    hidden_size=12,
    num_layers=1,
    num_heads=2,
    intermediate_size=20,
    dropout=0.0,
    attention_dropout=0.0,
    activation="relu",
    norm_eps=1e-6,
    initializer="xavier_uniform",
    initializer_range=0.5,
    scan_layers=True,
    num_decoder_layers=2,
    source_vocab_size=11,
    target_vocab_size=13,
    share_embeddings=False,
    tie_output=False,
    logits_bias=True,
    max_positions=6,
    scale_embeddings=True,
)
SHARED = {"share_embeddings": True, "tie_output": True, "logits_bias": False, "target_vocab_size": 11}
PRE = {"norm": "pre", "positions": "learned"}
OF_BART = {"positions": "learned", "embedding_norm": True}
OF_T5 = {
    **{"norm": "pre", "norm_type": "rms", "biases": False, "gated": True, "positions": "none", "max_positions": 0},
    **{"relative_positions": "bucketed", "relative_buckets": 4, "relative_distance": 3, "scale_scores": False},
    **{"key_size": 5, "value_size": 5, "num_heads": 5, "scale_output": True, "final_dropout": True},
}
# The ids of padding and of the last two target tokens occur nowhere else.
SOURCE = np.array([[1, 2, 3, 4, 5, 1], [6, 7, 8, 9, 10, 10]])
SOURCE_SEGMENTS = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
TARGET = np.array([[1, 2, 3, 8, 9], [4, 5, 6, 12, 12]])
TARGET_SEGMENTS = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
SEGMENTS = SOURCE_SEGMENTS, TARGET_SEGMENTS


def config_of(**changes):
    return dataclasses.replace(CONFIG, **changes)


def init(config, key):
    ids = jnp.ones((1, 2), jnp.int32)
    inputs = Seq2SeqInputs(ids, ids, ids, ids)
    return EncoderDecoder(config).init(key, inputs, deterministic=True, return_attention=False)["params"]


@functools.cache
def make(config):
    return random_params(functools.partial(init, config), scale=0.35)


@functools.partial(jax.jit, static_argnums=0, static_argnames="return_attention")
def apply(config, params, source, target, segments, key, positions, return_attention):
    return EncoderDecoder(config).apply(
        {"params": params},
        Seq2SeqInputs(source, segments[0], target, segments[1], **positions),
        deterministic=key is None,
        return_attention=return_attention,
        rngs={} if key is None else {"dropout": key},
    )


def run(config, params, *, source=SOURCE, target=TARGET, segments=SEGMENTS, key=None, weights=False, **positions):
    """The output, compiled once for each config and shape."""
    return apply(config, params, source, target, segments, key, positions, return_attention=weights)


@pytest.mark.parametrize("changes", [{}, PRE, {"scan_layers": False, **SHARED}])
def test_later_target_tokens_do_not_change_earlier_logits(changes):
    config = config_of(**changes)
    params = make(config)
    logits = np.asarray(run(config, params).logits)
    assert logits.dtype == np.float32
    for place in range(5):
        target = TARGET.copy()
        target[0, place] = 10
        changed = np.asarray(run(config, params, target=target).logits)
        np.testing.assert_array_equal(changed[0, :place], logits[0, :place])
        assert (np.abs(changed[0, place:] - logits[0, place:]).max(-1) > 1e-4).all()
        np.testing.assert_array_equal(changed[1], logits[1])


@pytest.mark.parametrize("changes", [{}, PRE, OF_BART, OF_T5])
def test_packed_rows_equal_separate_rows(changes):
    config = config_of(**changes)
    apart = np.asarray(run(config, make(config)).logits)
    packed = run(
        config,
        make(config),
        source=np.concatenate([SOURCE[:1], SOURCE[1:, :4]], axis=1),
        target=np.concatenate([TARGET[:1], TARGET[1:, :3]], axis=1),
        segments=(np.array([[1] * 6 + [2] * 4]), np.array([[1] * 5 + [2] * 3])),
        position_ids=np.array([[*range(6), *range(4)]]),
        target_position_ids=np.array([[*range(5), *range(3)]]),
    ).logits
    packed = np.asarray(packed)
    np.testing.assert_allclose(packed[0, :5], apart[0], atol=1e-5)
    np.testing.assert_allclose(packed[0, 5:], apart[1, :3], atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"scan_layers": False, **SHARED},
        {"remat": "full", "positions": "learned", "scale_embeddings": False},
        {"norm": "pre", "sinusoid_layout": "half_split", "activation": "gelu", "key_size": 4, "num_key_value_heads": 1},
        OF_BART,
        OF_T5,
    ],
    ids=["post_unrolled_tied", "post_remat_learned", "pre_half_split_small_keys", "bart", "t5"],
)
def test_steps_equal_the_whole(changes):
    config = config_of(**changes)
    check_steps(EncoderDecoder(config), make(config), SOURCE, SOURCE_SEGMENTS, config.target_vocab_size, num_beams=3)


def test_parameters_of_learned_positions_and_small_keys():
    shapes = jax.tree.map(jnp.shape, make(config_of(**SHARED, positions="learned", key_size=2)))
    assert shapes.keys() == {"embeddings", "source_positions", "target_positions", "encoder", "decoder"}
    layer = shapes["decoder"]["layers"]["cross_attention"]
    assert (layer["key"]["kernel"], layer["value"]["kernel"]) == ((2, 12, 4), (2, 12, 12))


def test_bfloat16_gives_float32_logits_close_to_float32():
    half = config_of(dtype="bfloat16")
    output, expected = run(half, make(CONFIG)).logits, run(CONFIG, make(CONFIG)).logits
    assert output.dtype == jnp.float32
    assert 1e-4 < distance(output, expected) < 0.05


def test_sequences_longer_than_the_positions_are_user_errors():
    config = config_of(max_positions=5)
    with pytest.raises(UserError, match=r"sequence length: got 6; expected at most model\.max_positions=5\. Fix: sh"):
        run(config, make(CONFIG))
    model, variables = EncoderDecoder(config), {"params": make(CONFIG)}
    encode = functools.partial(model.apply, method="encode", deterministic=True)
    memory = jax.eval_shape(encode, variables, Seq2SeqInputs(SOURCE[:, :5], SOURCE_SEGMENTS[:, :5]))
    with pytest.raises(UserError, match=r"sequence length: got 7; expected at most model\.max_positions=5"):
        jax.eval_shape(lambda memory: model.apply(variables, memory, 2, 7, method="start"), memory)
