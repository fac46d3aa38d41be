"""Invariances of BertSum's scores. `tests/parity/test_presumm.py` compares them with the published code."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import PartitionSpec as P

from bertjax.errors import UserError
from bertjax.models.bert import Bert, BertInputs
from bertjax.models.bertsum import SCORERS, BertSum, BertSumConfig, _numbers, first_places
from bertjax.models.embeddings import sinusoids
from bertjax.models.transformer import TENSOR_RULES
from bertjax.training.sharding import MeshConfig, make_mesh, tree_shardings
from tests.models.test_heads import CONFIG
from tests.random_params import random_params

HEAD = BertSumConfig(
    scorer="transformer",
    scorer_layers=3,
    scorer_heads=3,
    scorer_intermediate=20,
    scorer_dropout=0.1,
    rnn_compat=False,
    sentence_pooling="cls",
)
CASES = [*SCORERS, "rnn_compat", "classifier_mean"]
FAITHFUL = [*SCORERS, "classifier_mean"]  # cases whose scores do not depend on padding

LENGTHS, SENTENCES = (10, 6, 8), (4, 1, 3)
REAL = np.arange(10) < np.array(LENGTHS)[:, None]
MASK = np.arange(4) < np.array(SENTENCES)[:, None]
SENTENCE_MASK = MASK.astype(np.int32)


def head(case):
    scorer, _, option = case.partition("_")
    pooling = "mean" if option == "mean" else "cls"
    return dataclasses.replace(HEAD, scorer=scorer, rnn_compat=option == "compat", sentence_pooling=pooling)


def batch(padding=0):
    """Documents with 4, 1 and 3 sentences, with arbitrary values at padding."""
    random = np.random.default_rng(0)
    starts = np.array([[0, 3, 4, 8], [0, 0, 0, 0], [0, 2, 5, 0]])
    return {
        "input_ids": (np.where(REAL, random.integers(1, 31, REAL.shape), padding)).astype(np.int32),
        "token_type_ids": (np.where(REAL, np.arange(10) // 3 % 2, padding and 1)).astype(np.int32),
        "segment_ids": REAL.astype(np.int32),
        "cls_positions": (np.where(MASK, starts, padding)).astype(np.int32),
        "sentence_mask": SENTENCE_MASK,
    }


def arguments(inputs):
    return BertInputs.of(inputs), inputs["sentence_mask"], inputs.get("first_sentences")


def make(case):
    return BertSum(CONFIG, head(case))


def abstract(model):
    return jax.eval_shape(functools.partial(model.init, deterministic=True), jax.random.key(0), *arguments(batch()))


@functools.cache
def init(case):
    """Random parameters, none of which is exactly 0 or 1."""
    return random_params(functools.partial(make(case).init, deterministic=True), *arguments(batch()), scale=0.3)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, variables, inputs, key=None):
    rngs = {} if key is None else {"dropout": key}
    return model.apply(variables, *arguments(inputs), deterministic=key is None, rngs=rngs)


@functools.partial(jax.jit, static_argnums=0)
def run_with_gradient(model, variables, inputs):
    """The logits, and the gradient of a weighted sum of the scores."""

    def loss(variables):
        logits = apply(model, variables, inputs)
        scores = jnp.where(inputs["sentence_mask"] != 0, jax.nn.sigmoid(logits), 0)
        return jnp.sum(scores * jnp.arange(1, 5)), logits

    gradient, logits = jax.grad(loss, has_aux=True)(variables)
    return logits, gradient


def run(case, variables, inputs):
    """The logits, from the program that also computes the gradient, so that each case compiles once."""
    return np.asarray(run_with_gradient(make(case), variables, inputs)[0])


@functools.partial(jax.jit, static_argnums=0)
def apply_scorer(model, variables, sentences, mask, first):
    return model.apply(variables, method=lambda model: model.scorer(sentences, mask, first, deterministic=True))


def score(case, sentences, first=(0, 0, 0)):
    """The scores of the scorer without BERT."""
    return np.asarray(apply_scorer(make(case), init(case), sentences, SENTENCE_MASK, np.array(first, np.int32)))


def test_mean_pooling_of_sentences():
    inputs, variables = batch(), init("classifier_mean")
    apply = jax.jit(functools.partial(Bert(CONFIG).apply, deterministic=True, return_attention=False))
    hidden = np.asarray(apply({"params": variables["params"]["bert"]}, BertInputs.of(inputs)).hidden)
    linear, ours = variables["params"]["scorer"]["linear"], run("classifier_mean", variables, inputs)
    for row, parts in enumerate([[(0, 3), (3, 4), (4, 8), (8, 10)], [(0, 6)], [(0, 2), (2, 5), (5, 8)]]):
        means = np.stack([hidden[row, begin:end].mean(0) for begin, end in parts])
        np.testing.assert_allclose(
            ours[row, : len(parts)], (means @ linear["kernel"] + linear["bias"])[:, 0], atol=2e-5
        )


def test_first_places():
    flags = jnp.array([[1, 0, 0, 1, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0], [0] * 8])
    assert first_places(flags, 2).tolist() == [[0, 3], [1, 2], [7, 7]]
    assert first_places(flags, 4).tolist() == [[0, 3, 5, 7], [1, 2, 7, 7], [7] * 4]


def test_sentences_of_a_part_are_numbered_as_in_the_document():
    """Holds for large sentence numbers, within float32 precision."""
    table = sinusoids(3000, CONFIG.hidden_size, "interleaved")
    first = np.array([0, 7, 2990])
    numbers = np.asarray(jax.jit(_numbers, static_argnums=(1, 2))(first, 4, CONFIG.hidden_size))
    for row, start in enumerate(first.tolist()):
        np.testing.assert_allclose(numbers[row], table[start : start + 4], atol=5e-4 if start > 100 else 1e-6)
    x = np.random.default_rng(0).standard_normal((3, 4, CONFIG.hidden_size)).astype(np.float32)
    x = np.where(MASK[..., None], x, 0)
    shifted = np.where(MASK[..., None], x + numbers - table[:4], 0).astype(np.float32)
    ours = score("transformer", x, first)
    np.testing.assert_allclose(ours[MASK], score("transformer", shifted)[MASK], atol=2e-5)
    for case in ("classifier", "rnn"):
        np.testing.assert_array_equal(score(case, x, first), score(case, x))


def test_first_sentences_default_to_0():
    """Also checks that a boolean mask gives the same result."""
    variables = init("transformer")
    whole = run("transformer", variables, batch())
    one, other = (
        np.asarray(apply(make("transformer"), variables, {**batch(), "sentence_mask": MASK, "first_sentences": first}))
        for first in (np.array([0, 0, 0]), np.array([0, 5, 0]))
    )
    np.testing.assert_allclose(one[MASK], whole[MASK], atol=1e-6)
    changed = np.abs(other - whole) > 1e-4
    assert changed[1, 0] and not changed[::2][MASK[::2]].any()


@pytest.mark.parametrize("case", CASES)
def test_padding_does_not_change_the_scores(case):
    ours, other = run(case, init(case), batch()), run(case, init(case), batch(padding=5))
    assert np.ptp(ours[0]) > 1e-2 or case == "rnn_compat"
    np.testing.assert_array_equal(ours[MASK], other[MASK])


@pytest.mark.parametrize("case", FAITHFUL)
def test_scores_do_not_depend_on_the_batch(case):
    """Compares two documents in a batch with fewer tokens, more sentences, and rows of padding around them."""
    together = run(case, init(case), batch())
    of_sentences = ("cls_positions", "sentence_mask")
    inputs = {name: x[1:, : 3 if name in of_sentences else 8] for name, x in batch().items()}
    inputs = {name: np.pad(x, ((2, 1), (0, 5 * (name in of_sentences)))) for name, x in inputs.items()}
    apart = np.asarray(apply(make(case), init(case), inputs))[2:4, :3]
    np.testing.assert_allclose(apart[MASK[1:, :3]], together[1:, :3][MASK[1:, :3]], atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_rows_of_padding_have_finite_gradients(case):
    _, gradient = run_with_gradient(make(case), init(case), jax.tree.map(np.zeros_like, batch()))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_except_the_unused_norm_gets_a_gradient(case):
    _, gradient = run_with_gradient(make(case), init(case), batch())
    for path, leaf in traverse_util.flatten_dict(gradient["params"], sep="/").items():
        if "scorer/layers/attention_norm" in path:
            assert np.abs(leaf).max(1).astype(bool).tolist() == [False, True, True]
        elif not path.endswith("key/bias"):  # a key bias shifts all scores of a query equally
            assert np.abs(leaf).max() > 0, path


@pytest.mark.parametrize("case", ["transformer", "rnn"])
def test_dropout_is_determined_by_its_key(case):
    keys = (jax.random.key(seed, impl="rbg") for seed in (0, 0, 1))  # compiles faster than threefry
    first, again, other = (np.asarray(apply(make(case), init(case), batch(), key)) for key in keys)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other)[MASK].max() > 1e-4


@pytest.mark.parametrize("scorer", SCORERS)
def test_initial_parameters(scorer):
    model = BertSum(dataclasses.replace(CONFIG, hidden_size=48), dataclasses.replace(HEAD, scorer=scorer))
    x, mask, first = np.zeros((1, 2, 48), np.float32), np.ones((1, 2), np.int32), np.zeros(1, np.int32)
    initialize = functools.partial(model.init, method=lambda model: model.scorer(x, mask, first, deterministic=True))
    params = jax.jit(initialize)(jax.random.key(0))["params"]["scorer"]
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        if path.endswith("kernel"):
            limit = (6 / (leaf.shape[-2] + leaf.shape[-1])) ** 0.5
            assert 0.9 * limit < np.abs(leaf).max() <= limit * (1 + 1e-6), path
        else:
            assert np.unique(leaf).tolist() == [1.0 if path.endswith("scale") else 0.0], path


def test_bfloat16_gives_float32_logits():
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    for scorer in SCORERS:
        model = BertSum(config, dataclasses.replace(HEAD, scorer=scorer))
        assert jax.eval_shape(functools.partial(apply, model), init(scorer), batch()).dtype == jnp.float32
    model, variables = BertSum(config, HEAD), init("transformer")
    logits = np.asarray(apply(model, variables, batch()))
    np.testing.assert_allclose(logits[MASK], run("transformer", variables, batch())[MASK], atol=0.2)


def test_a_tensor_axis_splits_the_same_parameters_as_in_bert():
    config = dataclasses.replace(CONFIG, hidden_size=128, num_heads=2)
    model = BertSum(config, dataclasses.replace(HEAD, scorer_heads=2, scorer_intermediate=512))
    params = abstract(model)["params"]
    mesh = make_mesh(MeshConfig(4, 1, 2), jax.devices())
    specs = jax.tree.map(lambda sharding: sharding.spec, tree_shardings(params["scorer"], mesh, TENSOR_RULES))
    flat = traverse_util.flatten_dict(specs, sep="/")
    for name in ("attention/query", "intermediate"):
        assert flat[f"layers/{name}/kernel"] == P(None, None, "tensor")
    for name in ("attention/output", "output"):
        assert flat[f"layers/{name}/kernel"] == P(None, "tensor", None)


def test_scorers_that_do_not_fit():
    heads = dataclasses.replace(HEAD, scorer_heads=5)
    with pytest.raises(UserError, match=r"model\.scorer_heads: got 5; expected a divisor of model.hidden_size=12"):
        abstract(BertSum(CONFIG, heads))
    odd, rnn = dataclasses.replace(CONFIG, hidden_size=15), dataclasses.replace(HEAD, scorer="rnn")
    with pytest.raises(UserError, match=r"model\.hidden_size: got 15; expected an even number with model.scorer=rnn"):
        abstract(BertSum(odd, rnn))
