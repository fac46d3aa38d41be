"""The mapping between our parameters and transformers' tensors, tested with weights that transformers wrote."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import traverse_util
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from bertjax.config import build
from bertjax.errors import UserError
from bertjax.interop import bert_tensors
from bertjax.interop.published import open_weights
from bertjax.models.bert import Bert, BertForPreTraining, BertInputs, HeadConfig
from bertjax.models.heads import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from tests.trees import assert_equal

# A BertForPreTraining, written by `save_pretrained` of transformers.
GOLDEN = Path(__file__).parents[1] / "parity" / "golden" / "bert_erf"
CHOICES = {"scan_layers": True}
WORDS = "bert.embeddings.word_embeddings.weight"
CLASSES = 4
HEADS = ("bert.pooler", "cls.predictions", "cls.seq_relationship", "classifier", "qa_outputs")


def configured(**changes):
    return build(HeadConfig, {**open_weights(GOLDEN).fields, **CHOICES, **changes}, "model")


@functools.cache
def shapes(name, lstm_size=0, **changes):
    """The shapes of the parameters of one of our models."""
    config, ids = configured(**changes), jnp.zeros((1, 1), jnp.int32)
    positions, options = (), {"deterministic": True}
    if name in ("pretraining", "masked_lm"):
        model = BertForPreTraining(config, predicts_next=name == "pretraining")
        positions, options = (ids,), options | {"return_attention": False}
    elif name in ("bert", "bert_without_pooler"):
        model, options = Bert(config, "tanh" if name == "bert" else ""), options | {"return_attention": False}
    else:
        model = {
            "sequence": lambda: BertForSequenceClassification(config, CLASSES, 0.1, lstm_size),
            "token": lambda: BertForTokenClassification(config, CLASSES, 0.1, lstm_size),
            "question": lambda: BertForQuestionAnswering(config, lstm_size),
        }[name]()
    init = functools.partial(model.init, **options)
    return jax.eval_shape(init, jax.random.key(0), BertInputs(ids, ids, ids), *positions)["params"]


@pytest.fixture(scope="module")
def tensors():
    """The tensors of BertForPreTraining."""
    return load_file(GOLDEN / "model.safetensors")


@pytest.fixture(scope="module")
def params(tensors):
    return bert_tensors.assemble(tensors, shapes("pretraining"), "here")[0]


def with_heads(tensors, *names):
    """The tensors of the encoder and of some heads."""
    rng = np.random.default_rng(0)
    for head, size in {"classifier": CLASSES, "qa_outputs": 2}.items():
        kernel, bias = rng.standard_normal((size, 36), np.float32), rng.standard_normal(size, np.float32)
        tensors = {**tensors, f"{head}.weight": kernel, f"{head}.bias": bias}
    others = tuple(f"{head}." for head in HEADS if head not in names)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(others)}


MODELS = {
    "bert": ("bert.pooler",),
    "bert_without_pooler": (),
    "pretraining": ("bert.pooler", "cls.predictions", "cls.seq_relationship"),
    "masked_lm": ("cls.predictions",),
    "sequence": ("bert.pooler", "classifier"),
    "token": ("classifier",),
    "question": ("qa_outputs",),
}


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(tensors, name):
    given, like = with_heads(tensors, *MODELS[name]), shapes(name)
    params, report = bert_tensors.assemble(given, like, "here")
    assert report == ((), ())
    assert jax.tree.map(np.shape, params) == jax.tree.map(lambda leaf: leaf.shape, like)
    back = bert_tensors.disassemble(params)
    assert_equal(back, given)
    assert all(array.flags.c_contiguous for array in back.values())


# Our module: tensors that the weights lack.
@pytest.mark.parametrize(
    ("name", "lacking", "missing"),
    [
        ("pretraining", ("bert.pooler", "cls.seq_relationship"), ("bert/pooler", "next_sentence")),
        ("masked_lm", ("cls.predictions",), ("masked_lm",)),
        ("sequence", ("bert.pooler", "classifier"), ("bert/pooler", "classifier")),
        ("token", ("classifier",), ("classifier",)),
        ("question", ("qa_outputs",), ("qa_outputs",)),
        ("bert", ("bert.pooler",), ("pooler",)),
    ],
)
def test_missing_modules_are_reported_and_omitted(tensors, name, lacking, missing):
    given = with_heads(tensors, *(head for head in MODELS[name] if head not in lacking))
    params, report = bert_tensors.assemble(given, shapes(name), "here")
    assert report == (missing, ())
    found = traverse_util.flatten_dict(params, sep="/").keys()
    wanted = traverse_util.flatten_dict(shapes(name), sep="/").keys()
    assert found == {path for path in wanted if not path.startswith(tuple(f"{module}/" for module in missing))}


def test_unused_tensors_are_reported(tensors):
    given = with_heads(tensors, *HEADS)
    _, report = bert_tensors.assemble(given, shapes("bert_without_pooler"), "here")
    assert report.missing == ()
    assert report.unused == tuple(sorted(name for name in given if name.startswith(HEADS)))
    assert len(report.unused) == 13


def test_an_lstm_is_always_missing_and_cannot_be_written(tensors):
    like = shapes("token", lstm_size=5)
    params, report = bert_tensors.assemble(with_heads(tensors), like, "here")
    assert report == (("classifier", "lstm"), ())
    params |= {name: jax.tree.map(lambda leaf: np.zeros(leaf.shape), like[name]) for name in report.missing}
    message = r"model\.lstm_size: got 5 \(lstm/.*\); expected 0, as in transformers"
    with pytest.raises(UserError, match=message):
        bert_tensors.disassemble(params)


LAYER = "bert.encoder.layer.{}.output.dense.{}"


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (LAYER.format(1, "bias"), None, r"got no such tensor; expected shape \(36,\)\. Fix: use "),
        ("bert.pooler.dense.bias", None, r"got no such tensor"),
        (LAYER.format(0, "weight"), (36, 51), r"got \(36, 51\); expected shape \(36, 50\)"),
        ("cls.seq_relationship.bias", (3,), r"got \(3,\); expected shape \(2,\)"),
        ("crf.transitions", (2, 2), r"tensors: got 1 unknown: crf\.transitions; expected .* Fix: use a BERT"),
        (LAYER.format(2, "bias"), (36,), r"tensors: got 1 unknown: bert\.encoder\.layer\.2\.output\.dense\.bias"),
    ],
)
def test_damaged_weights_are_user_errors(tensors, name, shape, message):
    kept = {key: tensor for key, tensor in tensors.items() if key != name}
    kept |= {name: np.zeros(shape, np.float32)} if shape else {}
    what = "" if message.startswith("tensors") else f"{re.escape(name)}: "
    with pytest.raises(UserError, match=f"here: {what}{message}"):
        bert_tensors.assemble(kept, shapes("pretraining"), "here")


def test_repeated_and_constant_tensors_of_old_versions(tensors):
    old = dict(tensors)
    old["bert.embeddings.position_ids"] = np.arange(15)[None]
    old["cls.predictions.decoder.weight"] = tensors[WORDS]
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    assert_equal(bert_tensors.canonical(old, "here"), tensors)


OLD_NAMES = (
    lambda name: name.removeprefix("bert."),
    lambda name: re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name),
    lambda name: re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name),
)


@settings(max_examples=30)
@given(data=st.data())
def test_mixed_old_and_new_names_in_any_order(tensors, data):
    renamed = {}
    for name in data.draw(st.permutations(sorted(tensors))):
        new = name
        for rename in data.draw(st.lists(st.sampled_from(OLD_NAMES), unique=True)):
            new = rename(new)
        renamed[new] = tensors[name]
    assert_equal(bert_tensors.canonical(renamed, "here"), tensors)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_becomes_float32(tensors, dtype):
    half = bert_tensors.canonical({name: tensor.astype(dtype) for name, tensor in tensors.items()}, "here")
    assert {tensor.dtype.name for tensor in half.values()} == {"float32"}
    assert_equal(half, {name: tensor.astype(dtype).astype(np.float32) for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bert.pooler.dense.bias", lambda t: t.astype(np.int64), r"got int64; expected float32, float16 or bfloat16"),
        ("cls.predictions.decoder.weight", lambda t: t + 1, r"got other values; expected the values of bert\.emb"),
        ("pooler.dense.bias", lambda t: t + 1, r"got other values; expected the values of bert\.pooler\.dense\.bias"),
    ],
)
def test_conflicting_tensors_of_a_parameter_are_refused(tensors, name, change, message):
    source = {"cls.predictions.decoder.weight": WORDS}.get(name, f"bert.{name.removeprefix('bert.')}")
    with pytest.raises(UserError, match=rf"here: {re.escape(name)}: {message}"):
        bert_tensors.canonical({**tensors, name: change(tensors[source])}, "here")
