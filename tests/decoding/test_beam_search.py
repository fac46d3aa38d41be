"""Beam search compared with a search in plain Python."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bertjax.decoding.beam_search import beam_search
from bertjax.errors import UserError
from tests.decoding import toys
from tests.decoding.toys import EOS, PAD, config, found, make_tables, search

seeds = st.integers(0, 2**31)
few = hypothesis_settings(max_examples=15, phases=[Phase.generate])


def assert_same(ours, expected):
    assert [ids for ids, _ in ours] == [ids for ids, _ in expected]
    np.testing.assert_allclose([score for _, score in ours], [score for _, score in expected], rtol=1e-5, atol=1e-5)


NARROW = [
    {"num_beams": 1, "n_best": 1, "stopping": "exact", "length_penalty": "length", "alpha": 1.0},
    {"num_beams": 3, "n_best": 2, "stopping": "exact", "length_penalty": "length", "alpha": 1.5, "force_eos": True},
    {"num_beams": 3, "n_best": 3, "stopping": "hf", "length_penalty": "length", "alpha": 1.5, "block_ngrams": 2},
    {"num_beams": 3, "n_best": 2, "first_id": 4, "bad_words": ((4,),), "block_ngrams": 1, "force_eos": True},
    {"num_beams": 3, "n_best": 1, "stopping": "hf_early", "length_penalty": "gnmt", "alpha": 0.6, "forbid_unk": True},
    {"num_beams": 3, "n_best": 3, "stopping": "exact", "length_penalty": "length", "alpha": -0.5, "count_eos": False},
    {"num_beams": 3, "n_best": 2, "bad_words": ((4,), (5, 6), (6, 5, 6), (toys.START, 5)), "renormalize": True},
]


@pytest.mark.parametrize("changes", NARROW, ids=str)
@few
@given(seed=seeds, data=st.data())
def test_a_narrow_beam_finds_the_same_as_plain_python(changes, seed, data):
    settings = config(max_length=8, **changes)
    maxima = data.draw(st.lists(st.integers(1, 8), min_size=3, max_size=3))
    minima = [data.draw(st.integers(0, most - 1)) for most in maxima]
    tables = make_tables(seed, 3, 7)
    ours = search(tables, minima, maxima, settings)
    for row in range(3):
        assert_same(found(ours, row), toys.plain_search(tables[row], settings, minima[row], maxima[row]))


@functools.cache
def outcomes(stopping):
    """The hypotheses of 64 rows, with a length penalty that favors long ones."""
    settings = config(num_beams=3, stopping=stopping, max_length=8, length_penalty="length", alpha=1.5)
    return search(make_tables(0, 64, 7), [0] * 64, [8] * 64, settings)


@pytest.mark.parametrize(("more", "less"), [("exact", "hf"), ("hf", "hf_early")])
def test_stopping_rules_give_different_results(more, less):
    """A rule that stops later finds no worse scores, and better ones for some rows."""
    difference = outcomes(more).scores - outcomes(less).scores
    assert difference.min() >= 0
    assert difference.max() > 0.01


MIXED = [0, 3, 0, 1, 5, 0], [8, 4, 1, 6, 8, 0]


def mixed_settings(stopping):
    return config(num_beams=4, max_length=8, stopping=stopping, length_penalty="gnmt", alpha=0.6)


def test_rows_do_not_depend_on_their_batch():
    tables = make_tables(3, 6, 9)
    settings = mixed_settings("presumm")
    together = search(tables, *MIXED, settings)
    for row in range(6):
        alone = search(tables[row : row + 1], *(limit[row : row + 1] for limit in MIXED), settings)
        for field, expected in zip(alone, together, strict=True):
            np.testing.assert_array_equal(field[0], expected[row])


@pytest.mark.parametrize(("stopping", "factor"), [("exact", 1), ("presumm", 1), ("exact", 9)])
def test_a_cache_read_by_lineage_gives_the_same_as_a_reordered_one(stopping, factor):
    tables, limits = make_tables(4, 6, 9), factor * np.array(MIXED)  # the cache of a long search grows
    settings = dataclasses.replace(mixed_settings(stopping), max_length=factor * 8)
    reordered, by_lineage = (search(tables, *limits, settings, by_lineage=flag) for flag in (False, True))
    jax.tree.map(np.testing.assert_array_equal, reordered, by_lineage)


@pytest.mark.parametrize("changes", [*NARROW[1:3], {"stopping": "presumm"}], ids=str)
@few
@given(seed=seeds)
def test_finished_hypotheses_do_not_change(changes, seed):
    """Each one has the probability of its own tokens, no padding before its end, and only padding after it."""
    settings = config(max_length=8, **{**changes, "force_eos": False, "block_ngrams": 0})
    tables = make_tables(seed, 3, 7)
    # Padding is the model's likeliest token.
    tables[..., PAD] += 5
    ours = search(tables, [0, 2, 0], [8, 8, 5], settings)
    for row in range(3):
        assert (np.diff(ours.scores[row]) <= 0).all()
        for ids, length, log_probability, score in zip(*(field[row] for field in ours), strict=True):
            ids, rest = ids[:length].tolist(), ids[length:]
            assert length == 0 or (PAD not in ids and EOS not in ids[:-1])
            assert (rest == PAD).all()
            if length and settings.stopping != "presumm":  # PreSumm's scores include tokens after the end token
                each = [toys.log_softmax(toys.logits_after(tables[row], ids[:i]))[ids[i]] for i in range(length)]
                assert log_probability == pytest.approx(sum(each), rel=1e-4, abs=1e-4)
                assert score == pytest.approx(toys.score(settings, ids, log_probability), rel=1e-4)
    found_ids = [ids for ids, _ in found(ours, 0)]
    assert len(set(found_ids)) == len(found_ids)


def test_a_row_with_maximum_length_0_is_skipped():
    ours = search(make_tables(6, 2, 7), [0, 0], [0, 6], config(n_best=2))
    assert found(ours, 0) == []
    assert (ours.ids[0] == PAD).all()
    assert np.isneginf(ours.scores[0]).all()
    assert len(found(ours, 1)) == 2


def test_the_loop_stops_when_every_row_is_done():
    steps = []

    def step(tokens, cache, beams):
        jax.debug.callback(lambda index: steps.append(int(index)), beams.index)
        # The end token is almost certain at step 3.
        logits = jnp.where(beams.index == 3, 50.0, -50.0) * (jnp.arange(8) == EOS)
        return jnp.broadcast_to(logits, (*tokens.shape, 8)), cache

    options = {"config": config(max_length=50), "eos_id": EOS, "pad_id": PAD, "continues": None}
    run = jax.jit(functools.partial(beam_search, step, lambda length: (), **options))
    ours = run(start_ids=np.array([toys.START]), min_lengths=np.array([0]), max_lengths=np.array([50]))
    jax.effects_barrier()  # waits for the callbacks
    assert max(steps) == 3
    assert int(ours.lengths[0, 0]) == 4


def test_a_forced_end_is_the_whole_hypothesis():
    ours = search(make_tables(8, 1, 9), [0], [8], config(max_length=8, first_id=EOS))
    assert found(ours, 0) == [((EOS,), 0.0)]


def test_the_first_token_must_be_in_the_vocabulary():
    for first_id in (PAD, 9):
        with pytest.raises(UserError, match=f"first_id: got {first_id}; expected the id of a token, below 9, except"):
            search(make_tables(8, 1, 9), [0], [6], config(first_id=first_id))


def test_lengths_are_limited_by_the_cache():
    ours = search(make_tables(7, 1, 7), [90], [99], config(max_length=5))
    assert int(ours.lengths[0, 0]) == 5
    assert EOS not in ours.ids
