import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.embeddings import BertEmbeddings
from bertjax.models.transformer import TransformerConfig

CONFIG = TransformerConfig(
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    dropout=0.5,
    attention_dropout=0.0,
    activation_dropout=0.0,
    attention_backend="xla",
    activation="gelu",
    norm="post",
    norm_eps=1e-12,
    initializer="truncated_normal",
    initializer_range=0.02,
    dtype="float32",
    scan_layers=False,
    remat=False,
)
IDS = jnp.asarray([[3, 0, 10, 3], [1, 2, 3, 4]])
TYPES = jnp.asarray([[0, 0, 1, 1], [0, 1, 1, 1]])


def embeddings(**changes):
    config = dataclasses.replace(CONFIG, **changes)
    return BertEmbeddings(config, vocab_size=11, max_positions=5, type_vocab_size=2)


@pytest.fixture
def variables():
    return embeddings().init(jax.random.key(0), IDS, TYPES, deterministic=True)


def test_tables(variables):
    assert jax.tree.map(jnp.shape, variables["params"]) == {
        "word_embeddings": (11, 8),
        "position_embeddings": (5, 8),
        "token_type_embeddings": (2, 8),
        "norm": {"scale": (8,), "bias": (8,)},
    }
    assert 0 < np.abs(variables["params"]["word_embeddings"]).max() <= 0.04


def test_normalized_sum_of_the_three(variables):
    params = jax.tree.map(np.asarray, variables["params"])
    params["norm"] = {"scale": np.linspace(0.5, 2, 8), "bias": np.linspace(-1, 1, 8)}
    output = embeddings().apply({"params": params}, IDS, TYPES, deterministic=True)
    for b, s in np.ndindex(2, 4):
        x = (
            params["word_embeddings"][IDS[b, s]].astype(np.float64)
            + params["position_embeddings"][s]
            + params["token_type_embeddings"][TYPES[b, s]]
        )
        expected = (x - x.mean()) / x.std() * params["norm"]["scale"] + params["norm"]["bias"]
        np.testing.assert_allclose(output[b, s], expected, atol=1e-5)


def test_dropout_comes_last(variables):
    still = np.asarray(embeddings().apply(variables, IDS, TYPES, deterministic=True))
    rngs = {"dropout": jax.random.key(0)}
    dropped = np.asarray(embeddings().apply(variables, IDS, TYPES, deterministic=False, rngs=rngs))
    kept = dropped != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(dropped[kept], 2 * still[kept], rtol=1e-5)


@pytest.mark.parametrize("where", ["input_ids", "token_type_ids"])
def test_an_id_outside_its_table_gives_nan(variables, where):
    ids, types = (IDS.at[0, 1].set(11), TYPES) if where == "input_ids" else (IDS, TYPES.at[0, 1].set(2))
    output = embeddings().apply(variables, ids, types, deterministic=True)
    bad = np.isnan(output).all(-1)
    assert bad[0, 1]
    assert bad.sum() == 1


def test_too_long_a_sequence_is_a_user_error(variables):
    ids = jnp.zeros((1, 6), jnp.int32)
    with pytest.raises(UserError, match=r"sequence length: got 6; expected at most model\.max_positions=5"):
        embeddings().apply(variables, ids, ids, deterministic=True)


def test_bfloat16(variables):
    expected = embeddings().apply(variables, IDS, TYPES, deterministic=True)
    output = embeddings(dtype="bfloat16").apply(variables, IDS, TYPES, deterministic=True)
    assert output.dtype == jnp.bfloat16
    np.testing.assert_allclose(output.astype(jnp.float32), expected, rtol=1e-2)
