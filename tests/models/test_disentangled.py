"""Disentangled attention and the convolution of the embeddings."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.attention import backends
from bertjax.models.attention.chunked import chunked
from bertjax.models.attention.disentangled import Distances, Positions
from bertjax.models.attention.inputs import AttentionInputs
from bertjax.models.attention.mask import make_mask
from bertjax.models.attention.xla import xla
from bertjax.models.bert import Bert
from tests.models.test_modern import BERT, of_lengths, params_of, run

CONFIG = dataclasses.replace(
    BERT,
    type_vocab_size=0,
    max_positions=256,
    positions="none",
    relative_positions="disentangled",
    relative_buckets=16,
    relative_distance=40,
    relative_norm=True,
    convolution_size=3,
)


def formula(distances, *arrays):
    """Attention over all keys with the two additional scores of each pair."""
    query, key, value, keys, queries = (np.asarray(x, np.float64) for x in arrays)
    size = query.shape[1]
    rows = distances.rows_of(np.subtract.outer(np.arange(size), np.arange(size)))
    scores = np.einsum("bsnd,btnd->bnst", query, key)
    if distances.terms != "position_to_content":
        scores += np.einsum("bsnd,nstd->bnst", query, keys[:, rows])
    if distances.terms != "content_to_position":
        scores += np.einsum("btnd,nstd->bnst", key, queries[:, rows])
    weights = np.exp(scores * query.shape[-1] ** -0.5)
    return np.einsum("bnst,btnd->bsnd", weights / weights.sum(-1, keepdims=True), value)


@pytest.mark.parametrize("terms", ["both", "content_to_position", "position_to_content"])
def test_all_forms_of_attention_equal_the_formula(monkeypatch, terms):
    """With more than one block of queries, and the same gradients."""
    distances, rng = Distances(16, 40, terms), np.random.default_rng(0)
    qkv = [rng.standard_normal((2, 150, 3, 4), np.float32) for _ in range(3)]
    tables = [rng.standard_normal((3, 16, 4), np.float32) for _ in range(2)]
    mask, weights = make_mask(jnp.ones((2, 150), int), "both"), rng.standard_normal(qkv[0].shape, np.float32)

    def loss(attend, query, key, value, keys, queries):
        keys, queries = (None if terms.startswith(no) else x for no, x in (("pos", keys), ("con", queries)))
        positions = Positions(keys, queries, distances)
        output = attend(AttentionInputs(query, key, value, mask, relative=positions))[0]
        return jnp.sum(output * weights), output

    monkeypatch.setattr("bertjax.models.attention.chunked._SCORES_AT_A_TIME", 150 * 150)
    monkeypatch.setattr("bertjax.models.attention.chunked._MIN_CHUNKS", 1)
    found = {}
    for attend in (xla, chunked, backends._with_scores_of_positions):
        both = jax.jit(jax.grad(functools.partial(loss, attend), range(5), has_aux=True))
        found[attend], output = both(*qkv, *tables)
        np.testing.assert_allclose(output, formula(distances, *qkv, *tables), atol=1e-5)
    for gradients in found.values():
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=3e-5), gradients, found[xla])


@pytest.mark.parametrize("convolution_size", [0, 3])
def test_output_positions_and_all_layers(convolution_size):
    config = dataclasses.replace(CONFIG, convolution_size=convolution_size, scan_layers=True)
    inputs, places = of_lengths(60, 20), jnp.array([[3, 70, 0, 59]])
    hidden, variables = run(config, inputs), {"params": params_of(config)}
    call = functools.partial(Bert(config).apply, variables, inputs, deterministic=True)
    some = call(return_attention=False, output_positions=places).hidden
    np.testing.assert_allclose(some, hidden[:, places[0]], atol=1e-5)
    whole = call(return_attention=True, return_layers=True)
    assert (whole.attention.shape, whole.layers.shape) == ((4, 1, 3, 80, 80), (5, 1, 80, 24))
    np.testing.assert_allclose(whole.layers[-1], hidden, atol=1e-5)
