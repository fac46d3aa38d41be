"""Our BertSum compared with PreSumm's and BertSum's own code: checkpoints, scores and gradients.

golden/make_presumm_golden.py makes the golden files by running that code in a separate environment.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import build, part
from bertjax.experiments.bertsum_ext import ModelConfig
from bertjax.interop.families import presumm
from bertjax.models.bert import BertInputs, HeadConfig
from bertjax.models.bertsum import BertSum, BertSumConfig
from tests.trees import distance

GOLDEN = Path(__file__).with_name("golden") / "presumm"
SCORERS = ("transformer", "classifier", "rnn")

# Fields that no checkpoint records.
CHOICES = {
    "num_heads": 3,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "attention_backend": "xla",
    "scan_layers": True,
    "scorer_dropout": 0.0,
}
# Fields of scorers that the file's scorer does not have.
ABSENT = dict.fromkeys(("scorer_layers", "scorer_heads", "scorer_intermediate"), 1)
ABSENT |= {"rnn_compat": False, "sentence_pooling": "cls"}


def read(path, **changes):
    """Returns the model of a checkpoint, and its parameters."""
    model = model_of(path, **changes)
    params, report = presumm.load(presumm.read(path), shapes(model))
    assert report.missing == ()
    return model, params


def model_of(path, **changes):
    """Returns the model of a checkpoint, with changes."""
    values = {**ABSENT, **presumm.describe(presumm.read(path)), **CHOICES, **changes}
    config = build(ModelConfig, values, "model")
    return BertSum(part(HeadConfig, config), part(BertSumConfig, config))


@functools.cache
def shapes(model):
    ids = jnp.zeros((1, 1), jnp.int32)
    init = functools.partial(model.init, deterministic=True)
    inputs = BertInputs(ids, ids, ids, cls_positions=ids)
    return jax.eval_shape(init, jax.random.key(0), inputs, ids)["params"]


def score(model, params, batch):
    """Returns the logits, and the scores, which are 0 at padding, like theirs."""
    logits = model.apply({"params": params}, BertInputs.of(batch), batch["sentence_mask"], deterministic=True)
    return logits, jnp.where(batch["sentence_mask"] != 0, jax.nn.sigmoid(logits), 0)


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, batch):
    """Returns the scores, and the gradient of the summed masked binary cross-entropy."""

    def loss(params):
        logits, scores = score(model, params, batch)
        losses = -jnp.where(batch["labels"], jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits))
        return jnp.sum(losses * batch["sentence_mask"]), scores

    gradient, scores = jax.grad(loss, has_aux=True)(params)
    return scores, gradient


@pytest.mark.slow
@pytest.mark.parametrize("scorer", SCORERS)
def test_golden(scorer):
    model, params = read(GOLDEN / f"{scorer}.pt")
    assert model.head.scorer == scorer
    batch = dict(np.load(GOLDEN / "documents.npz"))
    assert len(batch["input_ids"]) == 100
    assert 0.2 < np.mean(batch["sentence_mask"]) < 0.9  # there is some padding
    scores, gradient = run(model, params, batch)
    expected = np.load(GOLDEN / f"{scorer}.npz")["scores"]
    assert expected[batch["sentence_mask"] == 1].std() > 0.05  # not trivially constant
    difference = np.abs(scores - expected).max()
    print(f"{scorer}: max abs difference of scores {difference:.1e}")
    assert difference <= 1e-5
    theirs, report = presumm.load(presumm.read(GOLDEN / f"{scorer}_gradient.pt"), shapes(model))
    assert report.missing == ()
    print(f"{scorer}: relative distance of gradients {distance(gradient, theirs):.1e}")
    assert distance(gradient, theirs) <= 1e-5


def test_golden_corrected_lstm():
    """Uses BertSum's code with its error fixed, and each document alone, because it reads the batch's padding."""
    model, params = read(GOLDEN / "rnn.pt", rnn_compat=False)
    _, scores = jax.jit(score, static_argnums=0)(model, params, dict(np.load(GOLDEN / "documents.npz")))
    expected, published = (np.load(GOLDEN / f"{name}.npz")["scores"] for name in ("rnn_as_meant", "rnn"))
    assert np.abs(expected - published).max() > 0.01
    difference = np.abs(scores - expected).max()
    print(f"rnn as meant: max abs difference of scores {difference:.1e}")
    assert difference <= 1e-5
