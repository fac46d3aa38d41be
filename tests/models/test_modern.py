"""The values of the encoder that BERT does not have: rotary positions, local layers, gates, norms, heads."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.attention import backends
from bertjax.models.attention.inputs import AttentionInputs, Dropout
from bertjax.models.attention.mask import make_mask
from bertjax.models.attention.relative import BucketedBias
from bertjax.models.attention.rotary import rotate
from bertjax.models.attention.xla import xla
from bertjax.models.bert import Bert, BertForMaskedLM, BertInputs, HeadConfig
from bertjax.models.embeddings import BertEmbeddings
from bertjax.models.transformer_config import LayerKind
from tests.random_params import random_params

SIZES = {"hidden_size": 24, "num_layers": 4, "num_heads": 3, "intermediate_size": 20, "vocab_size": 31}
BERT = HeadConfig(**SIZES, max_positions=16, activation="gelu", norm_eps=1e-12, dropout=0.0, attention_dropout=0.0)
POSITIONS = {"max_positions": 256, "positions": "rotary", "rotary_base": 1000.0, "local_rotary_base": 100.0}
OFF = dict.fromkeys(("biases", "norm_biases", "first_attention_norm"), False)
MODERN = dataclasses.replace(
    BERT,
    **(POSITIONS | OFF),
    type_vocab_size=0,
    local_attention=6,
    global_every=3,
    gated=True,
    norm="pre",
    norm_eps=1e-5,
    head="transform",
    scan_layers=True,
)


def of_lengths(*lengths, size=0, seed=0):
    """A packed row of instances with these lengths, padded to `size`."""
    size = size or sum(lengths)
    ids = np.random.RandomState(seed).randint(1, 31, size)
    segments = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    starts = np.cumsum((0, *lengths[:-1]))
    pad = (0, size - len(segments))
    row = ids, np.zeros_like(ids), np.pad(segments, pad), np.pad(positions, pad), starts
    return BertInputs(*(jnp.asarray(each[None]) for each in row))


def alone(inputs, number):
    """An instance of a packed row in a row of its own."""
    inside = np.flatnonzero(np.asarray(inputs.segment_ids[0]) == number)
    ids = inputs.input_ids[:, inside]
    return BertInputs(ids, jnp.zeros_like(ids), jnp.ones_like(ids)), inside


@functools.partial(jax.jit, static_argnums=(0, 1))
def hidden(config, options, params, inputs):
    output = Bert(config).apply({"params": params}, inputs, deterministic=True, return_attention=False, **dict(options))
    return output.layers if output.layers is not None else output.hidden


@functools.cache
def params_of(config):
    init = functools.partial(Bert(config).init, deterministic=True, return_attention=False)
    return random_params(lambda key: init(key, of_lengths(3)), scale=0.3)["params"]


def run(config, inputs, **options):
    return np.asarray(hidden(config, tuple(options.items()), params_of(config), inputs))


# Rotary positions.


def test_rotation_equals_complex_multiplication_and_preserves_lengths():
    x = np.random.RandomState(0).randn(2, 5, 3, 8).astype(np.float32)
    positions = np.array([[0, 1, 2, 3, 4], [7, 0, 1, 100, 3]])
    rotated = np.asarray(rotate(jnp.asarray(x), jnp.asarray(positions), 50.0))
    angles = positions[..., None] * 50.0 ** (-2 * np.arange(4) / 8)
    expected = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)[:, :, None]
    np.testing.assert_allclose(rotated, np.concatenate([expected.real, expected.imag], -1), atol=2e-5)
    np.testing.assert_array_equal(rotated[0, 0], x[0, 0])


# A bias of the scores by distance.


def test_a_distance_has_the_bias_of_its_bucket():
    table = np.random.RandomState(0).randn(32, 3).astype(np.float32)
    module, params = BucketedBias(MODERN, 32, 128), {"relative_attention_bias": table}
    (bias,) = module.apply({"params": params}, 200)
    firsts = [*range(9), 12, 16, 23, 32, 46, 64, 91]  # the smallest distance of each bucket
    row, column = np.indices((200, 200))
    buckets = np.searchsorted(firsts, np.abs(column - row), side="right") - 1 + np.where(column > row, 16, 0)
    np.testing.assert_array_equal(bias, table[buckets].transpose(2, 0, 1))


# Local layers.


def attention_inputs(mask, dropout=None, size=8):
    batch, length = mask.queries.segments.shape
    rng = np.random.RandomState(1)
    query, key, value = (jnp.asarray(rng.randn(batch, length, 2, size), jnp.float32) for _ in range(3))
    return AttentionInputs(query, key, value, mask, dropout)


MASKS = {
    "one instance": lambda direction: make_mask(jnp.ones((2, 300), int), direction),
    "padding": lambda direction: make_mask(jnp.asarray(np.arange(300) < [[300], [211]]).astype(int), direction),
    "packed": lambda direction: make_mask(
        of_lengths(100, 7, 90, size=200).segment_ids, direction, of_lengths(100, 7, 90, size=200).position_ids
    ),
}


@pytest.mark.parametrize("direction", ["both", "left_to_right", "right_to_left"])
@pytest.mark.parametrize("rows", MASKS)
def test_local_attention_by_blocks_equals_masked_attention(rows, direction):
    mask = MASKS[rows](direction).within(5)
    inputs = attention_inputs(mask)
    assert backends._chosen("xla", inputs) is backends._by_blocks
    real = np.asarray(mask.queries.segments != 0)[..., None, None]

    def loss(attend, *qkv):
        output = jnp.where(real, attend(AttentionInputs(*qkv, mask))[0], 0)
        return jnp.sum(jnp.sin(output)), output

    expected, found = (
        jax.jit(jax.grad(functools.partial(loss, attend), (0, 1, 2), has_aux=True))(*inputs[:3])
        for attend in (xla, backends._by_blocks)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), found, expected)


def test_dropout_of_local_attention_has_its_rate_and_differs_between_blocks():
    mask = make_mask(jnp.ones((2, 512), int), "both").within(64)
    keys = jax.random.split(jax.random.key(0), 4).reshape(2, 2)
    query, key, value, *_ = attention_inputs(mask)
    inputs = AttentionInputs(query * 0, key, jnp.ones_like(value), mask, Dropout(keys, 0.25))
    context, _ = backends.dot_product_attention("xla", inputs)
    inner = np.asarray(context[:, 64:-64, :, 0])  # the mean of 129 values, each 0 or 4/3
    assert abs(inner.mean() - 1) < 0.01
    assert abs(inner.std() - (1 / 3 / 129) ** 0.5) < 0.005
    assert not np.array_equal(inner[:, :64], inner[:, 64:128])


@pytest.mark.parametrize(("scan_layers", "remat"), [(True, "none"), (False, "dots"), (True, "norms"), (True, "full")])
def test_scan_and_rematerialization_do_not_change_layers_of_several_kinds(scan_layers, remat):
    inputs = of_lengths(70, 30, 90, size=200)
    plain = dataclasses.replace(MODERN, num_layers=7, global_every=3, scan_layers=False, relative_positions="bucketed")
    config = dataclasses.replace(plain, scan_layers=scan_layers, remat=remat)

    @functools.partial(jax.jit, static_argnums=0)
    def outputs_and_gradient(config, params):
        def loss(params):
            output = Bert(config).apply(
                {"params": params}, inputs, deterministic=True, return_attention=True, return_layers=True
            )
            return jnp.sum(jnp.sin(output.hidden)), (output.layers, output.attention)

        return jax.grad(loss, has_aux=True)(params)

    (expected, others), (found, own) = (outputs_and_gradient(each, params_of(plain)) for each in (plain, config))
    assert own[0].shape == (8, 1, 200, 24) and own[1].shape == (7, 1, 3, 200, 200)
    np.testing.assert_allclose(own[0], others[0], atol=1e-5)
    np.testing.assert_allclose(own[1], others[1], atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-4, rtol=1e-4), found, expected)


@pytest.mark.parametrize(("scan_layers", "remat"), [(False, "none"), (True, "full")])
@pytest.mark.parametrize("places", [None, jnp.array([[3, 0]])])
def test_shared_layers_equal_copies_and_add_their_gradients(scan_layers, remat, places):
    copies = dataclasses.replace(BERT, num_layers=6, scan_layers=scan_layers, remat=remat)
    shared, inputs = dataclasses.replace(copies, layer_groups=2), of_lengths(9, 6)

    @functools.partial(jax.jit, static_argnums=0)
    def outputs_and_gradient(config, params):
        def loss(params):
            options = {"deterministic": True, "return_attention": False, "output_positions": places}
            hidden = Bert(config).apply({"params": params}, inputs, **options).hidden
            return jnp.sum(jnp.sin(hidden)), hidden

        return jax.grad(loss, has_aux=True)(params)

    def with_layers(change, params):
        return {**params, "encoder": {"layers": jax.tree.map(change, params["encoder"]["layers"])}}

    params = params_of(shared)
    found, own = outputs_and_gradient(shared, params)
    expected, other = outputs_and_gradient(copies, with_layers(lambda leaf: jnp.repeat(leaf, 3, axis=0), params))
    np.testing.assert_allclose(own, other, atol=1e-5)
    sums = with_layers(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]).sum(axis=1), expected)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-4, rtol=1e-4), found, sums)


def test_layers_have_the_kinds_that_the_config_says():
    inputs = of_lengths(40)
    output = Bert(MODERN).apply({"params": params_of(MODERN)}, inputs, deterministic=True, return_attention=True)
    far = np.abs(np.subtract.outer(np.arange(40), np.arange(40))) > 3
    reach_far = [bool((np.asarray(weights)[0, :, far] > 0).any()) for weights in output.attention]
    assert reach_far == [True, False, False, True]
    kinds = [MODERN.kind(number) for number in range(3)]
    assert kinds[0] == LayerKind(0, 1000.0, bare_input=True) and kinds[1] == kinds[2] == LayerKind(3, 100.0)
    assert {dataclasses.replace(MODERN, global_every=0).kind(number).window for number in range(4)} == {3}


# The whole encoder.


@pytest.mark.parametrize(
    ("positions", "direction"),
    [
        ("rotary", "both"),
        ("rotary", "left_to_right"),
        ("rotary", "right_to_left"),
        ("sinusoidal", "both"),
        ("learned", "left_to_right"),
        ("none", "both"),
        ("bucketed", "both"),
    ],
)
def test_packed_rows_equal_single_rows(positions, direction):
    is_bias = positions == "bucketed"
    kinds = {"positions": "none" if is_bias else positions, "relative_positions": positions if is_bias else "none"}
    config = dataclasses.replace(MODERN, direction=direction, qk_norm=True, **kinds)
    inputs = of_lengths(12, 110, 75, size=210)
    packed = run(config, inputs)
    for number in (1, 2, 3):
        single, inside = alone(inputs, number)
        np.testing.assert_allclose(packed[:, inside], run(config, single), atol=1e-5)


def test_output_positions_equal_those_of_all_positions():
    inputs, places = of_lengths(60, 20), jnp.array([[3, 70, 0, 59]])
    for layers, relative in ((1, "bucketed"), (3, "none"), (4, "bucketed")):  # the last: the first, a local, a global
        config = dataclasses.replace(MODERN, num_layers=layers, relative_positions=relative)
        some = Bert(config).apply(
            {"params": params_of(config)}, inputs, deterministic=True, return_attention=False, output_positions=places
        )
        np.testing.assert_allclose(some.hidden, run(config, inputs)[:, places[0]], atol=1e-5)


def test_without_positions_the_order_of_tokens_does_not_matter():
    config = dataclasses.replace(MODERN, positions="none", local_attention=0)
    inputs, order = of_lengths(9), np.random.RandomState(0).permutation(9)
    shuffled = inputs._replace(input_ids=inputs.input_ids[:, order])
    np.testing.assert_allclose(run(config, shuffled), run(config, inputs)[:, order], atol=1e-5)
    for positions in ("rotary", "sinusoidal", "learned"):
        config = dataclasses.replace(config, positions=positions)
        assert np.abs(run(config, shuffled) - run(config, inputs)[:, order]).max() > 1e-2


def test_a_gated_layer_equals_the_formula():
    config = dataclasses.replace(
        MODERN, num_layers=1, local_attention=0, positions="none", norm_type="rms", activation="silu", qk_norm=True
    )
    inputs, params = of_lengths(6), params_of(config)
    layer = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[0], params["encoder"]["layers"])

    def rms(x, scale):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * np.asarray(scale)

    x = np.asarray(params["embeddings"]["word_embeddings"], np.float64)[np.asarray(inputs.input_ids[0])]
    x = rms(x, params["embeddings"]["norm"]["scale"])
    own = layer["attention"]
    query, key, value = ((x @ own[name]["kernel"]).reshape(6, 3, 8) for name in ("query", "key", "value"))
    query, key = rms(query, own["query_norm"]["scale"]), rms(key, own["key_norm"]["scale"])
    weights = np.exp(np.einsum("snq,tnq->nst", query, key) / 8**0.5)
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("nst,tnq->snq", weights, value).reshape(6, 24) @ own["output"]["kernel"]
    y = rms(x, layer["output_norm"]["scale"])
    gate = y @ layer["gate"]["kernel"]
    x = x + (gate / (1 + np.exp(-gate)) * (y @ layer["intermediate"]["kernel"])) @ layer["output"]["kernel"]
    np.testing.assert_allclose(run(config, inputs)[0], rms(x, params["encoder"]["final_norm"]["scale"]), atol=2e-5)


def test_depth_scaled_initialization_scales_only_what_enters_the_residual_stream():
    config = dataclasses.replace(MODERN, hidden_size=96, intermediate_size=96, num_layers=8)
    scaled, plain = (
        jax.jit(Bert(each).init, static_argnames=("deterministic", "return_attention"))(
            jax.random.key(0), of_lengths(3), deterministic=True, return_attention=False
        )["params"]["encoder"]["layers"]
        for each in (dataclasses.replace(config, depth_scaled_init=True), config)
    )
    ratios = jax.tree.map(lambda a, b: float(jnp.std(a) / jnp.std(b)), scaled, plain)
    small = ratios["output"]["kernel"], ratios["attention"]["output"]["kernel"]
    np.testing.assert_allclose(small, 0.25, rtol=1e-5)
    np.testing.assert_allclose([ratios["gate"]["kernel"], ratios["attention"]["value"]["kernel"]], 1, rtol=1e-5)


def test_embeddings_of_another_size_are_projected_and_tied_to_the_head():
    config, inputs = dataclasses.replace(BERT, embedding_size=10), of_lengths(7)
    model, options = BertForMaskedLM(config), {"deterministic": True}
    params = random_params(lambda key: model.init(key, inputs, jnp.zeros((1, 1), int), **options))["params"]
    assert jax.tree.map(np.shape, params["masked_lm"]["transform"]) == {"kernel": (24, 10), "bias": (10,)}
    assert set(params["masked_lm"]) == {"transform", "norm", "bias"}
    tables = dict(params["bert"]["embeddings"])
    projection = tables.pop("projection")
    small = BertEmbeddings(dataclasses.replace(BERT, hidden_size=10, num_heads=1), 31, 16, 2)
    embedded = small.apply({"params": tables}, *inputs[:2], **options)
    output = Bert(config).apply(
        {"params": params["bert"]}, inputs, return_attention=False, return_layers=True, **options
    )
    np.testing.assert_allclose(output.layers[0], embedded @ projection["kernel"] + projection["bias"], atol=1e-5)
    assert "projection" not in params_of(BERT)["embeddings"]
