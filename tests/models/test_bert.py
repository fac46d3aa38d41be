import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.attention import layer
from bertjax.models.attention.xla import xla
from bertjax.models.bert import Bert, BertForPreTraining, BertInputs
from bertjax.models.encoder import take_positions
from tests.models.test_heads import CONFIG
from tests.random_params import random_params
from tests.trees import distance

BASE = dataclasses.replace(CONFIG, hidden_size=768, num_heads=12, intermediate_size=3072)
LENGTH = 8


def batch():
    rng = np.random.RandomState(0)
    return {
        "input_ids": rng.randint(1, 31, (3, LENGTH)),
        "token_type_ids": np.array([[0] * 4 + [1] * 4, [0] * 8, [0] * 2 + [1] * 6]),
        "segment_ids": np.array([[1] * 8, [1] * 5 + [0] * 3, [1] * 7 + [0]]),
        "masked_positions": np.array([[1, 4], [2, 3], [6, 1]]),
    }


def arguments(inputs):
    return BertInputs.of(inputs), inputs["masked_positions"]


def init(config, key, predicts_next=True):
    options = {"deterministic": True, "return_attention": False}
    return BertForPreTraining(config, predicts_next).init(key, *arguments(batch()), **options)["params"]


def abstract(config, predicts_next=True):
    return jax.eval_shape(functools.partial(init, config, predicts_next=predicts_next), jax.random.key(0))


@pytest.fixture(scope="module")
def params():
    return random_params(functools.partial(init, CONFIG), scale=0.3)


@functools.partial(jax.jit, static_argnums=0, static_argnames="return_attention")
def apply(config, params, inputs, key, return_attention):
    options = {"deterministic": key is None, "return_attention": return_attention}
    rngs = {} if key is None else {"dropout": key}
    return BertForPreTraining(config).apply({"params": params}, *arguments(inputs), **options, rngs=rngs)


def run(config, params, inputs, key=None, return_attention=False):
    return jax.tree.map(np.asarray, apply(config, params, inputs, key, return_attention=return_attention))


def test_without_next_sentence_there_is_no_pooler_and_no_head():
    params = abstract(CONFIG, predicts_next=False)
    assert params.keys() == {"bert", "masked_lm"}
    assert params["bert"].keys() == {"embeddings", "encoder"}
    model, options = BertForPreTraining(CONFIG, False), {"deterministic": True, "return_attention": False}
    output = jax.eval_shape(lambda params: model.apply({"params": params}, *arguments(batch()), **options), params)
    assert output.next_sentence_logits is None
    assert output.pooled is None


def test_returning_attention_does_not_change_the_outputs(params):
    """The last layer is then computed at all positions, else only at the [CLS] and the masked ones."""
    inputs = {**batch(), "cls_positions": np.array([[0, 4], [0, 2], [3, 5]])}
    plain, with_attention = (run(CONFIG, params, inputs, return_attention=flag) for flag in (False, True))
    assert plain.attention is None
    for name in ("masked_lm_logits", "next_sentence_logits", "pooled"):
        np.testing.assert_allclose(getattr(plain, name), getattr(with_attention, name), atol=1e-6)
    np.testing.assert_allclose(with_attention.attention.sum(-1), 1, atol=1e-5)
    assert (with_attention.attention[:, 1, :, :, 5:] == 0).all()


@functools.partial(jax.jit, static_argnums=0)
def read(config, params, positions, key=None):
    """The outputs at `READ`, computed with `output_positions`, or selected from all outputs if `positions` is None."""
    output = Bert(config).apply(
        {"params": params},
        BertInputs.of(batch()),
        output_positions=positions,
        deterministic=key is None,
        return_attention=False,
        rngs={} if key is None else {"dropout": key},
    )
    return take_positions(output.hidden, READ) if positions is None else output.hidden


READ = np.array([[0, 4, 7], [0, 3, 3], [2, 6, 0]])


@functools.partial(jax.jit, static_argnums=(0, 2))
def read_with_gradients(config, params, few):
    positions = READ if few else None

    def loss(params):
        output = read(config, params, positions)
        return jnp.mean(jnp.sin(3 * output)), output

    return jax.grad(loss, has_aux=True)(params)


@pytest.mark.parametrize(
    "changes",
    [
        {"direction": "left_to_right"},
        {"norm": "pre", "scan_layers": False},
        {"norm": "pre", "remat": "full"},
        {"num_layers": 1},
    ],
)
def test_output_positions_give_the_same_values_and_gradients(changes):
    config = dataclasses.replace(CONFIG, **changes)
    params = random_params(functools.partial(init, config), scale=0.3)["bert"]
    params = {name: params[name] for name in ("embeddings", "encoder")}
    ours, expected = (read_with_gradients(config, params, few) for few in (True, False))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, expected)


def test_the_last_layer_computes_only_the_output_positions():
    config = dataclasses.replace(BASE, num_layers=1)
    params = abstract(config, predicts_next=False)["bert"]
    flops = [read.lower(config, params, positions).compile().cost_analysis()["flops"] for positions in (READ, None)]
    # Of the 12 H^2 products per token, keys and values (2 H^2) need all 8 positions, and the others only 3.
    assert flops[0] / flops[1] == pytest.approx((2 * 8 + 10 * 3) / (12 * 8), rel=0.02)


@pytest.mark.parametrize(("backend", "queries"), [("triton", 3), ("splash", 8)])
def test_kernels_that_compute_only_the_output_positions(monkeypatch, backend, queries):
    found = []

    def attend(name, inputs):
        found.append((name, *inputs.lengths))
        return xla(inputs)

    monkeypatch.setattr(layer, "dot_product_attention", attend)
    config = dataclasses.replace(BASE, num_layers=1, attention_backend=backend)
    params = abstract(config)["bert"]
    del params["pooler"]
    jax.eval_shape(functools.partial(read, config), params, READ)
    assert (backend, queries, 8) in found


def test_dropout_with_output_positions(params):
    config = dataclasses.replace(CONFIG, dropout=0.3, attention_dropout=0.3)
    params = {name: params["bert"][name] for name in ("embeddings", "encoder")}
    first, again, other = (np.asarray(read(config, params, READ, jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-2
    unrolled = dataclasses.replace(config, scan_layers=not config.scan_layers)
    np.testing.assert_allclose(read(unrolled, params, READ, jax.random.key(0)), first, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_of_padding_is_finite_and_does_not_change_others(params, dtype):
    config = dataclasses.replace(CONFIG, dtype=dtype)
    inputs = batch()
    inputs["segment_ids"][2] = 0

    def loss(params):
        output = apply(config, params, inputs, None, return_attention=False)
        return jnp.sum(output.masked_lm_logits**2) + jnp.sum(output.next_sentence_logits), output

    (_, output), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert all(np.isfinite(leaf.astype(jnp.float32)).all() for leaf in jax.tree.leaves((output, grads)))
    expected = run(config, params, batch()).masked_lm_logits
    np.testing.assert_allclose(output.masked_lm_logits[:2], expected[:2], atol=1e-5)


def test_bfloat16_is_close_to_float32(params):
    expected = run(CONFIG, params, batch())
    output = run(dataclasses.replace(CONFIG, dtype="bfloat16"), params, batch())
    assert (output.masked_lm_logits.dtype, output.pooled.dtype) == (np.float32, jnp.bfloat16)
    for name in ("masked_lm_logits", "next_sentence_logits", "pooled"):
        assert 1e-6 < distance(getattr(output, name), getattr(expected, name)) < 0.05
