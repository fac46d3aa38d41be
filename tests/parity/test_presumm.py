"""Our BertSum against PreSumm's and BertSum's own code: their checkpoints, scores and gradients.

Golden files are made by golden/make_presumm_golden.py, which runs that code in an environment of its own; with
BERTJAX_PRESUMM="PYTHON PRESUMM BERTSUM" (that environment's interpreter and the two clones) the slow test does it anew.
"""

import functools
import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import build_all
from bertjax.interop import presumm
from bertjax.models.bert import BertConfig, BertInputs
from bertjax.models.bertsum import BertSum, BertSumConfig
from tests.parity.test_bert import distance

GOLDEN = Path(__file__).with_name("golden") / "presumm"
SCORERS = ("transformer", "classifier", "rnn")

# What no checkpoint says.
CHOICES = {
    "num_heads": 3,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "attention_backend": "xla",
    "initializer": "truncated_normal",
    "initializer_range": 0.02,
    "dtype": "float32",
    "scan_layers": True,
    "remat": False,
    "next_sentence": False,
    "scorer_dropout": 0.0,
}
# Of scorers that are not the file's.
ABSENT = {
    "scorer_layers": 1,
    "scorer_heads": 1,
    "scorer_intermediate": 1,
    "rnn_compat": False,
    "sentence_pooling": "cls",
}


def read(path, **changes):
    """The model that a checkpoint is of, and its parameters."""
    values = {**ABSENT, **presumm.describe(path), **CHOICES, **changes}
    model = BertSum(*build_all((BertConfig, BertSumConfig), values, "model"))
    params, report = presumm.load(path, shapes(model))
    assert report.missing == ()
    return model, params


@functools.cache
def shapes(model):
    ids = jnp.zeros((1, 1), jnp.int32)
    init = functools.partial(model.init, deterministic=True)
    inputs = BertInputs(ids, ids, ids, cls_positions=ids)
    return jax.eval_shape(init, jax.random.key(0), inputs, ids)["params"]


def score(model, params, batch):
    """The logits, and the scores, which are 0 at padding, as theirs."""
    logits = model.apply({"params": params}, BertInputs.of(batch), batch["sentence_mask"], deterministic=True)
    return logits, jnp.where(batch["sentence_mask"] != 0, jax.nn.sigmoid(logits), 0)


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, batch):
    """The scores, and the gradient of the masked binary cross-entropy, summed."""

    def loss(params):
        logits, scores = score(model, params, batch)
        losses = -jnp.where(batch["labels"], jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits))
        return jnp.sum(losses * batch["sentence_mask"]), scores

    gradient, scores = jax.grad(loss, has_aux=True)(params)
    return scores, gradient


def check(folder, scorer):
    model, params = read(folder / f"{scorer}.pt")
    assert model.head.scorer == scorer
    batch = dict(np.load(folder / "documents.npz"))
    assert len(batch["input_ids"]) == 100
    assert 0.2 < np.mean(batch["sentence_mask"]) < 0.9  # there is padding, and not all of it is
    scores, gradient = run(model, params, batch)
    expected = np.load(folder / f"{scorer}.npz")["scores"]
    assert expected[batch["sentence_mask"] == 1].std() > 0.05  # nothing is trivially constant
    difference = np.abs(scores - expected).max()
    print(f"{scorer}: max abs difference of scores {difference:.1e}")
    assert difference <= 1e-5
    theirs, report = presumm.load(folder / f"{scorer}_gradient.pt", shapes(model))
    assert report.missing == ()
    print(f"{scorer}: relative distance of gradients {distance(gradient, theirs):.1e}")
    assert distance(gradient, theirs) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("scorer", SCORERS)
def test_golden(scorer):
    check(GOLDEN, scorer)


def test_golden_lstm_as_meant():
    """BertSum's code without its slip, of each document alone: the padding that it reads is the batch's."""
    model, params = read(GOLDEN / "rnn.pt", rnn_compat=False)
    _, scores = jax.jit(score, static_argnums=0)(model, params, dict(np.load(GOLDEN / "documents.npz")))
    expected, published = (np.load(GOLDEN / f"{name}.npz")["scores"] for name in ("rnn_as_meant", "rnn"))
    assert np.abs(expected - published).max() > 0.01
    difference = np.abs(scores - expected).max()
    print(f"rnn as meant: max abs difference of scores {difference:.1e}")
    assert difference <= 1e-5


if "BERTJAX_PRESUMM" in os.environ:  # else there is no such test, so that none is missed

    @pytest.mark.slow
    def test_live(tmp_path):
        python, *clones = os.environ["BERTJAX_PRESUMM"].split()
        script = GOLDEN.with_name("make_presumm_golden.py")
        subprocess.run([python, script, *clones, "--output", tmp_path, "--seed", "100"], check=True)
        for scorer in SCORERS:
            check(tmp_path, scorer)
