import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.embeddings import BertEmbeddings
from tests.models.test_heads import CONFIG as BERT

CONFIG = dataclasses.replace(BERT, hidden_size=8, num_heads=2, dropout=0.5, initializer_range=0.02)
IDS = np.array([[3, 0, 10, 3], [1, 2, 3, 4]])
TYPES = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])


def embeddings(**changes):
    config = dataclasses.replace(CONFIG, **changes)
    return BertEmbeddings(config, vocab_size=11, max_positions=5, type_vocab_size=2)


@functools.cache
def initial():
    init = functools.partial(embeddings().init, deterministic=True)
    return jax.tree.map(np.asarray, jax.jit(init)(jax.random.key(0), IDS, TYPES))


@functools.partial(jax.jit, static_argnums=0)
def apply(module, variables, ids, types, key):
    rngs = {} if key is None else {"dropout": key}
    return module.apply(variables, ids, types, deterministic=key is None, rngs=rngs)


def run(variables, ids=IDS, types=TYPES, key=None, **changes):
    return np.asarray(apply(embeddings(**changes), variables, ids, types, key))


def test_embeddings_are_the_normalized_sum_of_three_tables():
    params = jax.tree.map(np.asarray, initial()["params"])
    params["norm"] = {"scale": np.linspace(0.5, 2, 8), "bias": np.linspace(-1, 1, 8)}
    output = run({"params": params})
    for b, s in np.ndindex(2, 4):
        x = (
            params["word_embeddings"][IDS[b, s]].astype(np.float64)
            + params["position_embeddings"][s]
            + params["token_type_embeddings"][TYPES[b, s]]
        )
        expected = (x - x.mean()) / x.std() * params["norm"]["scale"] + params["norm"]["bias"]
        np.testing.assert_allclose(output[b, s], expected, atol=1e-5)


def test_dropout_comes_last():
    still, dropped = run(initial()), run(initial(), key=jax.random.key(0))
    kept = dropped != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(dropped[kept], 2 * still[kept], rtol=1e-5)


def test_all_tokens_have_the_only_type():
    params = initial()["params"]
    params = {**params, "token_type_embeddings": params["token_type_embeddings"][:1]}
    module = embeddings().clone(type_vocab_size=1)
    found = [apply(module, {"params": params}, IDS, types, None) for types in (TYPES, 0 * TYPES)]
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0], run(initial(), types=0 * TYPES))


@pytest.mark.parametrize("where", ["input_ids", "token_type_ids"])
def test_an_id_outside_its_table_gives_nan(where):
    ids, types = IDS.copy(), TYPES.copy()
    if where == "input_ids":
        ids[0, 1] = 11
    else:
        types[0, 1] = 2
    output = run(initial(), ids, types)
    bad = np.isnan(output).all(-1)
    assert bad[0, 1]
    assert bad.sum() == 1


def test_a_sequence_that_is_too_long_is_a_user_error():
    ids = np.zeros((1, 6), np.int32)
    with pytest.raises(UserError, match=r"sequence length: got 6; expected at most model\.max_positions=5"):
        run(initial(), ids, ids)
