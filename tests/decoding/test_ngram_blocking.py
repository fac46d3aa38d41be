"""N-gram blocking with incremental runs, compared with a search over all n-grams."""

import jax
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bertjax.decoding.ngram_blocking import block_tokens, extend_runs, repeats_words
from tests.decoding.toys import has_repeat

LENGTH, VOCABULARY = 10, 4
CONTINUES = np.array([False, False, True, True])


extend = jax.jit(extend_runs)
block = jax.jit(block_tokens, static_argnums=4)
repeats = jax.jit(repeats_words, static_argnums=3)


def runs_of(ids):
    """The runs of a history, built token by token; the history [1, 1, T] padded with arbitrary tokens; its length."""
    history = np.full((1, 1, LENGTH), ids[-1] if ids else 0)
    runs = np.zeros_like(history)
    for place, token in enumerate(ids):
        history[..., place] = token
        runs = extend(runs, history.copy(), place + 1)
    return runs, history, len(ids)


def words_of(ids, continues):
    words = []
    for i, token in enumerate(ids):
        if i and continues[token]:
            words[-1] += (token,)
        else:
            words.append((token,))
    return words


def repeats_at_end(words, n):
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return bool(grams) and grams[-1] in grams[:-1]


@pytest.mark.parametrize("n", [1, 2, 3])
@settings(max_examples=20, phases=[Phase.generate])
@given(ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=LENGTH - 1))
def test_tokens_that_would_repeat_are_banned(n, ids):
    blocked = block(np.zeros((1, 1, VOCABULARY), np.float32), *runs_of(ids), n)[0, 0]
    # Repeats that the history already contains do not ban a token.
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    expected = [(*ids[len(ids) - n + 1 :], token) in grams for token in range(VOCABULARY)]
    assert np.isneginf(blocked).tolist() == expected
    if not has_repeat(ids, n):
        assert expected == [has_repeat([*ids, token], n) for token in range(VOCABULARY)]


@pytest.mark.parametrize("n", [1, 2, 3])
@settings(max_examples=30, phases=[Phase.generate])
@given(ids=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=LENGTH))
def test_repeated_words(n, ids):
    ours = repeats(*runs_of(ids), n, CONTINUES)
    assert bool(ours[0, 0]) == repeats_at_end(words_of(ids, CONTINUES), n)
