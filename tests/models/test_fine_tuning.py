import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bertjax.errors import UserError
from bertjax.models.bert import Bert, BertConfig
from bertjax.models.fine_tuning import (
    BertFeatureTagger,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    FeatureTagger,
)

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
    next_sentence=False,
)
LENGTH = 8
REAL = np.arange(LENGTH) < np.array([[8], [5], [7]])
KINDS = ("sequence", "token", "question")
CALLS = [(kind, lstm_size) for kind in KINDS for lstm_size in (0, 5)]


def batch(padding=0):
    """Three rows of falling length, with some token in the padding's place."""
    ids = np.random.RandomState(0).randint(1, 31, (3, LENGTH))
    return {
        "input_ids": jnp.asarray(np.where(REAL, ids, padding)),
        "token_type_ids": jnp.asarray([[0] * 4 + [1] * 4, [0] * 8, [0] * 2 + [1] * 6]),
        "segment_ids": jnp.asarray(REAL, jnp.int32),
    }


def make(kind, lstm_size=0, config=CONFIG, dropout=0.1):
    if kind == "sequence":
        return BertForSequenceClassification(config, 4, dropout, lstm_size)
    if kind == "token":
        return BertForTokenClassification(config, 4, dropout, lstm_size)
    return BertForQuestionAnswering(config, lstm_size)


@functools.cache
def init(model):
    return jax.jit(functools.partial(model.init, deterministic=True))(jax.random.key(0), **batch())


@functools.partial(jax.jit, static_argnums=0)
def run(model, variables, inputs, key=None):
    rngs = {} if key is None else {"dropout": key}
    return model.apply(variables, **inputs, deterministic=key is None, rngs=rngs)


def abstract(model):
    return jax.eval_shape(functools.partial(model.init, deterministic=True), jax.random.key(0), **batch())["params"]


@pytest.mark.parametrize(
    ("kind", "lstm_size", "bert", "head"),
    [
        ("sequence", 0, {"embeddings", "encoder", "pooler"}, {"classifier": (12, 4)}),
        ("sequence", 5, {"embeddings", "encoder"}, {"lstm": (12, 2, 4, 5), "classifier": (10, 4)}),
        ("token", 0, {"embeddings", "encoder"}, {"classifier": (12, 4)}),
        ("token", 5, {"embeddings", "encoder"}, {"lstm": (12, 2, 4, 5), "classifier": (10, 4)}),
        ("question", 0, {"embeddings", "encoder"}, {"qa_outputs": (12, 2)}),
        ("question", 5, {"embeddings", "encoder"}, {"lstm": (12, 2, 4, 5), "qa_outputs": (10, 2)}),
    ],
)
def test_parameters(kind, lstm_size, bert, head):
    params = abstract(make(kind, lstm_size))
    assert params["bert"].keys() == bert
    kernels = {name: leaf.get("kernel", leaf.get("input_kernel")) for name, leaf in params.items() if name != "bert"}
    assert {name: kernel.shape for name, kernel in kernels.items()} == head
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}


def test_heads_begin_as_truncated_normals():
    model = BertForSequenceClassification(dataclasses.replace(CONFIG, hidden_size=300), 200, 0.1, 0)
    head = jax.jit(lambda: model.init(jax.random.key(0), **batch(), deterministic=True)["params"]["classifier"])()
    assert not head["bias"].any()
    assert 0.59 < np.abs(head["kernel"]).max() <= 0.6
    np.testing.assert_allclose(np.std(head["kernel"]), 0.88 * 0.3, rtol=0.01)


@pytest.mark.parametrize(("kind", "lstm_size"), CALLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes_and_dtypes(kind, lstm_size, dtype):
    model = make(kind, lstm_size, dataclasses.replace(CONFIG, dtype=dtype))
    output = jax.eval_shape(run, model, {"params": abstract(model)}, batch())
    shapes = {"sequence": [(3, 4)], "token": [(3, LENGTH, 4)], "question": [(3, LENGTH)] * 2}
    assert [leaf.shape for leaf in jax.tree.leaves(output)] == shapes[kind]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(output)} == {"float32"}


def test_heads_are_affine_maps_of_bert():
    for kind in KINDS:
        model = make(kind)
        params, pooler = init(model)["params"], kind == "sequence"
        apply = functools.partial(Bert(CONFIG, use_pooler=pooler).apply, deterministic=True, return_attention=False)
        output = jax.jit(apply)({"params": params["bert"]}, **batch())
        head = params["qa_outputs" if kind == "question" else "classifier"]
        expected = (output.pooled[:, 0] if pooler else output.hidden) @ head["kernel"] + head["bias"]
        logits = run(model, init(model), batch())
        logits = jnp.stack(logits, axis=-1) if kind == "question" else logits
        np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize(("kind", "lstm_size"), CALLS)
