import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.rows.packing import Packing, make_recipes, pack

WORD = st.integers(0, 2**32 - 1)


@st.composite
def problems(draw) -> tuple[list[int], tuple[int, int, int, tuple[int, ...]]]:
    """Lengths of instances, and the fields of a `Packing` whose rows have room for each instance.

    Plain values, because the type checker draws random numbers, which a Hypothesis strategy must not do.
    """
    tokens = draw(st.integers(3, 40))
    per_instance = draw(st.lists(st.integers(1, 6), min_size=tokens + 1, max_size=tokens + 1))
    room = tokens, draw(st.integers(max(per_instance), 12)), draw(st.integers(1, tokens)), tuple(per_instance)
    return draw(st.lists(st.integers(1, tokens), max_size=60)), room


@settings(max_examples=80)
@given(problems(), WORD, WORD)
def test_every_instance_has_a_row_and_no_row_exceeds_its_capacity(problem, seed, epoch):
    lengths, packing = np.array(problem[0], np.int64), Packing(*problem[1])
    rows = pack(lengths, packing, seed, epoch, 0)
    assert len(rows) == len(lengths)
    used = np.bincount(rows)
    assert (used > 0).all()
    assert (used <= packing.segments).all()
    assert (np.bincount(rows, lengths) <= packing.tokens).all()
    assert (np.bincount(rows, np.array(packing.per_instance)[lengths]) <= packing.predictions).all()
    np.testing.assert_array_equal(rows, pack(lengths, packing, seed, epoch, 0))


@settings(max_examples=80)
@given(problems())
def test_recipes_use_each_instance_once_and_report_the_room_left(problem):
    lengths, packing = np.array(problem[0], np.int64), Packing(*problem[1])
    counts = np.bincount(lengths, minlength=packing.tokens + 1)
    taken = np.zeros_like(counts)
    for recipe in make_recipes(counts, packing):
        assert recipe.rows >= 1
        np.add.at(taken, list(recipe.lengths), recipe.rows)
        assert recipe.tokens == packing.tokens - sum(recipe.lengths)
        used = sum(packing.per_instance[length] for length in recipe.lengths)
        assert recipe.predictions == packing.predictions - used
        assert recipe.segments == packing.segments - len(recipe.lengths)
    assert taken.tolist() == counts.tolist()


def test_worked_example():
    # Three rows of 10, filled from the longest instance on: 7 + 3, 6 + 4 and 5 + 1.
    packing = Packing(10, 10, 10, tuple([1] * 11))
    recipes = make_recipes(np.bincount([7, 3, 5, 4, 1, 6], minlength=11), packing)
    assert sorted(recipe.lengths for recipe in recipes) == [(5, 1), (6, 4), (7, 3)]
    # A row has room for three predictions, so three of the six instances of 2 tokens share a row.
    packing = Packing(12, 3, 10, tuple([1] * 13))
    assert [(r.rows, r.lengths) for r in make_recipes(np.bincount([2] * 6, minlength=13), packing)] == [(2, (2, 2, 2))]
    # A row has room for two instances.
    packing = Packing(12, 12, 2, tuple([1] * 13))
    assert [(r.rows, r.lengths) for r in make_recipes(np.bincount([2] * 6, minlength=13), packing)] == [(3, (2, 2))]


def test_which_instances_share_a_row_is_random_and_depends_on_seed_epoch_and_part(check_uniform):
    # A thousand instances of 60 tokens and a thousand of 40 tokens are paired at random.
    lengths = np.repeat([60, 40], 1000)
    packing = Packing(100, 20, 8, tuple([1] * 101))
    draws = [pack(lengths, packing, *draw) for draw in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({rows.tobytes() for rows in draws}) == 4
    partners = []
    for rows in draws:
        order = np.argsort(rows, kind="stable").reshape(-1, 2)
        assert (np.sort(lengths[order], axis=1) == [40, 60]).all()
        order = np.sort(order, axis=1)
        partners.append((order[:, 0] // 100) * 10 + (order[:, 1] - 1000) // 100)
    counts = np.bincount(np.concatenate(partners), minlength=100)
    # Both margins are fixed, so the 81 free counts of the table vary a tenth less than independent counts.
    check_uniform("pairs of tenths", (counts - 40) / 0.9 + 40)


@pytest.mark.parametrize("tokens", [128, 512])
def test_packed_rows_are_98_percent_full_for_any_distribution_of_lengths(tokens):
    rng = np.random.default_rng(0)
    for lengths in (
        rng.integers(5, tokens + 1, 20_000),
        np.clip(rng.lognormal(3, 0.6, 20_000), 5, tokens).astype(int),
        np.where(rng.random(20_000) < 0.8, tokens, rng.integers(5, tokens + 1, 20_000)),
    ):
        per_instance = np.clip(np.rint(np.arange(tokens + 1) * 0.15), 1, None).astype(int)
        packing = Packing(tokens, int(np.ceil(tokens * 0.1575)), tokens // 8, tuple(per_instance.tolist()))
        rows = pack(lengths, packing, 0, 0, 0)
        assert lengths.sum() / (rows.max() + 1) / tokens > 0.98
