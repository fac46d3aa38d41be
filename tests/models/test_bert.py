import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.bert import Bert, BertConfig, BertForPreTraining

CONFIG = BertConfig(
    hidden_size=12,
    num_layers=2,
    num_heads=3,
    intermediate_size=20,
    dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
    attention_backend="xla",
    activation="gelu",
    norm="post",
    norm_eps=1e-12,
    initializer="truncated_normal",
    initializer_range=0.3,
    dtype="float32",
    scan_layers=True,
    remat=False,
    vocab_size=31,
    max_positions=10,
    type_vocab_size=2,
    direction="both",
    next_sentence=True,
)
BASE = dataclasses.replace(
    CONFIG,
    hidden_size=768,
    num_layers=12,
    num_heads=12,
    intermediate_size=3072,
    vocab_size=30522,
    max_positions=512,
)
LARGE = dataclasses.replace(BASE, hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
LENGTH = 8


def batch():
    rng = np.random.RandomState(0)
    return {
        "input_ids": jnp.asarray(rng.randint(1, 31, (3, LENGTH))),
        "token_type_ids": jnp.asarray([[0] * 4 + [1] * 4, [0] * 8, [0] * 2 + [1] * 6]),
        "segment_ids": jnp.asarray([[1] * 8, [1] * 5 + [0] * 3, [1] * 7 + [0]]),
        "masked_positions": jnp.asarray([[1, 4], [2, 3], [6, 1]]),
    }


def abstract(config):
    ids = jnp.zeros((1, 2), jnp.int32)
    model = BertForPreTraining(config)
    return jax.eval_shape(
        lambda key: model.init(key, ids, ids, ids, ids, deterministic=True, return_attention=False),
        jax.random.key(0),
    )["params"]


def init(config):
    model = BertForPreTraining(config)
    init = jax.jit(lambda key: model.init(key, **batch(), deterministic=True, return_attention=False))
    return init(jax.random.key(0))


@pytest.fixture(scope="module")
def variables():
    return init(CONFIG)


@functools.partial(jax.jit, static_argnums=0, static_argnames="return_attention")
def run(config, variables, inputs, key=None, return_attention=False):
    rngs = {} if key is None else {"dropout": key}
    model = BertForPreTraining(config)
    return model.apply(variables, **inputs, deterministic=key is None, return_attention=return_attention, rngs=rngs)


def size(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("config", "expected"), [(BASE, 109_482_240), (LARGE, 335_141_888)])
def test_published_parameter_counts(config, expected):
    assert size(abstract(config)["bert"]) == expected


def test_parameters_of_the_heads():
    params = abstract(CONFIG)
    assert jax.tree.map(lambda leaf: leaf.shape, {k: params[k] for k in ("masked_lm", "next_sentence")}) == {
        "masked_lm": {
            "transform": {"kernel": (12, 12), "bias": (12,)},
            "norm": {"scale": (12,), "bias": (12,)},
            "bias": (31,),
        },
        "next_sentence": {"kernel": (12, 2), "bias": (2,)},
    }


def test_without_next_sentence_there_is_neither_pooler_nor_head():
    config = dataclasses.replace(CONFIG, next_sentence=False)
    variables = init(config)
    assert variables["params"].keys() == {"bert", "masked_lm"}
    assert variables["params"]["bert"].keys() == {"embeddings", "encoder"}
    output = run(config, variables, batch())
    assert output.next_sentence_logits is None
    assert output.pooled is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes_and_dtypes(variables, dtype):
    config = dataclasses.replace(CONFIG, dtype=dtype)
    output = run(config, variables, batch(), return_attention=True)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), output._asdict()) == {
        "masked_lm_logits": ((3, 2, 31), "float32"),
        "next_sentence_logits": ((3, 1, 2), "float32"),
        "pooled": ((3, 1, 12), dtype),
        "attention": ((2, 3, 3, 8, 8), "float32"),
    }
    assert {leaf.dtype.name for leaf in jax.tree.leaves(variables)} == {"float32"}