def test_padding_changes_nothing(kind, lstm_size):
    model = make(kind, lstm_size)
    outputs = [run(model, init(model), batch(padding)) for padding in (0, 7)]
    if kind != "sequence":
        outputs = [jax.tree.map(lambda leaf: np.asarray(leaf)[REAL], output) for output in outputs]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), *outputs)


def moved(model, changed):
    """Which rows' outputs, at any position, another word at a position changes."""
    inputs = batch()
    other = {**inputs, "input_ids": inputs["input_ids"].at[:, changed].add(1) % 31}
    outputs = [jax.tree.leaves(run(model, init(model), each))[0] for each in (inputs, other)]
    return (np.abs(outputs[0] - outputs[1]).reshape(3, -1).max(-1) > 1e-6).tolist()


@pytest.mark.parametrize(
    ("direction", "lstm_size"), [("both", 0), ("left_to_right", 0), ("left_to_right", 5), ("right_to_left", 0)]
)
def test_every_token_counts_in_every_direction(direction, lstm_size):
    """From left to right the first token sees no other: what is classified has to be the last."""
    model = make("sequence", lstm_size, dataclasses.replace(CONFIG, direction=direction))
    for position in (0, 3, 6, 7):
        assert moved(model, position) == REAL[:, position].tolist()


def test_a_bilstm_looks_both_ways_where_the_encoder_does_not():
    config = dataclasses.replace(CONFIG, direction="left_to_right")
    inputs = batch()
    other = {**inputs, "input_ids": inputs["input_ids"].at[0, -1].add(1) % 31}
    for lstm_size, expected in ((0, [LENGTH - 1]), (5, list(range(LENGTH)))):
        model = make("token", lstm_size, config)
        change = np.abs(run(model, init(model), other) - run(model, init(model), inputs))[0].max(-1)
        assert np.flatnonzero(change > 1e-7).tolist() == expected


@pytest.mark.parametrize(("kind", "lstm_size"), [("sequence", 0), ("token", 5)])
def test_dropout_falls_on_what_goes_into_the_head(kind, lstm_size):
    """BERT has none here, so that only the head's is left."""
    model = make(kind, lstm_size, dropout=0.5)
    outputs = [run(model, init(model), batch(), key) for key in (None, *map(jax.random.key, (0, 0, 1)))]
    np.testing.assert_array_equal(outputs[1], outputs[2])
    for a, b in ((0, 1), (1, 3)):
        assert not np.allclose(outputs[a], outputs[b], atol=1e-3)
    plain = make(kind, lstm_size, dropout=0.0)
    np.testing.assert_allclose(run(plain, init(model), batch(), jax.random.key(0)), outputs[0], atol=1e-6)


def test_questions_have_no_dropout_before_the_head():
    model = make("question")
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-6),
        run(model, init(model), batch(), jax.random.key(0)),
        run(model, init(model), batch()),
    )


@pytest.mark.parametrize(("kind", "lstm_size"), CALLS)
def test_every_parameter_that_can_matter_has_a_gradient(kind, lstm_size):
    model = make(kind, lstm_size)

    def loss(variables):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(run(model, variables, batch())))

    gradients = traverse_util.flatten_dict(jax.jit(jax.grad(loss))(init(model))["params"], sep="/")
    # A constant added to all keys changes no softmax.
    without = {path for path, leaf in gradients.items() if np.abs(leaf).max() < 1e-6 and "key/bias" not in path}
    assert without == set()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_labels": 0}, r"model\.num_labels: got 0; expected at least 1\. Fix: change --config\.model\.num_labels"),
        ({"classifier_dropout": 1.0}, r"model\.classifier_dropout: got 1\.0; expected at least 0 and below 1"),
        ({"lstm_size": -1}, r"model\.lstm_size: got -1; expected at least 0"),
    ],
)
def test_bad_values_are_user_errors(change, message):
    for cls in (BertForSequenceClassification, BertForTokenClassification):
        values = {"num_labels": 2, "classifier_dropout": 0.1, "lstm_size": 0, **change}
        with pytest.raises(UserError, match=message):
            abstract(cls(CONFIG, **values))


def tagger(mixing="concatenation", **changes):
    values = {"num_layers": 2, "lstm_size": 5, "dropout": 0.0, "initializer_range": 0.3, **changes}
    return FeatureTagger(num_labels=4, mixing=mixing, **values)


