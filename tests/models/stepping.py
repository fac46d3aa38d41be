"""Compares decoding token by token, in a growing cache, with the whole forward pass, for random choices of a search."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.decoding.hypotheses import grow
from bertjax.models.decoder import Beams
from bertjax.models.encoder_decoder import Seq2SeqInputs

LENGTH = 5


def check_steps(model, params, source_ids, source_segments, target_vocab_size, num_beams):
    """Checks that each step's logits equal those of a forward pass over the beam's whole history."""
    source_ids, source_segments = jnp.asarray(source_ids), jnp.asarray(source_segments)
    parents, tokens = random_search(len(source_ids), num_beams, target_vocab_size)
    histories, lineage = follow(parents, tokens)

    @jax.jit
    def stepped(params):
        def apply(method, *arguments, **named):
            return model.apply({"params": params}, *arguments, method=method, **named)

        memory = apply("encode", Seq2SeqInputs(source_ids, source_segments), deterministic=True)
        assert {leaf.shape[0] for leaf in jax.tree.leaves(memory)} == {len(source_ids)}

        def step(cache, inputs):
            index, tokens, *beams = inputs
            logits, cache = apply("step", tokens, cache, Beams(index, *beams))
            return cache, logits

        def start(length):
            return apply("start", memory, num_beams, length)

        inputs = jax.tree.map(jnp.asarray, (np.arange(LENGTH), tokens, parents, lineage))
        few, rest = jax.tree.map(lambda x: x[:2], inputs), jax.tree.map(lambda x: x[2:], inputs)
        cache, first = jax.lax.scan(step, start(2), few)
        return jnp.concatenate([first, jax.lax.scan(step, grow(cache, start, LENGTH), rest)[1]])

    @jax.jit
    def whole(params):
        def flat(rows):
            rows = jnp.broadcast_to(rows[None, :, None], (LENGTH, len(rows), num_beams, rows.shape[-1]))
            return rows.reshape(-1, rows.shape[-1])

        ids = jnp.asarray(histories).reshape(-1, LENGTH)
        segments = jnp.asarray(ids != 0, jnp.int32)
        inputs = Seq2SeqInputs(flat(source_ids), flat(source_segments), ids, segments)
        output = model.apply({"params": params}, inputs, deterministic=True, return_attention=False)
        logits = output.logits.reshape(*histories.shape, -1)
        return logits[jnp.arange(LENGTH), :, :, jnp.arange(LENGTH)]

    ours, expected = np.asarray(stepped(params)), np.asarray(whole(params))
    assert ours.shape == (LENGTH, len(source_ids), num_beams, target_vocab_size)
    assert np.ptp(expected, axis=0).max() > 0.1  # equal logits would prove nothing
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def random_search(rows, num_beams, vocab_size):
    """Parents [T, B, K] and fed tokens [T, B, K] of each beam; no token is 0."""
    rng = np.random.default_rng(3)
    parents = rng.integers(0, num_beams, (LENGTH, rows, num_beams), dtype=np.int32)
    parents[0] = np.arange(num_beams)
    return parents, rng.integers(1, vocab_size, (LENGTH, rows, num_beams), dtype=np.int32)


def follow(parents, tokens):
    """The tokens of each beam's history at each step, padded with 0, and its lineage, as in `Beams`."""
    length, rows, num_beams = tokens.shape
    histories, lineage = np.zeros((2, length, rows, num_beams, length), np.int32)
    for t, b, k in np.ndindex(length, rows, num_beams):
        if t:
            histories[t, b, k], lineage[t, b, k] = (x[t - 1, b, parents[t, b, k]] for x in (histories, lineage))
        histories[t, b, k, t], lineage[t, b, k, t] = tokens[t, b, k], k
    return histories, lineage