def test_logits_at_masked_positions_are_those_of_all_positions(variables):
    everywhere = jnp.broadcast_to(jnp.arange(LENGTH), (3, LENGTH))
    expected = run(CONFIG, variables, {**batch(), "masked_positions": everywhere}).masked_lm_logits
    logits = run(CONFIG, variables, batch()).masked_lm_logits
    for b, p in np.ndindex(3, 2):
        position = batch()["masked_positions"][b, p]
        np.testing.assert_allclose(logits[b, p], expected[b, position], atol=1e-5)


def test_output_words_share_the_input_table(variables):
    """A word that is nowhere in the input still moves its own logit, and no other."""
    unused = next(i for i in range(31) if i not in np.asarray(batch()["input_ids"]))
    table = variables["params"]["bert"]["embeddings"]["word_embeddings"]
    params = jax.tree.map(lambda leaf: leaf, variables["params"])
    params["bert"]["embeddings"]["word_embeddings"] = table.at[unused, 0].add(1)
    moved = run(CONFIG, {"params": params}, batch()).masked_lm_logits
    change = np.abs(moved - run(CONFIG, variables, batch()).masked_lm_logits).max((0, 1))
    assert np.flatnonzero(change > 1e-4).tolist() == [unused]


def test_asking_for_attention_changes_nothing_else(variables):
    plain, pictured = (run(CONFIG, variables, batch(), return_attention=flag) for flag in (False, True))
    assert plain.attention is None
    np.testing.assert_array_equal(plain.masked_lm_logits, pictured.masked_lm_logits)
    np.testing.assert_allclose(pictured.attention.sum(-1), 1, atol=1e-5)
    assert (np.asarray(pictured.attention)[:, 1, :, :, 5:] == 0).all()


def test_outputs_of_all_layers_begin_with_the_embeddings(variables):
    inputs = {name: value for name, value in batch().items() if name != "masked_positions"}
    bert = {"params": variables["params"]["bert"]}
    for pooler in (True, False):
        model = Bert(CONFIG, use_pooler=pooler)
        output = model.apply(bert, **inputs, deterministic=True, return_attention=False, return_layers=True)
        embedded = model.bind(bert).embeddings(inputs["input_ids"], inputs["token_type_ids"], deterministic=True)
        assert output.layers.shape == (3, 3, LENGTH, 12)
        np.testing.assert_allclose(output.layers[0], embedded, atol=1e-6)
        np.testing.assert_array_equal(output.layers[-1], output.hidden)


@functools.partial(jax.jit, static_argnums=0)
def hidden(config, variables, ids):
    ones = jnp.ones_like(ids)
    output = Bert(config, use_pooler=True).apply(
        {"params": variables["params"]["bert"]}, ids, ones, ones, deterministic=True, return_attention=False
    )
    return output.hidden


@pytest.mark.parametrize("changed", range(LENGTH))
def test_no_token_leaks_against_the_direction(variables, changed):
    ids = batch()["input_ids"]
    other = ids.at[:, changed].set(ids[:, changed] % 30 + 1)
    moves = {}
    for direction in ("both", "left_to_right", "right_to_left"):
        config = dataclasses.replace(CONFIG, direction=direction)
        difference = np.abs(hidden(config, variables, ids) - hidden(config, variables, other))
        moves[direction] = difference.max((0, 2))
    assert (moves["both"] > 1e-3).all()
    assert (moves["left_to_right"][:changed] == 0).all()
    assert (moves["left_to_right"][changed:] > 1e-4).all()
    assert (moves["right_to_left"][changed + 1 :] == 0).all()
    assert (moves["right_to_left"][: changed + 1] > 1e-4).all()


def test_padding_changes_nothing(variables):
    inputs = batch()
    padded = {
        **inputs,
        "input_ids": jnp.pad(inputs["input_ids"], ((0, 0), (0, 2)), constant_values=9),
        "token_type_ids": jnp.pad(inputs["token_type_ids"], ((0, 0), (0, 2)), constant_values=1),
        "segment_ids": jnp.pad(inputs["segment_ids"], ((0, 0), (0, 2))),
    }
    short, long = run(CONFIG, variables, inputs), run(CONFIG, variables, padded)
    np.testing.assert_allclose(long.masked_lm_logits, short.masked_lm_logits, atol=1e-5)
    np.testing.assert_allclose(long.next_sentence_logits, short.next_sentence_logits, atol=1e-5)