def features():
    x = np.random.default_rng(0).standard_normal((3, LENGTH, 2, 6)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(REAL, jnp.int32)


@pytest.mark.parametrize(
    ("mixing", "size", "mix"),
    [("concatenation", 12, None), ("sum", 6, None), ("weighted", 6, {"weights": (2,), "gamma": ()})],
)
def test_feature_tagger(mixing, size, mix):
    model = tagger(mixing)
    logits, variables = model.init_with_output(jax.random.key(0), *features(), deterministic=True)
    assert (logits.shape, logits.dtype) == ((3, LENGTH, 4), jnp.float32)
    shapes = jax.tree.map(jnp.shape, variables["params"])
    assert shapes.pop("mix", None) == mix
    assert {name: leaves.get("input_kernel") for name, leaves in shapes.items()} == {
        "lstm_0": (size, 2, 4, 5),
        "lstm_1": (10, 2, 4, 5),
        "classifier": None,
    }


def test_feature_tagger_leaves_padding_out():
    (x, segment_ids), model = features(), tagger("weighted")
    logits, variables = model.init_with_output(jax.random.key(0), x, segment_ids, deterministic=True)
    other = jnp.where(REAL[..., None, None], x, 9.0)
    np.testing.assert_array_equal(model.apply(variables, other, segment_ids, deterministic=True)[REAL], logits[REAL])


def test_feature_tagger_drops_out():
    x, segment_ids = features()
    variables = tagger().init(jax.random.key(0), x, segment_ids, deterministic=True)
    outputs = [
        tagger(dropout=rate).apply(
            variables, x, segment_ids, deterministic=deterministic, rngs={"dropout": jax.random.key(1)}
        )
        for rate, deterministic in ((0.0, True), (0.5, True), (0.5, False))
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.allclose(outputs[0], outputs[2], atol=1e-3)


def test_feature_tagger_needs_an_lstm():
    with pytest.raises(UserError, match=r"model\.lstm_size: got 0; expected at least 1"):
        tagger(lstm_size=0).init(jax.random.key(0), *features(), deterministic=True)


def bert_tagger(layers=(0, -2), **changes):
    values = {"mixing": "concatenation", "num_lstm_layers": 2, "lstm_size": 5, "dropout": 0.0, **changes}
    return BertFeatureTagger(CONFIG, 4, layers, **values)


def test_bert_feature_tagger_is_bert_below_a_tagger():
    model = bert_tagger(mixing="weighted")
    logits, variables = model.init_with_output(jax.random.key(0), **batch(), deterministic=True)
    bert, options = Bert(CONFIG, use_pooler=False), {"return_attention": False, "return_layers": True}
    layers = bert.apply({"params": variables["params"]["bert"]}, **batch(), deterministic=True, **options).layers
    x = jnp.stack([layers[0], layers[1]], axis=2)
    above = {"params": variables["params"]["tagger"]}
    expected = tagger("weighted").apply(above, x, batch()["segment_ids"], deterministic=True)
    np.testing.assert_allclose(logits[REAL], expected[REAL], atol=1e-5)


def test_no_gradient_reaches_the_bert_below_a_tagger():
    model = bert_tagger(mixing="weighted")
    variables = model.init(jax.random.key(0), **batch(), deterministic=True)

    def loss(variables):
        return jnp.sum(model.apply(variables, **batch(), deterministic=True)[REAL] ** 2)

    gradients = jax.jit(jax.grad(loss))(variables)["params"]
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradients["bert"]))
    assert all(leaf.any() for leaf in jax.tree.leaves(gradients["tagger"]))


def test_a_tagger_uses_the_chosen_layers_alone():
    """The second layer of two makes no difference to the layers 0 and -2, and the first does."""
    model = bert_tagger()
    variables = model.init(jax.random.key(0), **batch(), deterministic=True)
    logits = model.apply(variables, **batch(), deterministic=True)
    for layer, matters in ((0, True), (1, False)):
        other = jax.tree.map(lambda leaf: leaf, variables)
        stacked = other["params"]["bert"]["encoder"]["layers"]["intermediate"]
        stacked["kernel"] = stacked["kernel"].at[layer].add(1.0)
        found = model.apply(other, **batch(), deterministic=True)
        assert np.array_equal(found, logits) is not matters


def test_a_tagger_drops_out_but_not_the_bert_below():
    variables = bert_tagger().init(jax.random.key(0), **batch(), deterministic=True)
    model = dataclasses.replace(bert_tagger(), config=dataclasses.replace(CONFIG, dropout=0.5))
    key = {"rngs": {"dropout": jax.random.key(1)}}
    logits = model.apply(variables, **batch(), deterministic=True)
    np.testing.assert_array_equal(model.apply(variables, **batch(), deterministic=False, **key), logits)
    dropped = dataclasses.replace(model, dropout=0.5).apply(variables, **batch(), deterministic=False, **key)
    assert not np.allclose(dropped, logits, atol=1e-3)


def test_a_tagger_checks_its_layers():
    with pytest.raises(UserError, match=r"model\.feature_layers: got \(3,\); expected one or more of 0"):
        bert_tagger(layers=(3,)).init(jax.random.key(0), **batch(), deterministic=True)
