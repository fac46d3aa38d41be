import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bertjax.errors import UserError
from bertjax.models.bert import Bert, BertInputs
from bertjax.models.heads import (
    BertFeatureTagger,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    FeatureTagger,
)
from tests import published
from tests.random_params import random_params

SIZES = {"hidden_size": 12, "num_layers": 2, "num_heads": 3, "intermediate_size": 20, "vocab_size": 31}
VALUES = {**SIZES, "max_positions": 10, "dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.3}
CONFIG = dataclasses.replace(published.CONFIG, **VALUES, scan_layers=True)
LENGTH = 8
REAL = np.arange(LENGTH) < np.array([[8], [5], [7]])
KINDS = ("sequence", "token", "question")
CALLS = [(kind, lstm_size) for kind in KINDS for lstm_size in (0, 5)]


def batch(padding=0):
    """Three rows of decreasing length, with an arbitrary token at padding."""
    ids = np.random.RandomState(0).randint(1, 31, (3, LENGTH))
    types = np.array([[0] * 4 + [1] * 4, [0] * 8, [0] * 2 + [1] * 6])
    return BertInputs(np.where(REAL, ids, padding), types, REAL.astype(np.int32))


def make(kind, lstm_size=0, config=CONFIG, dropout=0.1):
    if kind == "sequence":
        return BertForSequenceClassification(config, 4, dropout, lstm_size)
    if kind == "token":
        return BertForTokenClassification(config, 4, dropout, lstm_size)
    return BertForQuestionAnswering(config, lstm_size)


@functools.cache
def init(model):
    return random_params(functools.partial(model.init, deterministic=True), *arguments(model), scale=0.3)


def arguments(model, inputs=None):
    """The positional arguments of a model: features and segments, or BERT's inputs."""
    if isinstance(model, FeatureTagger):
        return inputs or features()
    return (inputs or batch(),)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, variables, inputs, key):
    rngs = {} if key is None else {"dropout": key}
    return model.apply(variables, *arguments(model, inputs), deterministic=key is None, rngs=rngs)


def run(model, variables, inputs, seed=None):
    """The outputs, with dropout if there is a seed. "rbg" keys compile faster than "threefry2x32" keys."""
    key = None if seed is None else jax.random.key(seed, impl="rbg")
    return jax.tree.map(np.asarray, apply(model, variables, inputs, key))


@functools.partial(jax.jit, static_argnums=0)
def run_with_gradient(model, variables, inputs):
    """The outputs, and the gradient of the sum of their squares."""

    def loss(variables):
        outputs = apply(model, variables, inputs, None)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(outputs)), outputs

    gradient, outputs = jax.grad(loss, has_aux=True)(variables)
    return outputs, gradient


def abstract(model):
    init = functools.partial(model.init, deterministic=True)
    return jax.eval_shape(init, jax.random.key(0), *arguments(model))["params"]


@pytest.mark.parametrize(("kind", "lstm_size"), CALLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes_and_dtypes(kind, lstm_size, dtype):
    model = make(kind, lstm_size, dataclasses.replace(CONFIG, dtype=dtype))
    output = jax.eval_shape(functools.partial(apply, model), {"params": abstract(model)}, batch(), None)
    shapes = {"sequence": [(3, 4)], "token": [(3, LENGTH, 4)], "question": [(3, LENGTH)] * 2}
    assert [leaf.shape for leaf in jax.tree.leaves(output)] == shapes[kind]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(output)} == {"float32"}


def test_heads_are_affine_maps_of_bert():
    bert = init(make("sequence"))["params"]["bert"]
    apply = functools.partial(Bert(CONFIG, pooler_activation="tanh").apply, deterministic=True, return_attention=False)
    output = jax.tree.map(np.asarray, jax.jit(apply)({"params": bert}, batch()))
    without_pooler = {name: leaf for name, leaf in bert.items() if name != "pooler"}
    for kind in KINDS:
        params = init(make(kind))["params"] | {"bert": bert if kind == "sequence" else without_pooler}
        head = params["qa_outputs" if kind == "question" else "classifier"]
        expected = (output.pooled[:, 0] if kind == "sequence" else output.hidden) @ head["kernel"] + head["bias"]
        logits, _ = run_with_gradient(make(kind), {"params": params}, batch())
        logits = np.stack(logits, axis=-1) if kind == "question" else logits
        np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize(("kind", "lstm_size"), CALLS)