def test_instances_packed_into_a_row_come_out_as_alone(variables):
    lengths, ids = (3, 5), batch()["input_ids"][:1]
    types, masked = jnp.asarray([[0, 0, 1, 0, 0, 0, 1, 1]]), jnp.asarray([[1, 4, 7]])
    packed = {
        "input_ids": jnp.pad(ids, ((0, 0), (0, 2))),
        "token_type_ids": jnp.pad(types, ((0, 0), (0, 2))),
        "segment_ids": jnp.asarray([[1] * 3 + [2] * 5 + [0] * 2]),
        "position_ids": jnp.asarray([[0, 1, 2, 0, 1, 2, 3, 4, 0, 0]]),
        "masked_positions": masked,
        "cls_positions": jnp.asarray([[0, 3]]),
    }
    output = run(CONFIG, variables, packed)
    for e, start in enumerate((0, 3)):
        span = slice(start, start + lengths[e])
        inside = [p for p in range(3) if span.start <= masked[0, p] < span.stop]
        alone = run(
            CONFIG,
            variables,
            {
                "input_ids": ids[:, span],
                "token_type_ids": types[:, span],
                "segment_ids": jnp.ones((1, lengths[e]), int),
                "masked_positions": masked[:, inside] - start,
            },
        )
        np.testing.assert_allclose(output.masked_lm_logits[:, inside], alone.masked_lm_logits, atol=1e-5)
        np.testing.assert_allclose(output.next_sentence_logits[:, e], alone.next_sentence_logits[:, 0], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_of_padding_is_finite_and_touches_no_other(variables, dtype):
    config = dataclasses.replace(CONFIG, dtype=dtype)
    inputs = {**batch(), "segment_ids": batch()["segment_ids"].at[2].set(0)}

    def loss(variables):
        output = run(config, variables, inputs)
        return jnp.sum(output.masked_lm_logits**2) + jnp.sum(output.next_sentence_logits), output

    (_, output), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)
    assert all(np.isfinite(leaf.astype(jnp.float32)).all() for leaf in jax.tree.leaves((output, grads)))
    expected = run(config, variables, batch()).masked_lm_logits
    np.testing.assert_allclose(output.masked_lm_logits[:2], expected[:2], atol=1e-5)


def test_bfloat16_is_close_to_float32(variables):
    expected = run(CONFIG, variables, batch())
    output = run(dataclasses.replace(CONFIG, dtype="bfloat16"), variables, batch())
    for name in ("masked_lm_logits", "next_sentence_logits", "pooled"):
        reference = np.asarray(getattr(expected, name))
        error = np.asarray(getattr(output, name), np.float32) - reference
        assert 1e-6 < np.linalg.norm(error) / np.linalg.norm(reference) < 0.05


def test_dropout_follows_its_key(variables):
    config = dataclasses.replace(CONFIG, dropout=0.2, attention_dropout=0.2)
    keys = [None, *map(jax.random.key, (0, 0, 1))]
    logits = [run(config, variables, batch(), key=key).masked_lm_logits for key in keys]
    np.testing.assert_array_equal(logits[1], logits[2])
    for a, b in ((0, 1), (1, 3)):
        assert not np.allclose(logits[a], logits[b], atol=1e-2)
    np.testing.assert_array_equal(logits[0], run(CONFIG, variables, batch()).masked_lm_logits)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 0),
        ("max_positions", -1),
        ("type_vocab_size", 0),
        ("direction", "forward"),
        ("hidden_size", 13),
    ],
)
def test_bad_values_are_user_errors(key, value):
    with pytest.raises(UserError, match=rf"model\.{key}: got "):
        dataclasses.replace(CONFIG, **{key: value})