def test_padding_does_not_change_the_logits(kind, lstm_size):
    model = make(kind, lstm_size)
    outputs = [run_with_gradient(model, init(model), batch(padding))[0] for padding in (0, 7)]
    if kind != "sequence":
        outputs = [jax.tree.map(lambda leaf: np.asarray(leaf)[REAL], output) for output in outputs]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), *outputs)


def other_word(rows, position):
    """The batch with a different word at one position of some rows."""
    inputs = batch()
    inputs.input_ids[rows, position] = (inputs.input_ids[rows, position] + 1) % 31
    return inputs


def moved(model, position):
    """For each row, whether a different word at `position` changes any of its outputs."""
    outputs = [jax.tree.leaves(run(model, init(model), each))[0] for each in (batch(), other_word(slice(3), position))]
    return (np.abs(outputs[0] - outputs[1]).reshape(3, -1).max(-1) > 1e-6).tolist()


@pytest.mark.parametrize(
    ("direction", "lstm_size"), [("both", 0), ("left_to_right", 0), ("left_to_right", 5), ("right_to_left", 0)]
)
def test_every_token_affects_the_logits_in_every_direction(direction, lstm_size):
    """With "left_to_right" the first token attends only to itself, so the last token must be classified."""
    model = make("sequence", lstm_size, dataclasses.replace(CONFIG, direction=direction))
    for position in (0, 3, 6, 7):
        assert moved(model, position) == REAL[:, position].tolist()


def test_a_bilstm_reads_both_directions_even_if_the_encoder_does_not():
    config = dataclasses.replace(CONFIG, direction="left_to_right")
    for lstm_size, expected in ((0, [LENGTH - 1]), (5, list(range(LENGTH)))):
        model = make("token", lstm_size, config)
        change = np.abs(run(model, init(model), other_word(0, -1)) - run(model, init(model), batch()))[0].max(-1)
        assert np.flatnonzero(change > 1e-7).tolist() == expected


def test_a_classifier_of_the_first_token_computes_no_other_in_the_last_layer():
    def flops(pooling):
        config = dataclasses.replace(CONFIG, num_layers=1, scan_layers=False, pooling=pooling)
        model = make("sequence", 0, config, dropout=0.0)
        program = jax.jit(functools.partial(model.apply, deterministic=False))
        return program.lower(init(model), batch()).cost_analysis()["flops"]

    assert flops("cls") < 0.6 * flops("mean")


@pytest.mark.parametrize(("kind", "lstm_size"), [("sequence", 0), ("token", 5)])
def test_dropout_of_the_heads_input(kind, lstm_size):
    """BERT has no dropout here, so only the head's dropout changes the output."""
    model = make(kind, lstm_size, dropout=0.5)
    outputs = [run(model, init(model), batch(), seed) for seed in (None, 0, 0, 1)]
    np.testing.assert_array_equal(outputs[1], outputs[2])
    for a, b in ((0, 1), (1, 3)):
        assert not np.allclose(outputs[a], outputs[b], atol=1e-3)
    plain = make(kind, lstm_size, dropout=0.0)
    np.testing.assert_allclose(run(plain, init(model), batch(), seed=0), outputs[0], atol=1e-6)


def test_question_answering_has_no_dropout_before_the_head():
    model = make("question")
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-6),
        run(model, init(model), batch(), seed=0),
        run(model, init(model), batch()),
    )


@pytest.mark.parametrize(("kind", "lstm_size"), CALLS)
def test_every_parameter_except_key_biases_gets_a_gradient(kind, lstm_size):
    model = make(kind, lstm_size)
    _, gradients = run_with_gradient(model, init(model), batch())
    gradients = traverse_util.flatten_dict(gradients["params"], sep="/")
    # A constant added to all keys changes no softmax.
    without = {path for path, leaf in gradients.items() if np.abs(leaf).max() < 1e-6 and "key/bias" not in path}
    assert without == set()


def tagger(mixing="concatenation", **changes):
    values = {"num_layers": 2, "lstm_size": 5, "dropout": 0.0, "initializer_range": 0.3, **changes}
    return FeatureTagger(num_labels=4, mixing=mixing, **values)


def features():
    x = np.random.default_rng(0).standard_normal((3, LENGTH, 2, 6)).astype(np.float32)
    return x, REAL.astype(np.int32)


@pytest.mark.parametrize(
    ("mixing", "size", "mix"),
    [("concatenation", 12, None), ("sum", 6, None), ("weighted", 6, {"weights": (2,), "gamma": ()})],
)
def test_feature_tagger(mixing, size, mix):
    model = tagger(mixing)
    params = abstract(model)
    logits = jax.eval_shape(functools.partial(apply, model), {"params": params}, features(), None)
    assert (logits.shape, logits.dtype) == ((3, LENGTH, 4), jnp.float32)
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes.pop("mix", None) == mix
    assert {name: leaves.get("input_kernel") for name, leaves in shapes.items()} == {
        "lstm_0": (size, 2, 4, 5),
        "lstm_1": (10, 2, 4, 5),
        "classifier": None,
    }


def test_feature_tagger_ignores_padding():
    model, (x, segments) = tagger("weighted"), features()
    other = np.where(REAL[..., None, None], x, np.float32(9))
    logits = [run(model, init(model), (each, segments))[REAL] for each in (x, other)]
    np.testing.assert_array_equal(*logits)


def bert_tagger(layers=(0, -2), **changes):
    values = {"config": CONFIG, "mixing": "weighted", "num_lstm_layers": 2, "lstm_size": 5, "dropout": 0.0, **changes}
    return BertFeatureTagger(num_labels=4, layers=layers, **values)


def test_bert_feature_tagger_is_a_feature_tagger_on_top_of_bert():
    params = init(bert_tagger())["params"]
    logits, _ = run_with_gradient(bert_tagger(), {"params": params}, batch())
    options = {"deterministic": True, "return_attention": False, "return_layers": True}
    apply = jax.jit(functools.partial(Bert(CONFIG).apply, **options))
    layers = np.asarray(apply({"params": params["bert"]}, batch()).layers)
    x = np.stack([layers[0], layers[1]], axis=2)
    expected = run(tagger("weighted"), {"params": params["tagger"]}, (x, batch().segment_ids))
    np.testing.assert_allclose(np.asarray(logits)[REAL], expected[REAL], atol=1e-5)


def test_bert_below_a_tagger_gets_no_gradient():
    _, gradients = run_with_gradient(bert_tagger(), init(bert_tagger()), batch())
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradients["params"]["bert"]))
    assert all(leaf.any() for leaf in jax.tree.leaves(gradients["params"]["tagger"]))


def test_a_tagger_has_dropout_but_its_bert_has_not():
    variables, config = init(bert_tagger()), dataclasses.replace(CONFIG, dropout=0.5)
    logits, _ = run_with_gradient(bert_tagger(), variables, batch())
    still, dropped = (run(bert_tagger(config=config, dropout=rate), variables, batch(), seed=1) for rate in (0.0, 0.5))
    np.testing.assert_allclose(still, logits, atol=1e-6)
    assert not np.allclose(dropped, logits, atol=1e-3)


def test_a_tagger_checks_its_layers():
    with pytest.raises(UserError, match=r"model\.feature_layers: got \(3,\); expected one or more of 0"):
        abstract(bert_tagger(layers=(3,)))


@pytest.mark.parametrize("kind", [*KINDS, "features"])
def test_a_bilstm_with_packed_rows_is_a_user_error(kind):
    model = bert_tagger() if kind == "features" else make(kind, lstm_size=5)
    packed = batch()._replace(position_ids=np.tile(np.arange(LENGTH), (3, 1)))
    with pytest.raises(UserError, match=r"model\.lstm_size: got 5; expected 0 with packed rows"):
        jax.eval_shape(functools.partial(model.init, deterministic=True), jax.random.key(0), packed)
